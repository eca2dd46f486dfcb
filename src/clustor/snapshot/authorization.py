"""The authorisation log: which snapshots count, as a chain of hashes (clustor §7.3).

Records have one size, so each has a known place. Every record is made durable before the next
one is written; a damaged stretch at the end is therefore an append that a crash cut short, and
a damaged record with a good one after it is corruption. A compaction waits for the
CompactionAuthAck, which stands *after* the authorisation that it relies on: damage to an
authorisation that a compaction relied on is never mistaken for a torn tail.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import uuid
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, assert_never

from clustor.log.steps import (
    Create,
    MakeDirectory,
    Plan,
    Storage,
    Sync,
    SyncDirectory,
    WriteFile,
    plan_replace,
)
from clustor.log.types import LogIndex, PartitionId, Term
from clustor.snapshot.errors import CorruptAuthorizationLog, SnapshotMisuse
from clustor.snapshot.layout import AUTHORIZATION_LOG, SNAPSHOT_DIRECTORY
from clustor.snapshot.types import AuthSeq, ManifestId, SnapshotKind

_BODY: Final = struct.Struct("<BBHI16s16sQQQQ32s32s")
RECORD_BYTES: Final = _BODY.size + 32
_PAGE_BYTES: Final = RECORD_BYTES * 4096
_VERSION: Final = 1
_KIND_AUTHORIZATION: Final = 1
_KIND_ACKNOWLEDGEMENT: Final = 2
_FLAG_DELTA: Final = 1
_NOTHING: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class SnapshotAuthorizationRecord:
    """From this record on, the snapshot counts."""

    manifest_id: ManifestId
    base_term: Term
    base_index: LogIndex
    generation: int  # of the manifest's directory
    auth_seq: AuthSeq
    manifest_hash: bytes
    parent: ManifestId | None  # None for a full snapshot
    since_full_ms: int  # elapsed since the last full snapshot (clustor §10.7)

    @property
    def snapshot_kind(self) -> SnapshotKind:
        return SnapshotKind.FULL if self.parent is None else SnapshotKind.DELTA


@dataclass(frozen=True, slots=True)
class CompactionAuthAck:
    """From this record on, the log below the snapshot's base may be compacted."""

    manifest_id: ManifestId
    auth_seq: AuthSeq


AuthorizationEntry: TypeAlias = SnapshotAuthorizationRecord | CompactionAuthAck


@dataclass(frozen=True, slots=True)
class AuthorizationLog:
    """What the log says. `size_bytes` ends the last good record; what follows is torn."""

    partition: PartitionId
    entries: tuple[AuthorizationEntry, ...]
    hashes: tuple[bytes, ...]  # of each entry's record, for the chain
    start_hash: bytes  # what the first entry follows: the partition's root, or a trimmed record
    file_exists: bool
    torn_bytes: int = 0
    settled: bool = True  # False after a restart, until `plan_settle` was carried out

    @property
    def size_bytes(self) -> int:
        return len(self.entries) * RECORD_BYTES

    @property
    def tail_hash(self) -> bytes:
        """The hash that the next record carries."""
        return self.hashes[-1] if self.hashes else self.start_hash

    @property
    def next_auth_seq(self) -> AuthSeq:
        return AuthSeq(max((entry.auth_seq for entry in self.entries[-2:]), default=0) + 1)


def root_hash(partition: PartitionId) -> bytes:
    """Return what the very first record of a partition carries as the hash before it."""
    return hashlib.sha256(b"snapshot authorization v1" + partition.to_bytes(8, "little")).digest()


def encode_entry(entry: AuthorizationEntry, previous_hash: bytes) -> bytes:
    """Return the record: its fields, the hash of the record before, and its own hash."""
    match entry:
        case SnapshotAuthorizationRecord():
            body = _BODY.pack(
                _VERSION,
                _KIND_AUTHORIZATION,
                0 if entry.parent is None else _FLAG_DELTA,
                entry.generation,
                uuid.UUID(entry.manifest_id).bytes,
                _NOTHING if entry.parent is None else uuid.UUID(entry.parent).bytes,
                entry.base_term,
                entry.base_index,
                entry.auth_seq,
                entry.since_full_ms,
                entry.manifest_hash,
                previous_hash,
            )
        case CompactionAuthAck():
            manifest = uuid.UUID(entry.manifest_id).bytes
            fields = (0, 0, manifest, _NOTHING, 0, 0, entry.auth_seq, 0, bytes(32), previous_hash)
            body = _BODY.pack(_VERSION, _KIND_ACKNOWLEDGEMENT, *fields)
        case _:
            assert_never(entry)
    return body + hashlib.sha256(body).digest()


