"""The recent past of the store: every put and delete since the last compaction, in order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from clustor.kv.fingerprint import fingerprint
from clustor.kv.types import Events, EventsCompacted, KvLimits, KvRecord, NotYet, Revision

# What an event costs beside its key and value, roughly.
_EVENT_OVERHEAD_BYTES = 128


class EventHistory:
    """Events by revision. Records are shared with the live keys, so a put costs one pointer."""

    def __init__(
        self, limits: KvLimits, compacted: Revision, events: Iterable[KvRecord] = ()
    ) -> None:
        self._limits = limits
        self._events = list(events)
        self._bytes = sum(map(_cost, self._events))
        # Events up to and with this revision are gone; a watch can go on from here.
        self.compacted = compacted
        self.fingerprint_sum = sum(map(fingerprint, self._events))

    def use_limits(self, limits: KvLimits) -> None:
        """Keep other limits from the next command on."""
        self._limits = limits

    def append(self, record: KvRecord, record_fingerprint: int) -> None:
        self._events.append(record)
        self._bytes += len(record.key) + len(record.value) + _EVENT_OVERHEAD_BYTES
        self.fingerprint_sum += record_fingerprint

    def since(
        self, revision: Revision, prefixes: Sequence[bytes], limit: int, current: Revision
    ) -> Events | EventsCompacted | NotYet:
        """Give what happened after `revision` to keys with one of these prefixes (none: all).

        A page also ends once its bytes pass the limit of a reply. Both limits may be passed
        by the events of one revision, so that none is torn apart.
        """
        if revision > current:
            return NotYet(current)
        if revision < self.compacted:
            return EventsCompacted(self.compacted, current)
        wanted = tuple(prefixes) or (b"",)
        found: list[KvRecord] = []
        last = revision
        bytes_left = self._limits.reply_bytes_max
        for position in range(self._position_after(revision), len(self._events)):
            event = self._events[position]
            is_full = len(found) >= limit or bytes_left <= 0
            if is_full and event.mod_revision != last:
                return Events(found, through=last, more=True)
            last = event.mod_revision
            if event.key.startswith(wanted):
                found.append(event)
                bytes_left -= len(event.key) + len(event.value)
        return Events(found, through=current, more=False)

    def compact(self, revision: Revision) -> None:
        """Forget events up to and with `revision`, if they are not forgotten already."""
        if revision <= self.compacted:
            return
        gone = self._events[: self._position_after(revision)]
        del self._events[: len(gone)]
        self._bytes -= sum(map(_cost, gone))
        self.fingerprint_sum -= sum(map(fingerprint, gone))
        self.compacted = revision

    def trim(self) -> None:
        """Keep the limits: past one, forget the oldest revisions down to three quarters of it."""
        limits = self._limits
        if len(self._events) <= limits.events_max and self._bytes <= limits.events_bytes_max:
            return
        surplus = len(self._events) - limits.events_max * 3 // 4
        surplus_bytes = self._bytes - limits.events_bytes_max * 3 // 4
        for event in self._events:
            surplus -= 1
            surplus_bytes -= _cost(event)
            if surplus <= 0 and surplus_bytes <= 0:
                self.compact(event.mod_revision)
                return

    def after(self, revision: Revision) -> list[KvRecord] | None:
        """Return every event after a revision; None where some of them are forgotten."""
        if revision < self.compacted:
            return None
        return self._events[self._position_after(revision) :]

    def copy(self) -> list[KvRecord]:
        return self._events.copy()

    def _position_after(self, revision: Revision) -> int:
        return bisect_right(self._events, revision, key=_mod_revision)


def _mod_revision(event: KvRecord) -> Revision:
    return event.mod_revision


def _cost(event: KvRecord) -> int:
    return len(event.key) + len(event.value) + _EVENT_OVERHEAD_BYTES
