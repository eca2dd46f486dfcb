"""The subscription trie, against a list of subscriptions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quantum.routing.trie import INTERNED_LEVELS_MAX, SubscriptionTrie
from quantum.topics import matches
from tests.quantum.test_topics import MATCHES
from tests.quantum.topic_names import filters, topics

subscribers = st.integers(0, 4)
values = st.integers(0, 9)


def twin(trie: SubscriptionTrie[int, int]) -> SubscriptionTrie[int, int]:
    copy: SubscriptionTrie[int, int] = SubscriptionTrie()
    for topic_filter, subscriber, value in trie.items():
        copy.add(topic_filter, subscriber, value)
    return copy


def forks_of(trie: SubscriptionTrie[int, int]) -> int:
    """Count prefixes with a `+` that both `+` and a literal level follow."""
    below: dict[tuple[bytes, ...], set[bool]] = {}
    for topic_filter in trie.filters():
        path = tuple(each for each in topic_filter.split(b"/") if each != b"#")
        for depth in range(len(path)) if b"+" in topic_filter or b"#" in topic_filter else ():
            below.setdefault(path[:depth], set()).add(path[depth] == b"+")
    return sum(1 for prefix, kinds in below.items() if b"+" in prefix and len(kinds) == 2)


class TrieMachine(RuleBasedStateMachine):
    """The trie, and the plain list of all.

    The follower is given the same changes, and now and then starts from a copy of itself: it
    must answer in the same order as the trie that never stopped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trie: SubscriptionTrie[int, int] = SubscriptionTrie()
        self.follower: SubscriptionTrie[int, int] = SubscriptionTrie()
        self.plain: dict[tuple[bytes, int], int] = {}

    @rule(topic_filter=filters, subscriber=subscribers, value=values)
    def add(self, topic_filter: bytes, subscriber: int, value: int) -> None:
        forks = self.trie.forks_with(topic_filter)
        old = self.trie.add(topic_filter, subscriber, value)
        assert self.trie.wild_forks == forks
        assert old == self.plain.get((topic_filter, subscriber))
        assert self.follower.add(topic_filter, subscriber, value) == old
        self.plain[topic_filter, subscriber] = value

    @rule(topic_filter=filters, subscriber=subscribers)
    def remove_any(self, topic_filter: bytes, subscriber: int) -> None:
        old = self.trie.remove(topic_filter, subscriber)
        assert old == self.plain.pop((topic_filter, subscriber), None)
        assert self.follower.remove(topic_filter, subscriber) == old

    @rule(data=st.data())
    def remove_one(self, data: st.DataObject) -> None:
        if self.plain:
            topic_filter, subscriber = data.draw(st.sampled_from(sorted(self.plain)))
            self.remove_any(topic_filter, subscriber)

    @rule(topic=topics)
    def match(self, topic: bytes) -> None:
        expected = Counter(
            (subscriber, value)
            for (topic_filter, subscriber), value in self.plain.items()
            if matches(topic_filter, topic)
        )
        found = self.trie.match(topic)
        assert Counter(found) == expected
        assert self.follower.match(topic) == found
        levels = topic.count(b"/") + 1
        assert self.trie.visits(topic) <= levels * (1 + levels + self.trie.wild_forks)

    @rule()
    def restart_follower(self) -> None:
        self.follower = twin(self.follower)

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        listed = list(self.trie.items())
        assert {(f, s): v for f, s, v in listed} == self.plain
        assert len(listed) == len(self.trie) == len(self.plain)
        assert Counter(self.trie.filters()) == Counter({f for f, _ in self.plain})
        assert list(self.follower.items()) == listed
        for (topic_filter, subscriber), value in self.plain.items():
            assert self.trie.get(topic_filter, subscriber) == value

    @invariant()
    def counts_the_forks_below_a_wildcard(self) -> None:
        assert self.trie.wild_forks == self.follower.wild_forks == forks_of(self.trie)


