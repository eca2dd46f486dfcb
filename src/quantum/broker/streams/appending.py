"""Batches on their way into partitions: many of one turn in one command, flat bytes both ways.

A command is a head, one row for each batch, and the batches back to back, which nobody looks into:
a row says what the log has to know. The reply has one row for each batch. This is the hot path.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from quantum.broker.sections import SECTION_HEAD
from quantum.broker.streams.types import StreamRefusal

STREAM_FAMILY: Final = 1
"""The first byte of every command of streams (`quantum.broker.sections`)."""

TRANSACTIONAL: Final = 1
CONTROL: Final = 2

_APPENDS: Final = struct.Struct("<BQBII")  # family, stamp, kind, term, how many
_ROW: Final = struct.Struct("<QIIqhIBqI")
_OUTCOME: Final = struct.Struct("<qqqBB")
HEAD_BYTES: Final = _APPENDS.size
BATCHES_MAX: Final = 65_536
KIND_AT: Final = SECTION_HEAD.size
APPENDS: Final = 1
"""The kind of a command that brings batches."""

_REFUSALS: Final = tuple(StreamRefusal)
_NUMBER_OF: Final = {refusal: number for number, refusal in enumerate(_REFUSALS, 1)}


class StreamBatch(msgspec.Struct, gc=False):
    """One batch for one partition; without a producer, `producer_id` is -1 and the rest 0."""

    topic_number: int
    partition: int
    count: int
    producer_id: int
    epoch: int
    first_sequence: int
    flags: int
    """TRANSACTIONAL; what producers send is never CONTROL."""
    max_timestamp_ms: int
    data: bytes | memoryview


class AppendOutcome(msgspec.Struct, gc=False):
    """What became of a batch: it stands at `base_offset`, or was refused."""

    base_offset: int
    log_append_ms: int
    start_offset: int
    """Where the partition begins."""
    refusal: StreamRefusal | None = None
    repeat: bool = False
    """It stood there before: its answer was lost."""


def encode_appends(now_ms: int, term: int, batches: Sequence[StreamBatch]) -> bytes:
    """Encode the batches of one turn; `term` becomes their leader epoch."""
    pack = _ROW.pack
    parts: list[bytes | memoryview] = [
        _APPENDS.pack(STREAM_FAMILY, now_ms, APPENDS, term, len(batches))
    ]
    parts += [
        pack(
            each.topic_number,
            each.partition,
            each.count,
            each.producer_id,
            each.epoch,
            each.first_sequence,
            each.flags,
            each.max_timestamp_ms,
            len(each.data),
        )
        for each in batches
    ]
    parts += [each.data for each in batches]
    return b"".join(parts)


def with_term(command: bytes, term: int) -> bytes:
    """Return a command that brings batches with the term of who logs it: only that one knows."""
    family, stamp, kind, _, count = _APPENDS.unpack_from(command)
    return _APPENDS.pack(family, stamp, kind, term, count) + command[HEAD_BYTES:]


AppendRow = tuple[int, int, int, int, int, int, int, int, int]
"""topic, partition, count, producer id, epoch, first sequence, flags, time, length"""


def read_appends(command: bytes) -> tuple[int, list[AppendRow], int] | None:
    """Return the term, the rows and where the first batch begins; None: no such command."""
    if len(command) < HEAD_BYTES:
        return None
    _, _, _, term, count = _APPENDS.unpack_from(command)
    start = HEAD_BYTES + count * _ROW.size
    if count > BATCHES_MAX or start > len(command):
        return None
    rows: list[AppendRow] = list(_ROW.iter_unpack(memoryview(command)[HEAD_BYTES:start]))
    if start + sum(row[8] for row in rows) != len(command):
        return None
    return term, rows, start


def encode_outcome(
    base_offset: int,
    append_ms: int,
    start_offset: int,
    refusal: StreamRefusal | None = None,
    *,
    repeat: bool = False,
) -> bytes:
    """Encode one row of a reply."""
    number = 0 if refusal is None else _NUMBER_OF[refusal]
    return _OUTCOME.pack(base_offset, append_ms, start_offset, number, repeat)


def decode_outcomes(reply: bytes) -> Iterator[AppendOutcome]:
    """Walk the outcomes of a reply, one for each batch, in order."""
    for base, append_ms, start, number, repeat in _OUTCOME.iter_unpack(reply):
        refusal = _REFUSALS[number - 1] if 0 < number <= len(_REFUSALS) else None
        yield AppendOutcome(base, append_ms, start, refusal, bool(repeat))
