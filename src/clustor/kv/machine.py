"""The replicated key-value state machine: committed bytes in, reply bytes out.

Equal commands in equal order give equal replies, equal state and equal snapshots, on every
replica: there is no clock, no chance and no I/O here, and no byte string makes it raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

import msgspec
from xxhash import xxh3_128_digest

from clustor.kv import delta, snapshot
from clustor.kv.clients import ClientTable
from clustor.kv.commands import (
    CasRevision,
    CasValue,
    Command,
    Compact,
    CompactedTo,
    Conflict,
    Delete,
    Deleted,
    DeleteRange,
    Expire,
    Expired,
    Found,
    Get,
    KvRefused,
    KvWritten,
    Put,
    ReadRange,
    RecordPage,
    Reply,
    Txn,
    WriteCommand,
    decode_command,
    decode_reply,
    encode_reply,
)
from clustor.kv.definition import decode_definition
from clustor.kv.errors import KvMisuse, SnapshotRefused
from clustor.kv.events import EventHistory
from clustor.kv.store import Store
from clustor.kv.transaction import apply_txn
from clustor.kv.types import (
    ErrorCode,
    Events,
    EventsCompacted,
    Key,
    KvLimits,
    KvRecord,
    NotYet,
    Revision,
    StoreId,
)
from clustor.kv.validation import refuse_key, refuse_write

_MARKS_MAX = 8  # more snapshots than can be under way, or fail, in a row
_MALFORMED = encode_reply(KvRefused(ErrorCode.MALFORMED))


class KvMachine:
    """One replica's copy of a store."""

    def __init__(self, store_id: StoreId, limits: KvLimits | None = None) -> None:
        self._store_id = store_id
        self._limits = limits or KvLimits()
        snapshot.require_storable(self._limits)
        events = EventHistory(self._limits, Revision(0))
        self._store = Store(self._limits, Revision(0), events)
        self._clients = ClientTable(self._limits)
        # The latest stamp seen. A leader whose clock is behind does not turn time back.
        self._now_ms = 0
        self._applied_index = 0
        self._marks: dict[int, delta.KvMark] = {}  # by what the caller calls them, oldest first

    # --- what is replicated -----------------------------------------------------------------

    def apply(self, index: int, command: bytes) -> bytes:
        """Apply the committed entry at `index`, and return the bytes of its `Reply`.

        Bytes that are no command are answered with MALFORMED and change nothing. Raises
        KvMisuse if the index is not above the last one: that entry is in the state already.
        """
        self.advance(index)
        return self.execute(command)

    def apply_batch(self, index: int, commands: Sequence[bytes]) -> list[bytes]:
        """Apply the commands of one committed entry, in order; one reply for each."""
        self.advance(index)
        return [self.execute(command) for command in commands]

    # A machine that embeds this one works with these three: one entry is one `advance`, then
    # any mixture of commands that are passed through and changes of its own.

    def advance(self, index: int) -> None:
        """Begin the committed entry at `index`; raises KvMisuse as `apply` does."""
        if index <= self._applied_index:
            raise KvMisuse("applied already", index=index, applied_index=self._applied_index)
        self._applied_index = index

    def change(self, changes: Mapping[Key, bytes | None], now_ms: int) -> Revision:
        """Put (or, with None, delete) keys at one revision, if that changes anything.

        The limits of commands are not asked: whoever embeds this machine keeps its own.
        """
        self._now_ms = max(self._now_ms, now_ms)
        changed = False
        for key, value in changes.items():
            if value is None:
                changed = self._store.delete(key) > 0 or changed
            else:
                self._store.put(key, value, 0)
                changed = True
        return self._store.commit() if changed else self._store.revision

    def execute(self, encoded: bytes) -> bytes:
        """Apply one command of the entry that was begun, and return the bytes of its `Reply`."""
        try:
            command = decode_command(encoded)
        # How deep is too deep depends on the caller's stack, but no command nests that far:
        # both ways end in the same reply.
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _MALFORMED
        if isinstance(command, Get | ReadRange) or not command.client_id:
            return encode_reply(self._execute(command))
        return self._apply_once(command)

    def read(self, encoded: bytes) -> bytes:
        """Answer a `Get` or a `ReadRange` from the state as it is; nothing changes."""
        try:
            command = decode_command(encoded)
        except (msgspec.DecodeError, RecursionError):
            return _MALFORMED
        if not isinstance(command, Get | ReadRange):
            return _MALFORMED
        return encode_reply(self._execute(command))

    def _apply_once(self, command: WriteCommand) -> bytes:
        known = self._clients.known_reply(command.client_id, command.sequence)
        if known is not None:
            return known
        reply = encode_reply(self._execute(command))
        self._clients.remember(command.client_id, command.sequence, reply)
        return reply

    def _execute(self, command: Command) -> Reply:
        if not isinstance(command, Get | ReadRange) and command.now_ms > self._now_ms:
            self._now_ms = command.now_ms
        match command:
            case Put():
                return self._on_put(command)
            case Get():
                return self._on_get(command)
            case CasRevision():
                return self._on_cas_revision(command)
            case CasValue():
                return self._on_cas_value(command)
            case Delete():
                return self._on_delete(command)
            case ReadRange(start=start, end=end, limit=limit):
                return self._store.page(start, end, limit)
            case DeleteRange():
                return self._on_delete_range(command)
            case Txn():
                return apply_txn(self._store, self._limits, command, self._now_ms)
            case Compact():
                return self._on_compact(command)
            case Expire():
                return self._on_expire(command)
            case _:
                assert_never(command)

    def _on_get(self, command: Get) -> Reply:
        refused = refuse_key(self._limits, command.key)
        if refused is not None:
            return refused
        return Found(self._store.revision, self._store.get(command.key))

    def _on_put(self, command: Put) -> Reply:
        refused = refuse_write(self._limits, command.key, command.value)
        return refused or self._write(command)

    def _on_cas_revision(self, command: CasRevision) -> Reply:
        refused = refuse_write(self._limits, command.key, command.value)
        if refused is not None:
            return refused
        current = self._store.mod_revision(command.key)
        if current != command.expected:
            return Conflict(self._store.revision, current)
        return self._write(command)

    def _on_cas_value(self, command: CasValue) -> Reply:
        refused = refuse_write(self._limits, command.key, command.value)
        if refused is not None:
            return refused
        record = self._store.get(command.key)
        if command.expected != (None if record is None else record.value):
            return Conflict(self._store.revision, self._store.mod_revision(command.key))
        return self._write(command)

    def _write(self, command: Put | CasRevision | CasValue) -> KvWritten:
        expires_ms = self._now_ms + command.ttl_ms if command.ttl_ms else 0
        self._store.put(command.key, command.value, expires_ms)
        return KvWritten(self._store.commit())

    def _on_delete(self, command: Delete) -> Reply:
        refused = refuse_key(self._limits, command.key)
        return refused or self._deleted(self._store.delete(command.key))

    def _on_delete_range(self, command: DeleteRange) -> Deleted:
        return self._deleted(self._store.delete_range(command.start, command.end))

    def _deleted(self, count: int) -> Deleted:
        return Deleted(self._store.commit() if count else self._store.revision, count)

    def _on_compact(self, command: Compact) -> Reply:
        revision = self._store.revision
        if command.revision > revision:
            return KvRefused(ErrorCode.FUTURE_REVISION, command.revision, revision)
        return CompactedTo(revision, self._store.compact(Revision(command.revision)))

    def _on_expire(self, command: Expire) -> Expired:
        count = self._store.delete_due(self._now_ms, command.limit)
        revision = self._store.commit() if count else self._store.revision
        return Expired(revision, count, self._store.has_due(self._now_ms))

    # --- what is asked of this replica alone --------------------------------------------------

    @property
    def store_id(self) -> StoreId:
        return self._store_id

    @property
    def limits(self) -> KvLimits:
        return self._limits

    @property
    def revision(self) -> Revision:
        return self._store.revision

    @property
    def compacted_revision(self) -> Revision:
        """The oldest revision from which a watch can go on."""
        return self._store.compacted

    @property
    def now_ms(self) -> int:
        """The latest stamp that was seen."""
        return self._now_ms

    @property
    def applied_index(self) -> int:
        return self._applied_index

    def __len__(self) -> int:
        return len(self._store)

    def get(self, key: Key) -> KvRecord | None:
        """Return the live record of a key, as of the current revision."""
        return self._store.get(key)

    def range(self, start: bytes, end: bytes | None, limit: int) -> RecordPage:
        """List records from `start` up to, not with, `end`, as of the current revision."""
        return self._store.page(start, end, limit)

    def events_since(
        self, revision: Revision, prefixes: Sequence[bytes] = (), *, limit: int
    ) -> Events | EventsCompacted | NotYet:
        """Give what happened after `revision` to keys with one of these prefixes (none: all)."""
        return self._store.events_since(revision, prefixes, limit)

    def next_expiry_ms(self) -> int | None:
        """Say from which stamp on an Expire would delete something; None if nothing expires."""
        return self._store.next_expiry_ms()

    def digest(self) -> bytes:
        """Return 16 bytes that are equal for equal state, in O(1).

        State is all that later replies depend on, but for the order in which clients would
        be forgotten; `applied_index` is not part of it.
        """
        live, events = self._store.fingerprint_sums()
        parts = (
            self._store_id,
            self._limits,
            self._store.revision,
            self._store.compacted,
            self._now_ms,
            *(total % 2**64 for total in (live, events, self._clients.fingerprint_sum)),
        )
        return xxh3_128_digest(msgspec.msgpack.encode(parts))

    def snapshot(self) -> Iterator[bytes]:
        """Give the state of this moment in chunks of at most 1 MiB.

        What is applied while the chunks are taken does not show in them. Beyond one chunk
        this holds a pointer per key and event, no copy of a value.
        """
        live, events = self._store.frozen()
        header = snapshot.KvSnapshotHeader(
            version=snapshot.VERSION,
            store_id=self._store_id,
            limits=self._limits,
            revision=self._store.revision,
            compacted=self._store.compacted,
            now_ms=self._now_ms,
            applied_index=self._applied_index,
        )
        return snapshot.encode(snapshot.KvSnapshotState(header, live, events, self._clients.copy()))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Become what the snapshot says, its identity and limits included.

        Raises SnapshotRefused, and is unchanged, if the snapshot is not whole and intact.
        """
        state = snapshot.decode(chunks)
        header = state.header
        events = EventHistory(header.limits, header.compacted, state.events)
        self._store = Store.restored(header.limits, header.revision, events, state.live)
        self._clients = ClientTable(header.limits, state.clients)
        self._store_id = header.store_id
        self._limits = header.limits
        self._now_ms = header.now_ms
        self._applied_index = header.applied_index
        self._marks = {}

    def begin_anew(self, store_id: StoreId) -> None:
        """Be another history from here on, of the same records: who watched lists anew."""
        self._store_id = store_id
        self._marks = {}

    # --- definitions ------------------------------------------------------------------------

    def redefine(self, index: int, definition: bytes) -> None:
        """Apply the committed activation at `index`: from here on other limits hold.

        A definition that this version cannot keep changes nothing, on every replica.
        """
        self.advance(index)
        self.adopt(definition)

    def adopt(self, definition: bytes) -> bool:
        """Take a definition's limits into use; False: it is none of this machine."""
        limits = decode_definition(definition)
        if limits is None:
            return False
        self._limits = limits
        self._store.use_limits(limits)
        self._clients.use_limits(limits)
        self._marks = {}  # a delta carries no limits: the next snapshot is a full one
        return True

    def is_defined_by(self, definition: bytes) -> bool:
        """Say whether a definition is in force; one that is unusable never is."""
        return decode_definition(definition) == self._limits

    def misfits(self) -> tuple[int, int]:
        """Count the live records that could not be written now, and all live records."""
        live, _ = self._store.frozen()
        bad = sum(refuse_write(self._limits, each.key, each.value) is not None for each in live)
        return bad, len(live)

    @staticmethod
    def is_refusal(reply: bytes) -> bool:
        """Say whether a reply of this machine refuses what was asked."""
        return isinstance(decode_reply(reply), KvRefused)

    # --- deltas -----------------------------------------------------------------------------

    def mark(self, base_index: int) -> None:
        """Remember this moment under its index: a delta can begin at it.

        The oldest of a few is forgotten.
        """
        mark = delta.KvMark(self._applied_index, self._store.revision, self._clients.stamp)
        self._marks.pop(base_index, None)
        self._marks[base_index] = mark
        if len(self._marks) > _MARKS_MAX:
            del self._marks[next(iter(self._marks))]

    def delta(self, base_index: int) -> Iterator[bytes] | None:
        """Give what changed since the mark of this index; None where nobody knows any more.

        What is applied while the pieces are taken does not show in them.
        """
        mark = self._marks.get(base_index)
        events = None if mark is None else self._store.events_after(mark.revision)
        if mark is None or events is None:
            return None
        entries = self._clients.since(mark.client_stamp)
        header = delta.KvDeltaHeader(
            version=delta.VERSION,
            store_id=self._store_id,
            since_index=mark.applied_index,
            since_revision=mark.revision,
            applied_index=self._applied_index,
            revision=self._store.revision,
            compacted=self._store.compacted,
            now_ms=self._now_ms,
            clients=len(self._clients),
            events=len(events),
            entries=len(entries),
        )
        return delta.encode(delta.Delta(header, events, entries))

    def restore_delta(self, chunks: Iterable[bytes]) -> None:
        """Go on from the state that a delta begins at to the one that it ends with.

        Raises SnapshotRefused, and is unchanged, where it is not whole or begins elsewhere.
        """
        found = delta.decode(chunks)
        header = found.header
        mine = (self._store_id, self._applied_index, self._store.revision)
        if (header.store_id, header.since_index, header.since_revision) != mine:
            raise SnapshotRefused("a delta of another state", since_index=header.since_index)
        self._store.advance(found.events, header.revision, header.compacted)
        self._clients.merge(found.entries, header.clients)
        self._now_ms = header.now_ms
        self._applied_index = header.applied_index
