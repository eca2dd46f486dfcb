"""The grammar of topic names and filters, on their encoded bytes.

Everything here takes UTF-8 that a codec has already checked and never decodes it: the three
signs that mean something (`/`, `+`, `#`) are ASCII, and no other character's encoding holds
their bytes.
"""

from __future__ import annotations

SEPARATOR = b"/"
ANY_LEVEL = b"+"
ANY_REST = b"#"
RESERVED = b"$"
"""Topics that begin so are the server's own; a leading wildcard does not see them."""
TOPIC_BYTES_MAX = 65_535
_SHARE = b"$share/"


class TopicError(Exception):
    """The peer named something that is no topic or no filter; the `facts` never hold the name."""

    def __init__(self, reason: str, **facts: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts


class InvalidTopicName(TopicError):
    """Nobody may publish to this name."""


class InvalidTopicFilter(TopicError):
    """The standard does not allow this filter."""


def levels(topic: bytes) -> list[bytes]:
    """Split a topic name or a filter at its separators; empty levels count."""
    return topic.split(SEPARATOR)


def has_wildcard(topic_filter: bytes) -> bool:
    """Say whether a valid filter can match more than the topic of its own name."""
    return ANY_LEVEL in topic_filter or ANY_REST in topic_filter


def matches(topic_filter: bytes, topic: bytes) -> bool:
    """Say whether a filter matches a topic: the rules themselves, as the reference for indexes.

    `+` stands for exactly one level, which may be empty. `#` stands for the level before it
    and for everything below. A filter that begins with either does not match `$…`.
    """
    wanted, given = levels(topic_filter), levels(topic)
    if topic.startswith(RESERVED) and wanted[0] in (ANY_LEVEL, ANY_REST):
        return False
    for depth, level in enumerate(wanted):
        if level == ANY_REST:
            return True
        if depth == len(given) or level not in (ANY_LEVEL, given[depth]):
            return False
    return len(wanted) == len(given)


def split_shared(topic_filter: bytes) -> tuple[bytes, bytes] | None:
    """Return the group and the filter of `$share/group/filter`, or None for an ordinary filter.

    Raises `InvalidTopicFilter` for a `$share` without a group or without a filter.
    """
    if not topic_filter.startswith(_SHARE) and topic_filter != _SHARE[:-1]:
        return None
    group, _, shared = topic_filter[len(_SHARE) :].partition(SEPARATOR)
    if not group or not shared or has_wildcard(group):
        raise InvalidTopicFilter("a shared subscription is $share/group/filter", at=len(_SHARE))
    return group, shared


def check_topic_name(topic: bytes) -> None:
    """Raise `InvalidTopicName` unless a client may publish to this name."""
    if not topic or len(topic) > TOPIC_BYTES_MAX:
        raise InvalidTopicName("empty or too long", size_bytes=len(topic))
    for sign in (ANY_LEVEL, ANY_REST, b"\0"):
        if sign in topic:
            raise InvalidTopicName("holds a wildcard or a NUL", at=topic.index(sign))


def check_topic_filter(topic_filter: bytes) -> None:
    """Raise `InvalidTopicFilter` unless this is a filter, alone or behind `$share/group/`."""
    shared = split_shared(topic_filter)
    inner = topic_filter if shared is None else shared[1]
    if not inner or len(topic_filter) > TOPIC_BYTES_MAX or b"\0" in topic_filter:
        raise InvalidTopicFilter("empty, too long, or with a NUL", size_bytes=len(topic_filter))
    parts = levels(inner)
    for depth, level in enumerate(parts):
        if len(level) > 1 and has_wildcard(level):
            raise InvalidTopicFilter("a wildcard is a level of its own", depth=depth)
        if level == ANY_REST and depth < len(parts) - 1:
            raise InvalidTopicFilter("# is the last level", depth=depth)
