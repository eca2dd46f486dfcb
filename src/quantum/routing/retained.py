"""One value per topic, found by name or by filter, a page at a time.

Theory of operation. The topics are kept in one sorted set, with NUL (which no topic may hold)
in place of the separator. So the order is by levels, and everything at or below a topic is
one run of neighbours. A wildcard lookup leaps through that order: from the key at hand it
works out the least key that could match next, and seeks it. `a/b/#` reads one run. A `+` costs
one or two leaps for each name that its level has, never a walk through what lies below. The
specification's tree by hash of the topic (§5.4) could find names only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from quantum.routing.errors import RoutingMisuse
from quantum.routing.sorted_keys import KeyCursor, SortedKeys
from quantum.topics import ANY_LEVEL, ANY_REST, RESERVED, has_wildcard

V = TypeVar("V")

PAGE_TOPICS = 256
LEAPS_PER_TOPIC = 16
_BELOW = b"\0"
_PAST = b"\1"  # after a key: behind everything below it, and before every other key
_PAST_ALL = b"\xff"  # no UTF-8 holds this byte
_PAST_RESERVED = bytes([RESERVED[0] + 1])


@dataclass(frozen=True, slots=True)
class RetainedChunk(Generic[V]):
    """A part of the matches, in the order of the index."""

    matches: list[tuple[bytes, V]]
    after: bytes | None
    """Where the next page begins, for `match_after`; None when nothing can follow."""


class RetainedIndex(Generic[V]):
    """The retained values of one partition, by topic.

    The order is that of the levels, compared as bytes one by one, and does not depend on how
    the index was filled: replicas page through it alike.
    """

    __slots__ = ("_keys", "_values")

    def __init__(self) -> None:
        self._values: dict[bytes, V] = {}
        self._keys = SortedKeys()

    def __len__(self) -> int:
        """How many topics have a value."""
        return len(self._values)

    def put(self, topic: bytes, value: V) -> V | None:
        """Set a topic's value and return the one replaced."""
        key = _key(topic)
        old = self._values.get(key)
        if old is None and key not in self._values:
            self._keys.add(key)
        self._values[key] = value
        return old

    def delete(self, topic: bytes) -> V | None:
        """Remove a topic and return its value, or None where there was none."""
        key = _key(topic)
        if key not in self._values:
            return None
        self._keys.discard(key)
        return self._values.pop(key)

    def get(self, topic: bytes) -> V | None:
        """Return a topic's value, or None."""
        return self._values.get(_key(topic))

    def items(self) -> Iterator[tuple[bytes, V]]:
        """Walk all topics in order, those of the server (`$…`) too."""
        cursor = KeyCursor(self._keys)
        key = cursor.key()
        while key is not None:
            yield _topic(key), self._values[key]
            key = cursor.step()

    def match(self, topic_filter: bytes) -> Iterator[tuple[bytes, V]]:
        """Walk what a filter matches, holding a page at most.

        The index may change meanwhile: a topic that is there throughout is met exactly once.
        """
        after: bytes | None = b""
        while after is not None:
            page = self.match_after(topic_filter, after, PAGE_TOPICS)
            yield from page.matches
            after = page.after

    def match_after(
        self,
        topic_filter: bytes,
        after_topic: bytes,
        limit: int,
        leaps_max: int | None = None,
    ) -> RetainedChunk[V]:
        """Return up to `limit` matches that come after a topic; begin with the empty one.

        The topic need not be there any more. A page also ends after `leaps_max` leaps, so that
        no single call takes long: it may be short, or empty, and still name where to go on.
        """
        if limit < 1:
            raise RoutingMisuse("a page holds at least one topic", limit=limit)
        if not has_wildcard(topic_filter):
            return self._page_of_one(topic_filter, after_topic)
        leaps = limit * LEAPS_PER_TOPIC if leaps_max is None else leaps_max
        return self._leap(_Pattern(topic_filter), _key(after_topic), limit, leaps)

    def _page_of_one(self, topic: bytes, after_topic: bytes) -> RetainedChunk[V]:
        key = _key(topic)
        if key not in self._values or (after_topic and key <= _key(after_topic)):
            return RetainedChunk([], None)
        return RetainedChunk([(topic, self._values[key])], None)

    def _leap(self, pattern: _Pattern, after: bytes, limit: int, leaps: int) -> RetainedChunk[V]:
        found: list[tuple[bytes, V]] = []
        values = self._values
        cursor = KeyCursor(self._keys)
        key = cursor.seek(after)
        if after and key == after:
            key = cursor.step()
        for _ in range(leaps):
            if key is None:
                return RetainedChunk(found, None)
            target = pattern.next_candidate(key)
            if target is None:
                return RetainedChunk(found, None)
            if target == key:
                run = cursor.take_before(pattern.past_run(key), limit - len(found))
                if not run:  # a name that no client may use, NUL in it: the bound is before it
                    run = [key]
                    cursor.step()
                found += [(_topic(one), values[one]) for one in run]
                after = run[-1]
                if len(found) == limit:
                    break
                key = cursor.key()
            else:
                after = key
                key = cursor.seek(target)
        return RetainedChunk(found, _topic(after))


class _Pattern:
    """A filter, as a way to leap through the keys."""

    __slots__ = ("_depth", "_first_is_wild", "_levels", "_rest")

    def __init__(self, topic_filter: bytes) -> None:
        wanted = topic_filter.split(b"/")
        self._first_is_wild = wanted[0] in (ANY_LEVEL, ANY_REST)
        self._rest = wanted[-1] == ANY_REST
        self._levels = [
            None if level == ANY_LEVEL else level
            for level in (wanted[:-1] if self._rest else wanted)
        ]
        """Literal names, and None for any."""
        self._depth = len(self._levels)

    def next_candidate(self, key: bytes) -> bytes | None:
        """Return the least key from this one on that may match; the key itself if it does."""
        if self._first_is_wild and key[:1] == RESERVED:
            return _PAST_RESERVED
        given = key.split(_BELOW)
        for depth, wanted in enumerate(self._levels):
            if depth == len(given):
                return key + _BELOW + (wanted or b"")
            if wanted is None or wanted == given[depth]:
                continue
            if given[depth] < wanted:
                return _BELOW.join([*given[:depth], wanted])
            return self._past(given, depth)
        if self._rest or len(given) == self._depth:
            return key
        return self._past(given, self._depth)

    def past_run(self, key: bytes) -> bytes:
        """Return a bound for the run of keys that begins with this match: all before it match."""
        if not self._rest:
            return key + _BELOW
        if self._depth == 0:
            return RESERVED if key < RESERVED else _PAST_ALL
        return _BELOW.join(key.split(_BELOW, self._depth)[: self._depth]) + _PAST

    def _past(self, given: list[bytes], depth: int) -> bytes | None:
        """Return the least key behind this name of the deepest free level above `depth`."""
        for free in range(depth - 1, -1, -1):
            if self._levels[free] is None:
                return _BELOW.join(given[: free + 1]) + _PAST
        return None


def _key(topic: bytes) -> bytes:
    return topic.replace(b"/", _BELOW)


def _topic(key: bytes) -> bytes:
    return key.replace(_BELOW, b"/")
