"""The durability ledger: what this disk can prove (clustor §7.1, §10.5, rulings C16 and C17).

`wal/durability.log` is a row of 64-byte records, so that none straddles a sector:

    kind:u8 io_writer_mode:u8 nth_in_write:u16 durability_mode_epoch:u32 record_seq:u64
    body:44
    crc32c:u32

`record_seq` counts from 0 without a gap. `nth_in_write` numbers the records of one write, which
become durable together: it tells a write that a crash tore (its later records may be there and
its earlier ones not) from a record that was durable and has since been damaged.

Damage to the very last write cannot be told from a torn one. Each kind of record bears that: a
proof is found again by reading the log, a lost reservation costs nothing because a start never
goes on in an old segment, and what could not be found again (a truncation, a change of mode)
is written twice. A record of a torn write that can be read is believed: what it says is true by
the time it is written, or is what was about to be done.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias, assert_never

from crc32c import crc32c

from clustor.log.errors import ChecksumMismatch, UnsupportedFormat
from clustor.log.segment import WAL_DIRECTORY
from clustor.log.steps import FileName
from clustor.log.types import (
    BlockCounter,
    DurabilityMode,
    DurabilityModeEpoch,
    IoWriterMode,
    LogId,
    LogIndex,
    PartitionId,
    SegmentSeq,
    Term,
)

LEDGER_FILE: Final = FileName(f"{WAL_DIRECTORY}/durability.log")
RECORD_BYTES: Final = 64

_RECORD: Final = struct.Struct("<BBHIQ44s")
_CRC: Final = struct.Struct("<I")
_FORMAT_VERSION: Final = 1


class _Kind(IntEnum):
    HEAD = 1
    DURABILITY = 2
    NONCE_RANGE = 3
    NONCE_ABANDON = 4
    TRANSITION = 5
    TRUNCATION = 6
    BASE = 7


class AbandonReason(IntEnum):
    """Why counters that were reserved will never be used."""

    RESTART = 1  # a crash may have used any of them: the segment was closed by the next start
    SEALED = 2  # the segment was closed before they were needed


@dataclass(frozen=True, slots=True)
class LedgerIdentity:
    """Whose log and whose ledger this is."""

    partition: PartitionId
    log_id: LogId


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """Always the first record. The first `head_records` came by a rename and are never torn."""

    identity: LedgerIdentity
    head_records: int


@dataclass(slots=True)
class DurabilityRecord:
    """Every entry through `index` is durable; the last of them stands in `segment_seq`."""

    term: Term
    index: LogIndex
    segment_seq: SegmentSeq


@dataclass(frozen=True, slots=True)
class NonceReservationRange:
    """These counters may be used from now on, and were not before."""

    segment_seq: SegmentSeq
    start_block_counter: BlockCounter
    reserved_blocks: int


@dataclass(frozen=True, slots=True)
class NonceReservationAbandon:
    """No counter of this segment from `from_block_counter` to its reserved end will be used."""

    segment_seq: SegmentSeq
    from_block_counter: BlockCounter
    reason: AbandonReason


@dataclass(frozen=True, slots=True)
class DurabilityTransition:
    """From this entry on, the log runs in `to_mode`, under the epoch in the record's head."""

    term: Term
    index: LogIndex
    from_mode: DurabilityMode
    to_mode: DurabilityMode


@dataclass(frozen=True, slots=True)
class Truncation:
    """Entries from `from_index` on that were written before this position are void (C17).

    It is durable before anything is written over them. The position is the counter that the
    next run of the segment would take: what stands before it is older than the truncation.
    """

    from_index: LogIndex
    segment_seq: SegmentSeq
    next_block_counter: BlockCounter

    @property
    def position(self) -> tuple[int, int]:
        """Runs before this position are older than the truncation."""
        return (self.segment_seq, self.next_block_counter)


