"""The grammar of topics, sentence by sentence of MQTT 5 §4.7."""

from __future__ import annotations

import pytest

from quantum.topics import (
    InvalidTopicFilter,
    InvalidTopicName,
    check_topic_filter,
    check_topic_name,
    has_wildcard,
    levels,
    matches,
    split_shared,
)

MATCHES = {
    "itself": (b"a/b", b"a/b", True),
    "case counts": (b"a/B", b"a/b", False),
    "a longer topic": (b"a", b"a/b", False),
    "a shorter topic": (b"a/b", b"a", False),
    "a leading slash is a level": (b"/a", b"a", False),
    "a trailing slash is a level": (b"a/", b"a", False),
    "plus is one level": (b"a/+/c", b"a/b/c", True),
    "plus is not two levels": (b"a/+", b"a/b/c", False),
    "plus is not no level": (b"a/+", b"a", False),
    "plus may be empty": (b"a/+", b"a/", True),
    "plus alone and a leading slash": (b"+", b"/a", False),
    "plus twice and a leading slash": (b"+/+", b"/a", True),
    "slash plus": (b"/+", b"/a", True),
    "hash is all below": (b"a/#", b"a/b/c", True),
    "hash is its parent": (b"a/#", b"a", True),
    "hash is not its parent's sibling": (b"a/#", b"ab", False),
    "hash alone": (b"#", b"a/b/c", True),
    "plus then hash": (b"+/b/#", b"a/b", True),
    "hash does not see the server's own": (b"#", b"$SYS/x", False),
    "plus does not see the server's own": (b"+/x", b"$SYS/x", False),
    "the server's own by name": (b"$SYS/#", b"$SYS/x", True),
    "the server's own by name and plus": (b"$SYS/+", b"$SYS/x", True),
    "a dollar deeper down is ordinary": (b"a/+", b"a/$x", True),
    "dots mean nothing": (b"a/../b", b"b", False),
}


@pytest.mark.parametrize(("topic_filter", "topic", "expected"), MATCHES.values(), ids=MATCHES)
def test_matches(topic_filter: bytes, topic: bytes, expected: bool) -> None:
    assert matches(topic_filter, topic) is expected


def test_levels_count_empty_ones() -> None:
    assert levels(b"/a//b/") == [b"", b"a", b"", b"b", b""]
    assert has_wildcard(b"a/+") and has_wildcard(b"#") and not has_wildcard(b"a/b")


SHARED = {
    "ordinary": (b"a/b", None),
    "the group and the filter": (b"$share/g/a/+", (b"g", b"a/+")),
    "a filter that begins with a slash": (b"$share/g//a", (b"g", b"/a")),
    "a share within a share is a topic of that name": (
        b"$share/g/$share/h/a",
        (b"g", b"$share/h/a"),
    ),
    "another word": (b"$shared/g/a", None),
    "not at the beginning": (b"a/$share/g/b", None),
}


@pytest.mark.parametrize(("topic_filter", "expected"), SHARED.values(), ids=SHARED)
def test_split_shared(topic_filter: bytes, expected: tuple[bytes, bytes] | None) -> None:
    assert split_shared(topic_filter) == expected


@pytest.mark.parametrize(
    "topic_filter",
    [b"$share", b"$share/", b"$share/g", b"$share/g/", b"$share//a", b"$share/+/a", b"$share/g#/a"],
)
def test_a_share_without_group_or_filter_is_refused(topic_filter: bytes) -> None:
    with pytest.raises(InvalidTopicFilter):
        split_shared(topic_filter)


@pytest.mark.parametrize("topic", [b"", b"a/+", b"#", b"a\0b", b"x" * 65_536])
def test_names_that_nobody_may_publish_to(topic: bytes) -> None:
    with pytest.raises(InvalidTopicName):
        check_topic_name(topic)


@pytest.mark.parametrize("topic", [b"/", b"//", b"a b", b"$SYS/x", "ä/ß".encode(), b"x" * 65_535])
def test_names_that_one_may_publish_to(topic: bytes) -> None:
    check_topic_name(topic)
    check_topic_filter(topic)


@pytest.mark.parametrize(
    "topic_filter",
    [
        b"",
        b"a#",
        b"a/#/b",
        b"#/a",
        b"a+/b",
        b"a/+b",
        b"a/++",
        b"a\0",
        b"$share/g/a/#/b",
        b"x" * 65_536,
    ],
)
def test_filters_that_are_none(topic_filter: bytes) -> None:
    with pytest.raises(InvalidTopicFilter):
        check_topic_filter(topic_filter)


@pytest.mark.parametrize("topic_filter", [b"#", b"+", b"+/+", b"/+/#", b"$share/g/#", b"a//#"])
def test_filters(topic_filter: bytes) -> None:
    check_topic_filter(topic_filter)