TestTrieMachine = TrieMachine.TestCase
TestTrieMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(("topic_filter", "topic", "expected"), MATCHES.values(), ids=MATCHES)
def test_one_subscription_is_found_exactly_where_the_rules_say(
    topic_filter: bytes, topic: bytes, expected: bool
) -> None:
    trie: SubscriptionTrie[str, int] = SubscriptionTrie()
    assert trie.add(topic_filter, "me", 1) is None
    assert trie.match(topic) == ([("me", 1)] if expected else [])
    assert trie.remove(topic_filter, "me") == 1
    assert trie.match(topic) == []


def test_subscribers_of_a_filter_answer_in_the_order_they_came() -> None:
    trie: SubscriptionTrie[str, int] = SubscriptionTrie()
    for topic_filter in (b"a/+", b"a/b", b"a/#"):
        for number, name in enumerate("dacb"):
            trie.add(topic_filter, name, number)
        assert trie.add(topic_filter, "a", 9) == 1, "replaced, in the place it had"
        trie.remove(topic_filter, "d")
        trie.add(topic_filter, "d", 0)
    assert trie.match(b"a/b") == [("a", 9), ("c", 2), ("b", 3), ("d", 0)] * 3


def test_nothing_is_left_of_what_was_removed() -> None:
    trie: SubscriptionTrie[int, int] = SubscriptionTrie()
    names = [f"{first}/{second}/+/#".encode() for first in "abc" for second in "def"]
    for name in names:
        trie.add(name, 1, 1)
    for name in names:
        assert trie.remove(name, 2) is None
        assert trie.remove(name, 1) == 1
    assert trie._root.is_empty()
    assert len(trie) == 0


def test_a_crowd_that_left_does_not_slow_those_who_stay() -> None:
    trie: SubscriptionTrie[int, int] = SubscriptionTrie()
    for number in range(10_000):
        trie.add(b"a/+", number, 0)
    for number in range(9_990):
        trie.remove(b"a/+", number)
    assert trie.match(b"a/b") == [(number, 0) for number in range(9_990, 10_000)]
    holders = trie._holders(b"a/+")
    assert isinstance(holders, dict)
    assert holders.__sizeof__() < 10_000, "the places of 10,000 would be walked by each match"


def test_names_of_levels_are_kept_once_and_not_for_ever() -> None:
    trie: SubscriptionTrie[int, int] = SubscriptionTrie()
    for number in range(INTERNED_LEVELS_MAX + 10):
        trie.add(b"%d/+/same" % number, 1, 1)
        trie.remove(b"%d/+/same" % number, 1)
    assert len(trie._interned) <= INTERNED_LEVELS_MAX


LEVELS = 14
WILD_FORKS_MAX = 100


def test_filters_that_fork_everywhere_are_seen_before_they_cost() -> None:
    """2^14 filters of `a` and `+`: without a bound one topic walks through all of them."""
    trie: SubscriptionTrie[int, int] = SubscriptionTrie()
    topic = b"/".join([b"a"] * LEVELS)
    for number in range(1 << LEVELS):
        levels = [b"+" if number >> bit & 1 else b"a" for bit in range(LEVELS)]
        topic_filter = b"/".join([*levels, b"x"])
        if trie.forks_with(topic_filter) <= max(WILD_FORKS_MAX, trie.wild_forks):
            trie.add(topic_filter, 1, number)
    assert trie.wild_forks == WILD_FORKS_MAX
    assert LEVELS < trie.visits(topic) <= LEVELS * (1 + LEVELS + WILD_FORKS_MAX)


def test_filters_that_part_at_a_name_fork_nowhere() -> None:
    """A tree of devices, as users have it, is not what the bound is about."""
    trie: SubscriptionTrie[int, int] = SubscriptionTrie()
    for number in range(2_000):
        for pattern in (b"site/+/device/%d/#", b"device/%d/+/state", b"device/%d/+/command/+"):
            trie.add(pattern % number, number, 0)
    trie.add(b"site/+/device/+/state", 1, 0)
    assert trie.wild_forks == 1
    assert trie.visits(b"site/7/device/9/state") <= 8