def is_whole(record: bytes) -> bool:
    """Say whether a record's own hash matches."""
    if len(record) != RECORD_BYTES:
        return False
    body, found = record[: _BODY.size], record[_BODY.size :]
    return hmac.compare_digest(hashlib.sha256(body).digest(), found)


def decode_entry(record: bytes) -> tuple[AuthorizationEntry, bytes]:
    """Read a record: the entry, and the hash that it carries of the one before.

    Raises CorruptAuthorizationLog for anything that `encode_entry` does not write.
    """
    if not is_whole(record):
        raise CorruptAuthorizationLog("a record's hash does not match", bytes=len(record))
    fields = _BODY.unpack(record[: _BODY.size])
    version, kind, flags, generation, manifest, parent = fields[:6]
    base_term, base_index, auth_seq, since_full_ms, manifest_hash, previous_hash = fields[6:]
    if version != _VERSION or kind not in (_KIND_AUTHORIZATION, _KIND_ACKNOWLEDGEMENT):
        raise CorruptAuthorizationLog("an unknown record", version=version, kind=kind)
    manifest_id = ManifestId(str(uuid.UUID(bytes=manifest)))
    entry: AuthorizationEntry
    if kind == _KIND_ACKNOWLEDGEMENT:
        entry = CompactionAuthAck(manifest_id, AuthSeq(auth_seq))
    else:
        entry = SnapshotAuthorizationRecord(
            manifest_id=manifest_id,
            base_term=Term(base_term),
            base_index=LogIndex(base_index),
            generation=generation,
            auth_seq=AuthSeq(auth_seq),
            manifest_hash=manifest_hash,
            parent=ManifestId(str(uuid.UUID(bytes=parent))) if flags & _FLAG_DELTA else None,
            since_full_ms=since_full_ms,
        )
    if encode_entry(entry, previous_hash) != record:
        raise CorruptAuthorizationLog("fields that no record of its kind has", kind=kind)
    return entry, previous_hash


def read_authorization_log(storage: Storage, partition: PartitionId) -> AuthorizationLog:
    """Read the log and check its chain; a torn tail is measured, not touched."""
    empty = AuthorizationLog(partition, (), (), root_hash(partition), file_exists=False)
    try:
        size = storage.size(AUTHORIZATION_LOG)
    except FileNotFoundError:
        return empty
    records = _records(storage, size)
    good = _good_count(records)
    chain = _Chain(partition)
    for record in records[:good]:
        chain.follow(record)
    return AuthorizationLog(
        partition,
        tuple(chain.entries),
        tuple(chain.hashes),
        chain.start_hash,
        file_exists=True,
        torn_bytes=size - good * RECORD_BYTES,
        settled=False,
    )


def _records(storage: Storage, size: int) -> list[bytes]:
    """Cut the file into records; a shorter last one is kept, and is not whole."""
    records: list[bytes] = []
    for start in range(0, size, _PAGE_BYTES):
        page = storage.read(AUTHORIZATION_LOG, start, _PAGE_BYTES)
        records += [page[at : at + RECORD_BYTES] for at in range(0, len(page), RECORD_BYTES)]
    return records


def _good_count(records: list[bytes]) -> int:
    """Return how many records precede the torn tail; a hole among good ones is corruption."""
    whole = [is_whole(record) for record in records]
    good = whole.index(False) if False in whole else len(whole)
    if any(whole[good:]):
        raise CorruptAuthorizationLog("a damaged record before a good one", record=good)
    return good