@dataclass(frozen=True, slots=True)
class LogBase:
    """The log starts behind `base_index`, in this segment; whatever older ones hold is void.

    Compaction and the installation of a snapshot both come down to this. It is durable before
    any file is deleted, so that recovery can tell a deleted segment from a lost one.
    """

    base_term: Term
    base_index: LogIndex
    segment_seq: SegmentSeq


LedgerBody: TypeAlias = (
    LedgerHead
    | DurabilityRecord
    | NonceReservationRange
    | NonceReservationAbandon
    | DurabilityTransition
    | Truncation
    | LogBase
)


@dataclass(slots=True)
class LedgerRecord:
    """A body with its place in the ledger and what holds for every record."""

    record_seq: int
    nth_in_write: int
    io_writer_mode: IoWriterMode
    durability_mode_epoch: DurabilityModeEpoch
    body: LedgerBody


def encode_record(record: LedgerRecord) -> bytes:
    kind, body = _encode_body(record.body)
    head = _RECORD.pack(
        kind,
        record.io_writer_mode,
        record.nth_in_write,
        record.durability_mode_epoch,
        record.record_seq,
        body,
    )
    return head + _CRC.pack(crc32c(head))


def encode_proof(
    record_seq: int,
    nth_in_write: int,
    io_writer_mode: int,
    durability_mode_epoch: int,
    proof: DurabilityRecord,
) -> bytes:
    """Encode what nearly every record is, in one call: the same bytes as `encode_record`."""
    head = _PROOF.pack(
        _PROOF_KIND,
        io_writer_mode,
        nth_in_write,
        durability_mode_epoch,
        record_seq,
        proof.term,
        proof.index,
        proof.segment_seq,
    )
    return head + _CRC.pack(crc32c(head))


def decode_record(data: bytes) -> LedgerRecord:
    """Decode 64 bytes. Raises ChecksumMismatch, or UnsupportedFormat for a later kind."""
    if len(data) != RECORD_BYTES or _CRC.unpack_from(data, 60)[0] != crc32c(data[:60]):
        raise ChecksumMismatch("a ledger record's CRC does not match")
    kind, mode, nth, epoch, seq, body = _RECORD.unpack_from(data)
    try:
        return LedgerRecord(
            record_seq=seq,
            nth_in_write=nth,
            io_writer_mode=IoWriterMode(mode),
            durability_mode_epoch=DurabilityModeEpoch(epoch),
            body=_decode_body(_Kind(kind), body),
        )
    except ValueError as error:
        raise UnsupportedFormat("unknown ledger record", kind=kind, io_writer_mode=mode) from error


_HEAD: Final = struct.Struct("<IQ16sI")
_THREE: Final = struct.Struct("<QQQ")
_PROOF: Final = struct.Struct("<BBHIQQQQ20x")
_PROOF_KIND: Final = int(_Kind.DURABILITY)
_ABANDON: Final = struct.Struct("<QQB")
_TRANSITION: Final = struct.Struct("<QQBB")


def _encode_body(body: LedgerBody) -> tuple[_Kind, bytes]:
    match body:
        case DurabilityRecord(term, index, segment_seq):
            return _Kind.DURABILITY, _THREE.pack(term, index, segment_seq)
        case NonceReservationRange(segment_seq, start, blocks):
            return _Kind.NONCE_RANGE, _THREE.pack(segment_seq, start, blocks)
        case NonceReservationAbandon(segment_seq, start, reason):
            return _Kind.NONCE_ABANDON, _ABANDON.pack(segment_seq, start, reason)
        case DurabilityTransition(term, index, from_mode, to_mode):
            return _Kind.TRANSITION, _TRANSITION.pack(term, index, from_mode, to_mode)
        case Truncation(from_index, segment_seq, counter):
            return _Kind.TRUNCATION, _THREE.pack(from_index, segment_seq, counter)
        case LogBase(base_term, base_index, segment_seq):
            return _Kind.BASE, _THREE.pack(base_term, base_index, segment_seq)
        case LedgerHead(identity, head_records):
            return _Kind.HEAD, _HEAD.pack(
                _FORMAT_VERSION, identity.partition, identity.log_id, head_records
            )
        case _:
            assert_never(body)


