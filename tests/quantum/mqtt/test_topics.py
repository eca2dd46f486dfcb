"""Topic names and filters: what is one, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given

from quantum.protocols.mqtt.codec import (
    LEVELS_MAX,
    MalformedPacket,
    SharedFilter,
    TopicFilter,
    check_topic_filter,
    check_topic_name,
    has_too_many_levels,
    is_topic_name,
    parse_shared,
    split_levels,
)
from tests.quantum.mqtt.strategies import FILTERS, TOPICS

NAMES = [
    "a",
    "/",
    "//",
    "a/",
    "/a",
    "a b",
    "$SYS/x",
    "$share/x",
    "Ω/≈",
    " ",
    "\ufeffa",
    "\U0002a6d4",
]
NOT_NAMES = {
    "[MQTT-4.7.3-1] empty": b"",
    "[MQTT-3.3.2-2] +": b"a/+/b",
    "[MQTT-3.3.2-2] #": b"a/#",
    "[MQTT-3.3.2-2] + inside": b"a+b",
    "[MQTT-4.7.3-2] null": b"a\0b",
    "[MQTT-1.5.4-1] surrogate": b"\xed\xa0\x80",
    "[MQTT-1.5.4-1] truncated": b"a\xc3",
    "§1.5.4 control": b"a\x01",
    "§1.5.4 delete": b"a\x7f",
    "§1.5.4 C1 control": "a\x85".encode(),
    "§1.5.4 non-character": "\ufdd0".encode(),
    "§1.5.4 plane's end": "\U0010ffff".encode(),
    "[MQTT-4.7.3-3] too long": b"a" * 65536,
}
PLAIN = [
    "a",
    "+",
    "#",
    "/",
    "+/+",
    "/+",
    "+/",
    "a/+/b",
    "a/#",
    "/#",
    "+/#",
    "$SYS/#",
    "a//b",
    "$share",
]
NOT_FILTERS = {
    "[MQTT-4.7.3-1] empty": b"",
    "[MQTT-4.7.1-1] a#": b"a#",
    "[MQTT-4.7.1-1] #a": b"#a",
    "[MQTT-4.7.1-1] a/#/b": b"a/#/b",
    "[MQTT-4.7.1-1] ##": b"##",
    "[MQTT-4.7.1-1] #/": b"#/",
    "[MQTT-4.7.1-2] a+": b"a+",
    "[MQTT-4.7.1-2] +a": b"+a",
    "[MQTT-4.7.1-2] a/+b/c": b"a/+b/c",
    "[MQTT-4.7.1-2] ++": b"++",
    "[MQTT-4.7.1-2] +#": b"+#",
    "[MQTT-4.7.3-2] null": b"a/\0",
    "[MQTT-1.5.4-1] ill-formed": b"\xff",
    "§1.5.4 control": b"+/\x1f",
    "[MQTT-4.7.3-3] too long": b"a" * 65536,
}
SHARED = {
    "$share/g/a": SharedFilter(b"g", TopicFilter(b"a")),
    "$share/g/a/b": SharedFilter(b"g", TopicFilter(b"a/b")),
    "$share/g/#": SharedFilter(b"g", TopicFilter(b"#")),
    "$share/g/+/a": SharedFilter(b"g", TopicFilter(b"+/a")),
    "$share/g//": SharedFilter(b"g", TopicFilter(b"/")),
    "$share/g/$share/g/a": SharedFilter(b"g", TopicFilter(b"$share/g/a")),
    "$share": None,
    "$Share/g/a": None,
    "share/g/a": None,
    "/$share/g/a": None,
    "a": None,
}
NOT_SHARED = {
    "[MQTT-4.8.2-1] no name": b"$share/",
    "[MQTT-4.8.2-1] empty name": b"$share//a",
    "[MQTT-4.8.2-2] + as name": b"$share/+/a",
    "[MQTT-4.8.2-2] # as name": b"$share/#",
    "[MQTT-4.8.2-2] no filter": b"$share/g",
    "[MQTT-4.8.2-2] empty filter": b"$share/g/",
}


@pytest.mark.parametrize("topic", NAMES)
def test_names(topic: str) -> None:
    check_topic_name(topic.encode())
    check_topic_filter(topic.encode())
    assert is_topic_name(topic.encode())


@pytest.mark.parametrize("topic", NOT_NAMES.values(), ids=NOT_NAMES.keys())
def test_what_is_no_name(topic: bytes) -> None:
    assert not is_topic_name(topic)
    with pytest.raises(MalformedPacket):
        check_topic_name(topic)


@pytest.mark.parametrize("topic_filter", PLAIN)
def test_filters(topic_filter: str) -> None:
    check_topic_filter(topic_filter.encode())
    assert parse_shared(topic_filter.encode()) is None


@pytest.mark.parametrize("topic_filter", NOT_FILTERS.values(), ids=NOT_FILTERS.keys())
def test_what_is_no_filter(topic_filter: bytes) -> None:
    with pytest.raises(MalformedPacket):
        check_topic_filter(topic_filter)


@pytest.mark.parametrize(("topic_filter", "parts"), SHARED.items(), ids=SHARED.keys())
def test_shared_filters_come_apart(topic_filter: str, parts: SharedFilter | None) -> None:
    assert parse_shared(topic_filter.encode()) == parts


@pytest.mark.parametrize("topic_filter", NOT_SHARED.values(), ids=NOT_SHARED.keys())
def test_what_is_no_shared_filter(topic_filter: bytes) -> None:
    with pytest.raises(MalformedPacket):
        parse_shared(topic_filter)


def test_empty_levels_are_levels() -> None:
    assert split_levels(b"/a//") == [b"", b"a", b"", b""]


def test_depth_is_bounded() -> None:
    assert not has_too_many_levels(b"/" * (LEVELS_MAX - 1))
    assert len(split_levels(b"/" * (LEVELS_MAX - 1))) == LEVELS_MAX
    assert has_too_many_levels(b"/" * LEVELS_MAX)


def test_the_longest_name_is_one() -> None:
    check_topic_name(b"a" * 65535)
    check_topic_filter(b"a" * 65535)


@given(TOPICS)
def test_drawn_names_are_names(topic: bytes) -> None:
    check_topic_name(topic)


@given(FILTERS)
def test_drawn_filters_are_filters(topic_filter: bytes) -> None:
    check_topic_filter(topic_filter)
    parse_shared(topic_filter)