class _Chain:
    """Follows the records in order, and checks that each may follow the one before."""

    def __init__(self, partition: PartitionId) -> None:
        self.start_hash = root_hash(partition)
        self.entries: list[AuthorizationEntry] = []
        self.hashes: list[bytes] = []
        self._newest: SnapshotAuthorizationRecord | None = None

    def follow(self, record: bytes) -> None:
        entry, previous_hash = decode_entry(record)
        self._check_hash(entry, previous_hash)
        self._check_sequence(entry)
        self.entries.append(entry)
        self.hashes.append(record[_BODY.size :])
        if isinstance(entry, SnapshotAuthorizationRecord):
            self._newest = entry

    def _check_hash(self, entry: AuthorizationEntry, previous_hash: bytes) -> None:
        if not self.entries and entry.auth_seq > 1:
            self.start_hash = previous_hash  # the records before were trimmed
        expected = self.hashes[-1] if self.hashes else self.start_hash
        if not hmac.compare_digest(previous_hash, expected):
            raise CorruptAuthorizationLog("the hash chain is broken", record=len(self.entries))

    def _check_sequence(self, entry: AuthorizationEntry) -> None:
        newest = self._newest
        match entry:
            case SnapshotAuthorizationRecord():
                follows = newest is None or entry.auth_seq == newest.auth_seq + 1
            case CompactionAuthAck():
                follows = newest is not None and (entry.auth_seq, entry.manifest_id) == (
                    newest.auth_seq,
                    newest.manifest_id,
                )
            case _:
                assert_never(entry)
        if not follows:
            raise CorruptAuthorizationLog(
                "a record out of sequence", record=len(self.entries), auth_seq=entry.auth_seq
            )


def plan_settle(log: AuthorizationLog) -> tuple[Plan, AuthorizationLog]:
    """Plan what must precede every change after a restart: what was read becomes durable.

    A process that is killed leaves records which readers see and the disk does not have yet; a
    snapshot that is deleted because of such a record could be missed after a power cut. The log
    is written anew rather than synced: after a failed sync the kernel may hold its pages for
    clean, and another sync would promise what is not there. A torn tail is left behind.
    """
    if log.settled:
        return (), log
    data = _encode_all(log.entries, log.start_hash)
    plan = (*plan_replace(AUTHORIZATION_LOG, data), SyncDirectory(""))
    return plan, replace(log, torn_bytes=0, settled=True)


def _encode_all(entries: tuple[AuthorizationEntry, ...], previous_hash: bytes) -> bytes:
    data = bytearray()
    for entry in entries:
        record = encode_entry(entry, previous_hash)
        previous_hash = record[_BODY.size :]
        data += record
    return bytes(data)


def require_settled(log: AuthorizationLog) -> None:
    if not log.settled:
        raise SnapshotMisuse("settle the catalog first", torn_bytes=log.torn_bytes)


def plan_append_entry(
    log: AuthorizationLog, entry: AuthorizationEntry
) -> tuple[Plan, AuthorizationLog]:
    """Plan one durable record, and say what the log is once the plan is carried out."""
    require_settled(log)
    record = encode_entry(entry, log.tail_hash)
    write: Plan = (WriteFile(AUTHORIZATION_LOG, log.size_bytes, record), Sync(AUTHORIZATION_LOG))
    if not log.file_exists:
        make: Plan = (MakeDirectory(SNAPSHOT_DIRECTORY), Create(AUTHORIZATION_LOG))
        write = (*make, *write, SyncDirectory(SNAPSHOT_DIRECTORY), SyncDirectory(""))
    after = replace(
        log,
        entries=(*log.entries, entry),
        hashes=(*log.hashes, record[_BODY.size :]),
        file_exists=True,
    )
    return write, after


def plan_trim(log: AuthorizationLog, oldest: AuthSeq) -> tuple[Plan, AuthorizationLog]:
    """Plan to forget the records before `oldest`, atomically; the chain goes on from there."""
    require_settled(log)
    first = next((n for n, entry in enumerate(log.entries) if entry.auth_seq >= oldest), None)
    if not first:  # nothing to forget, or nothing that would remain
        return (), log
    start_hash = log.hashes[first - 1]
    kept = log.entries[first:]
    data = _encode_all(kept, start_hash)
    after = replace(log, entries=kept, hashes=log.hashes[first:], start_hash=start_hash)
    return plan_replace(AUTHORIZATION_LOG, data), after