def _decode_body(kind: _Kind, body: bytes) -> LedgerBody:
    match kind:
        case _Kind.DURABILITY:
            term, index, segment_seq = _THREE.unpack_from(body)
            return DurabilityRecord(Term(term), LogIndex(index), SegmentSeq(segment_seq))
        case _Kind.NONCE_RANGE:
            segment_seq, start, blocks = _THREE.unpack_from(body)
            return NonceReservationRange(SegmentSeq(segment_seq), BlockCounter(start), blocks)
        case _Kind.NONCE_ABANDON:
            segment_seq, start, reason = _ABANDON.unpack_from(body)
            return NonceReservationAbandon(
                SegmentSeq(segment_seq), BlockCounter(start), AbandonReason(reason)
            )
        case _Kind.TRANSITION:
            term, index, before, after = _TRANSITION.unpack_from(body)
            return DurabilityTransition(
                Term(term), LogIndex(index), DurabilityMode(before), DurabilityMode(after)
            )
        case _Kind.TRUNCATION:
            from_index, segment_seq, counter = _THREE.unpack_from(body)
            return Truncation(LogIndex(from_index), SegmentSeq(segment_seq), BlockCounter(counter))
        case _Kind.BASE:
            base_term, base_index, segment_seq = _THREE.unpack_from(body)
            return LogBase(Term(base_term), LogIndex(base_index), SegmentSeq(segment_seq))
        case _Kind.HEAD:
            version, partition, log_id, head_records = _HEAD.unpack_from(body)
            if version != _FORMAT_VERSION:
                raise UnsupportedFormat("a ledger of a later release", version=version)
            return LedgerHead(LedgerIdentity(PartitionId(partition), LogId(log_id)), head_records)
        case _:
            assert_never(kind)


@dataclass(frozen=True, slots=True)
class LedgerScan:
    """What a ledger file says, and how far it can be believed."""

    records: tuple[LedgerRecord, ...]  # in order; only a torn last write leaves gaps
    good_bytes: int  # where the last of them ends
    torn: bool  # the last write did not finish, or the end of the file is not as we leave it
    damaged_at: int | None  # offset of a record that was durable once and no longer reads


def scan_ledger(data: bytes) -> LedgerScan:
    """Read a ledger file, telling a torn last write from damage to what was durable.

    An unreadable record is damage if a later *write* follows it, since a write starts only after
    the one before it was synced, or if it is among those that came by a rename. Nothing is
    dropped in that case.
    """
    slots = len(data) // RECORD_BYTES
    records: list[LedgerRecord] = []
    while len(records) < slots and (record := _readable(data, len(records))) is not None:
        records.append(record)
    missing = len(records)
    later = [record for nth in range(missing + 1, slots) if (record := _readable(data, nth))]
    damaged = missing < _head_records(records) or any(
        record.record_seq - record.nth_in_write > missing for record in later
    )
    if not damaged:
        records += later
    good_bytes = (records[-1].record_seq + 1) * RECORD_BYTES if records else 0
    rest = data[good_bytes:]
    # At rest a ledger ends in zeros: one that ends in a record was cut short.
    torn = bool(later) or any(rest) or len(rest) < RECORD_BYTES
    return LedgerScan(tuple(records), good_bytes, torn, missing * RECORD_BYTES if damaged else None)


def _readable(data: bytes, nth: int) -> LedgerRecord | None:
    """Decode the record in a slot; None where it is unreadable or belongs elsewhere."""
    try:
        record = decode_record(data[nth * RECORD_BYTES : (nth + 1) * RECORD_BYTES])
    except ChecksumMismatch:
        return None
    return record if record.record_seq == nth else None


def _head_records(records: list[LedgerRecord]) -> int:
    """Count the records that came by a rename; without the first of them, there is at least one."""
    head = records[0].body if records else None
    return head.head_records if isinstance(head, LedgerHead) else 1
