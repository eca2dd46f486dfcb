"""The retained index, against a sorted dictionary."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quantum.routing import sorted_keys
from quantum.routing.errors import RoutingMisuse
from quantum.routing.retained import RetainedIndex
from quantum.topics import levels, matches
from tests.quantum.test_topics import MATCHES
from tests.quantum.topic_names import filters, topics


def naive(plain: dict[bytes, int], topic_filter: bytes) -> list[tuple[bytes, int]]:
    found = [(topic, value) for topic, value in plain.items() if matches(topic_filter, topic)]
    return sorted(found, key=lambda pair: levels(pair[0]))


@pytest.fixture(autouse=True, scope="module")
def _small_leaves() -> object:
    """Leaves of four keys: every path of splitting and joining is met in small examples."""
    patch = pytest.MonkeyPatch()
    patch.setattr(sorted_keys, "LEAF_KEYS_MAX", 4)
    yield
    patch.undo()


class RetainedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index: RetainedIndex[int] = RetainedIndex()
        self.plain: dict[bytes, int] = {}

    @rule(topic=topics, value=st.integers(0, 9))
    def put(self, topic: bytes, value: int) -> None:
        assert self.index.put(topic, value) == self.plain.get(topic)
        self.plain[topic] = value

    @rule(topic=topics)
    def delete(self, topic: bytes) -> None:
        assert self.index.delete(topic) == self.plain.pop(topic, None)

    @rule(data=st.data())
    def delete_one(self, data: st.DataObject) -> None:
        if self.plain:
            self.delete(data.draw(st.sampled_from(sorted(self.plain))))

    @rule(topic_filter=filters)
    def match(self, topic_filter: bytes) -> None:
        assert list(self.index.match(topic_filter)) == naive(self.plain, topic_filter)

    @rule(topic_filter=filters, after=topics, limit=st.integers(1, 4), leaps=st.integers(1, 5))
    def page(self, topic_filter: bytes, after: bytes, limit: int, leaps: int) -> None:
        expected = [
            pair for pair in naive(self.plain, topic_filter) if levels(pair[0]) > levels(after)
        ]
        found: list[tuple[bytes, int]] = []
        cursor: bytes | None = after
        for _ in range(len(self.plain) + 1):
            assert cursor is not None
            page = self.index.match_after(topic_filter, cursor, limit, leaps)
            assert len(page.matches) <= limit
            found += page.matches
            cursor = page.after
            if cursor is None:
                break
        assert cursor is None, "every page comes closer to the end"
        assert found == expected

    @invariant()
    def holds_what_the_dictionary_holds(self) -> None:
        assert len(self.index) == len(self.plain) == len(self.index._keys)
        assert list(self.index.items()) == sorted(
            self.plain.items(), key=lambda pair: levels(pair[0])
        )
        assert all(self.index.get(topic) == value for topic, value in self.plain.items())
        self._check_leaves()

    def _check_leaves(self) -> None:
        keys = self.index._keys
        assert all(0 < len(leaf) <= 4 for leaf in keys._leaves)
        assert keys._last == [leaf[-1] for leaf in keys._leaves]


TestRetainedMachine = RetainedMachine.TestCase
TestRetainedMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(("topic_filter", "topic", "expected"), MATCHES.values(), ids=MATCHES)
def test_one_topic_is_found_exactly_where_the_rules_say(
    topic_filter: bytes, topic: bytes, expected: bool
) -> None:
    index: RetainedIndex[int] = RetainedIndex()
    index.put(topic, 1)
    assert list(index.match(topic_filter)) == ([(topic, 1)] if expected else [])


@settings(deadline=None)
@given(st.lists(topics, unique=True))
def test_order_does_not_depend_on_how_it_was_filled(names: list[bytes]) -> None:
    one: RetainedIndex[int] = RetainedIndex()
    other: RetainedIndex[int] = RetainedIndex()
    for name in names:
        one.put(name, 1)
    for name in sorted(names):
        other.put(name, 1)
    assert list(one.match(b"#")) == list(other.match(b"#"))


SMALL = [
    b"/".join(parts)
    for depth in (1, 2, 3)
    for parts in itertools.product((b"a", b"b"), repeat=depth)
]
SMALL_FILTERS = [
    b"/".join(parts)
    for depth in (1, 2, 3)
    for parts in itertools.product((b"a", b"b", b"$", b"+", b"#"), repeat=depth)
    if b"#" not in parts[:-1]
]


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from(SMALL)))
def test_every_filter_on_a_crowded_index(names: set[bytes]) -> None:
    index: RetainedIndex[int] = RetainedIndex()
    plain = dict.fromkeys(names, 0)
    for name in names:
        index.put(name, 0)
    for topic_filter in SMALL_FILTERS:
        assert list(index.match(topic_filter)) == naive(plain, topic_filter), topic_filter


def test_a_page_of_one_name_begins_after_the_topic_given() -> None:
    index: RetainedIndex[int] = RetainedIndex()
    index.put(b"a/b", 0)
    for after, found in ((b"", 1), (b"a", 1), (b"a/a", 1), (b"a/b", 0), (b"a/b/c", 0), (b"b", 0)):
        page = index.match_after(b"a/b", after, 5)
        assert (len(page.matches), page.after) == (found, None), after


def test_a_page_goes_on_although_its_last_topic_is_gone() -> None:
    index: RetainedIndex[int] = RetainedIndex()
    for name in (b"a/1", b"a/2", b"a/3", b"a/4"):
        index.put(name, 0)
    page = index.match_after(b"a/+", b"", 2)
    assert [topic for topic, _ in page.matches] == [b"a/1", b"a/2"]
    assert page.after == b"a/2"
    index.delete(b"a/2")
    index.delete(b"a/3")
    index.put(b"a/1x", 0)
    page = index.match_after(b"a/+", page.after, 2)
    assert page.matches == [(b"a/4", 0)]


def test_a_walk_survives_changes_between_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantum.routing.retained.PAGE_TOPICS", 2)
    index: RetainedIndex[int] = RetainedIndex()
    for number in range(20):
        index.put(b"a/%02d" % number, number)
    seen = []
    for topic, number in index.match(b"a/#"):
        seen.append(number)
        index.delete(topic)
        index.put(b"b/%02d" % number, number)
    assert seen == list(range(20))


def test_a_filter_leaps_over_what_lies_between() -> None:
    """`+` visits the names of its level, not the thousand topics below each of them."""
    index: RetainedIndex[int] = RetainedIndex()
    for first in range(10):
        for second in range(1000):
            index.put(b"%d/x/%d" % (first, second), 0)
        index.put(b"%d/y" % first, 1)
    page = index.match_after(b"+/y", b"", 10, leaps_max=31)
    assert [value for _, value in page.matches] == [1] * 10


def test_a_hopeless_lookup_ends_its_page_in_time_and_goes_on() -> None:
    index: RetainedIndex[int] = RetainedIndex()
    for first in range(1000):
        index.put(b"%03d/x" % first, 0)
    index.put(b"999/y", 1)
    page = index.match_after(b"+/y", b"", 1, leaps_max=100)
    assert page.matches == []
    assert page.after is not None
    assert list(index.match(b"+/y")) == [(b"999/y", 1)]


def test_an_empty_page_is_refused() -> None:
    with pytest.raises(RoutingMisuse):
        RetainedIndex[int]().match_after(b"#", b"", 0)


def test_values_that_are_false_are_values() -> None:
    index: RetainedIndex[bytes | None] = RetainedIndex()
    index.put(b"a", None)
    index.put(b"a", b"")
    assert len(index) == len(index._keys) == 1
    assert list(index.match(b"+")) == [(b"a", b"")]
