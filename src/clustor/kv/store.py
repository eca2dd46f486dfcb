"""The live keys with their revisions, and what follows from a change to one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clustor.kv.commands import RecordPage
from clustor.kv.events import EventHistory
from clustor.kv.expiry import Expiry
from clustor.kv.fingerprint import fingerprint
from clustor.kv.ordered_keys import OrderedKeys
from clustor.kv.types import Events, EventsCompacted, Key, KvLimits, KvRecord, NotYet, Revision


class Store:
    """Keys, events and expiries, changed one revision at a time.

    `put` and `delete` work at `next_revision`; `commit` makes that the current one.
    Between the two nobody but the command being applied sees the store.
    """

    def __init__(self, limits: KvLimits, revision: Revision, events: EventHistory) -> None:
        self._limits = limits
        self._records: dict[Key, KvRecord] = {}
        self._keys = OrderedKeys()
        self._expiry = Expiry(self._records)
        self._events = events
        # Sum over the live records.
        self._fingerprint_sum = 0
        self.revision = revision
        self.next_revision = Revision(revision + 1)

    @classmethod
    def restored(
        cls, limits: KvLimits, revision: Revision, events: EventHistory, live: Iterable[KvRecord]
    ) -> Store:
        store = cls(limits, revision, events)
        for record in live:
            store._records[record.key] = record
            store._keys.add(record.key)
            store._expiry.on_change(None, record)
            store._fingerprint_sum += fingerprint(record)
        return store

    def use_limits(self, limits: KvLimits) -> None:
        """Keep other limits from the next command on."""
        self._limits = limits
        self._events.use_limits(limits)

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: Key) -> KvRecord | None:
        return self._records.get(key)

    def mod_revision(self, key: Key) -> Revision:
        record = self._records.get(key)
        return record.mod_revision if record is not None else Revision(0)

    def put(self, key: Key, value: bytes, expires_ms: int) -> None:
        before = self._records.get(key)
        now = self.next_revision
        if before is None:
            record = KvRecord(key, value, now, now, 1, expires_ms)
            self._keys.add(key)
        else:
            record = KvRecord(
                key, value, before.create_revision, now, before.version + 1, expires_ms
            )
            self._fingerprint_sum -= fingerprint(before)
        self._records[key] = record
        if expires_ms or (before is not None and before.expires_ms):
            self._expiry.on_change(before, record)
        record_fingerprint = fingerprint(record)
        self._fingerprint_sum += record_fingerprint
        self._events.append(record, record_fingerprint)

    def delete(self, key: Key) -> int:
        """Delete the key if it is there; return how many keys that were."""
        before = self._records.pop(key, None)
        if before is None:
            return 0
        self._keys.remove(key)
        self._expiry.on_change(before, None)
        self._fingerprint_sum -= fingerprint(before)
        tombstone = KvRecord(key, b"", Revision(0), self.next_revision, 0, 0)
        self._events.append(tombstone, fingerprint(tombstone))
        return 1

    def delete_range(self, start: bytes, end: bytes | None) -> int:
        return sum(map(self.delete, list(self._keys.between(start, end))))

    def delete_due(self, now_ms: int, limit: int) -> int:
        """Delete up to `limit` keys whose time has come; return how many."""
        count = 0
        while count < limit and (key := self._expiry.take_due(now_ms)) is not None:
            count += self.delete(key)
        return count

    def has_due(self, now_ms: int) -> bool:
        return self._expiry.has_due(now_ms)

    def next_expiry_ms(self) -> int | None:
        return self._expiry.next_ms()

    def commit(self) -> Revision:
        """Make what was put and deleted since the last commit one revision."""
        self.revision = self.next_revision
        self.next_revision = Revision(self.revision + 1)
        self._events.trim()
        return self.revision

    def page(self, start: bytes, end: bytes | None, limit: int) -> RecordPage:
        """List records by key until a limit ends it; at least one, if `limit` is not 0."""
        records: list[KvRecord] = []
        budget = self._limits.reply_bytes_max
        for key in self._keys.between(start, end):
            record = self._records[key]
            budget -= len(key) + len(record.value)
            if len(records) >= limit or (budget < 0 and records):
                return RecordPage(self.revision, records, more=True)
            records.append(record)
        return RecordPage(self.revision, records, more=False)

    def events_since(
        self, revision: Revision, prefixes: Sequence[bytes], limit: int
    ) -> Events | EventsCompacted | NotYet:
        return self._events.since(revision, prefixes, limit, self.revision)

    def compact(self, revision: Revision) -> Revision:
        """Forget events up to `revision`; return from where a watch can still go on."""
        self._events.compact(revision)
        return self._events.compacted

    @property
    def compacted(self) -> Revision:
        return self._events.compacted

    def fingerprint_sums(self) -> tuple[int, int]:
        """Return the sums over the live records and over the events."""
        return self._fingerprint_sum, self._events.fingerprint_sum

    def events_after(self, revision: Revision) -> list[KvRecord] | None:
        """Return every change after a revision; None where some of them are forgotten."""
        return self._events.after(revision)

    def advance(self, events: Iterable[KvRecord], revision: Revision, compacted: Revision) -> None:
        """Become what another store of the same past became by these changes."""
        for event in events:
            self._take(event)
        self.revision = revision
        self.next_revision = Revision(revision + 1)
        self._events.compact(compacted)

    def _take(self, event: KvRecord) -> None:
        before = self._records.pop(event.key, None)
        if before is not None:
            self._fingerprint_sum -= fingerprint(before)
        after = None if event.is_delete else event
        if after is None:
            if before is not None:
                self._keys.remove(event.key)
        else:
            self._records[event.key] = after
            self._fingerprint_sum += fingerprint(after)
            if before is None:
                self._keys.add(event.key)
        self._expiry.on_change(before, after)
        self._events.append(event, fingerprint(event))

    def frozen(self) -> tuple[list[KvRecord], list[KvRecord]]:
        """Return the live records by key, and the events, as they are now: pointers, no copies."""
        live = [self._records[key] for key in self._keys.between(b"", None)]
        return live, self._events.copy()
