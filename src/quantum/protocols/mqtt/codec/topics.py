"""What makes a topic name or filter well formed (§4.7, §4.8.2)."""

from __future__ import annotations

from typing import Final, NamedTuple

from quantum.protocols.mqtt.codec.errors import MalformedPacket, PeerFault
from quantum.protocols.mqtt.codec.primitives import check_identifier, decode_text
from quantum.protocols.mqtt.codec.types import FIELD_BYTES_MAX, ReasonCode, TopicFilter

LEVELS_MAX: Final = 128
SHARE_PREFIX: Final = b"$share/"

_MALFORMED: Final = ReasonCode.MALFORMED_PACKET


class SharedFilter(NamedTuple):
    """The two parts of a shared subscription's filter, `$share/{share_name}/{topic_filter}`."""

    share_name: bytes
    topic_filter: TopicFilter


def check_topic_name(topic: bytes) -> None:
    """Raise MalformedPacket unless a message can be published to `topic`."""
    _check_text(topic)
    if b"+" in topic or b"#" in topic:
        raise MalformedPacket(_MALFORMED, "wildcard in a topic name")


def check_topic_filter(topic_filter: bytes) -> None:
    """Raise MalformedPacket unless `topic_filter` can be subscribed to.

    `$share` filters are checked as plain ones; `parse_shared` checks the rest.
    """
    _check_text(topic_filter)
    if b"#" in topic_filter or b"+" in topic_filter:
        _check_wildcards(topic_filter.split(b"/"))


def parse_shared(topic_filter: bytes) -> SharedFilter | None:
    """Take a shared subscription's filter apart, or return None for any other filter.

    The filter has passed `check_topic_filter`. Raises MalformedPacket where a share name or
    what must follow it is missing or holds a wildcard ([MQTT-4.8.2-1], [MQTT-4.8.2-2]).
    """
    if not topic_filter.startswith(SHARE_PREFIX):
        return None
    share_name, _, rest = topic_filter[len(SHARE_PREFIX) :].partition(b"/")
    if not share_name or not rest:
        raise MalformedPacket(_MALFORMED, "shared filter without its name or its filter")
    if b"+" in share_name or b"#" in share_name:
        raise MalformedPacket(_MALFORMED, "wildcard in a share name")
    return SharedFilter(share_name, TopicFilter(rest))


def split_levels(topic: bytes) -> list[bytes]:
    """Split a topic name or filter into its levels; an empty level is a level (§4.7.1.1)."""
    return topic.split(b"/")


def has_too_many_levels(topic: bytes, levels_max: int = LEVELS_MAX) -> bool:
    """Say whether a well-formed name or filter is deeper than this server accepts.

    Such a topic is refused by 0x90 or 0x8F in the answer to its packet; it is no reason to
    close the connection.
    """
    return topic.count(b"/") >= levels_max


def is_topic_name(topic: bytes) -> bool:
    """Say whether a message can be published to `topic`."""
    try:
        check_topic_name(topic)
    except PeerFault:
        return False
    return True


def _check_text(topic: bytes) -> None:
    if not topic:
        raise MalformedPacket(_MALFORMED, "empty topic")
    if len(topic) > FIELD_BYTES_MAX:
        raise MalformedPacket(_MALFORMED, "topic too long", length=len(topic))
    check_identifier(decode_text(topic))


def _check_wildcards(levels: list[bytes]) -> None:
    last = len(levels) - 1
    for number, level in enumerate(levels):
        if b"#" in level and (level != b"#" or number != last):
            raise MalformedPacket(_MALFORMED, "misplaced multi-level wildcard")
        if b"+" in level and level != b"+":
            raise MalformedPacket(_MALFORMED, "misplaced single-level wildcard")
