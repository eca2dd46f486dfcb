"""A naive store: one dict, every event ever, every scan a full one. The machine must agree."""

from __future__ import annotations

import copy
from itertools import permutations
from typing import assert_never

from clustor.kv import (
    CasRevision,
    CasValue,
    Command,
    Compact,
    CompactedTo,
    Conflict,
    Delete,
    Deleted,
    DeleteRange,
    ErrorCode,
    Expire,
    Expired,
    Found,
    Get,
    KvRecord,
    KvRefused,
    KvWritten,
    Put,
    ReadRange,
    RecordPage,
    Reply,
    Revision,
    RevisionIs,
    Txn,
    TxnConflict,
    TxnDelete,
    TxnDeleteRange,
    TxnDone,
    TxnGet,
    TxnOperation,
    TxnPut,
)


class NaiveStore:
    """Says what each command should answer, with no thought of cost. Valid commands only."""

    def __init__(self) -> None:
        self.records: dict[bytes, KvRecord] = {}
        self.events: list[KvRecord] = []
        self.revision = Revision(0)
        self.compacted = Revision(0)
        self.now_ms = 0
        self.seen: dict[bytes, tuple[int, Reply]] = {}

    def reply(self, command: Command) -> Reply:
        if isinstance(command, Get | ReadRange) or not command.client_id:
            return self._execute(command)
        last, reply = self.seen.get(command.client_id, (0, None))
        if command.sequence == last and reply is not None:
            return reply
        if reply is None and command.sequence != 1:
            return KvRefused(ErrorCode.CLIENT_UNKNOWN, command.sequence, 1)
        if command.sequence < last:
            return KvRefused(ErrorCode.SEQUENCE_TOO_OLD, command.sequence, last)
        reply = self._execute(command)
        self.seen[command.client_id] = (command.sequence, reply)
        return reply

    def events_after(self, revision: int, prefix: bytes) -> list[KvRecord]:
        return [e for e in self.events if e.mod_revision > revision and e.key.startswith(prefix)]

    def _execute(self, command: Command) -> Reply:
        if not isinstance(command, Get | ReadRange):
            self.now_ms = max(self.now_ms, command.now_ms)
        match command:
            case Get(key=key):
                return Found(self.revision, self.records.get(key))
            case ReadRange(start=start, end=end, limit=limit):
                keys = self._keys(start, end)
                page = [self.records[key] for key in keys[:limit]]
                return RecordPage(self.revision, page, len(keys) > limit)
            case Put():
                return self._written(command)
            case CasRevision():
                if self._mod(command.key) != command.expected:
                    return Conflict(self.revision, self._mod(command.key))
                return self._written(command)
            case CasValue():
                if self._value(command.key) != command.expected:
                    return Conflict(self.revision, self._mod(command.key))
                return self._written(command)
            case Delete(key=key):
                return self._deleted([key] if key in self.records else [])
            case DeleteRange(start=start, end=end):
                return self._deleted(self._keys(start, end))
            case Txn():
                return self._txn(command)
            case Compact(revision=revision):
                if revision > self.revision:
                    return KvRefused(ErrorCode.FUTURE_REVISION, revision, self.revision)
                self.compacted = max(self.compacted, Revision(revision))
                return CompactedTo(self.revision, self.compacted)
            case Expire(limit=limit):
                due = sorted(
                    (record.expires_ms, key)
                    for key, record in self.records.items()
                    if 0 < record.expires_ms <= self.now_ms
                )
                deleted = self._deleted([key for _, key in due[:limit]])
                return Expired(deleted.revision, deleted.count, len(due) > limit)
            case _:
                assert_never(command)

    def _keys(self, start: bytes, end: bytes | None) -> list[bytes]:
        return sorted(k for k in self.records if k >= start and (end is None or k < end))

    def _mod(self, key: bytes) -> Revision:
        return self.records[key].mod_revision if key in self.records else Revision(0)

    def _value(self, key: bytes) -> bytes | None:
        return self.records[key].value if key in self.records else None

    def _put(self, command: Put | CasRevision | CasValue | TxnPut) -> None:
        old = self.records.get(command.key)
        now = Revision(self.revision + 1)
        record = KvRecord(
            key=command.key,
            value=command.value,
            create_revision=old.create_revision if old else now,
            mod_revision=now,
            version=old.version + 1 if old else 1,
            expires_ms=self.now_ms + command.ttl_ms if command.ttl_ms else 0,
        )
        self.records[command.key] = record
        self.events.append(record)

    def _written(self, command: Put | CasRevision | CasValue) -> Reply:
        self._put(command)
        self.revision = Revision(self.revision + 1)
        return KvWritten(self.revision)

    def _remove(self, keys: list[bytes]) -> int:
        for key in keys:
            record = self.records.pop(key)
            now = Revision(self.revision + 1)
            self.events.append(KvRecord(record.key, b"", Revision(0), now, 0, 0))
        return len(keys)

    def _deleted(self, keys: list[bytes]) -> Deleted:
        count = self._remove(keys)
        self.revision = Revision(self.revision + bool(count))
        return Deleted(self.revision, count)

    def _txn(self, command: Txn) -> Reply:
        if any(_collide(one, other) for one, other in permutations(command.operations, 2)):
            return KvRefused(ErrorCode.OVERLAPPING_OPERATIONS)
        for position, comparison in enumerate(command.comparisons):
            if isinstance(comparison, RevisionIs):
                holds = comparison.revision == self._mod(comparison.key)
            else:
                holds = comparison.value == self._value(comparison.key)
            if not holds:
                return TxnConflict(self.revision, position, self._mod(comparison.key))
        before = copy.copy(self.records)
        events_before = len(self.events)
        results: list[KvRecord | int | None] = []
        for operation in command.operations:
            match operation:
                case TxnGet(key=key):
                    results.append(before.get(key))
                case TxnPut():
                    self._put(operation)
                    results.append(None)
                case TxnDelete(key=key):
                    results.append(self._remove([key] if key in self.records else []))
                case TxnDeleteRange(start=start, end=end):
                    results.append(self._remove(self._keys(start, end)))
        self.revision = Revision(self.revision + (len(self.events) > events_before))
        return TxnDone(self.revision, results)


def _collide(one: TxnOperation, other: TxnOperation) -> bool:
    """Both could write one key. Two ranges may overlap: the second finds less to delete."""
    if not isinstance(one, TxnPut | TxnDelete):
        return False
    match other:
        case TxnPut(key=key) | TxnDelete(key=key):
            return key == one.key
        case TxnDeleteRange(start=start, end=end):
            return start <= one.key and (end is None or one.key < end)
        case TxnGet():
            return False
