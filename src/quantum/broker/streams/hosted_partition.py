"""One partition of a topic as its PRG hosts it: what the log decides, and where the bytes go."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import msgspec

from clustor.streams.changes import StreamAppend
from quantum.broker.streams.appending import CONTROL, TRANSACTIONAL, AppendRow, encode_outcome
from quantum.broker.streams.coding import decode_state, encode_state
from quantum.broker.streams.control_batch import (
    HEADER_BYTES,
    control_batch,
    last_delta,
    placed_batch,
)
from quantum.broker.streams.errors import SnapshotUnreadable
from quantum.broker.streams.partition import (
    AppendBatch,
    BatchAppended,
    EndInPartition,
    MarkerPlaced,
    StreamPartition,
)
from quantum.broker.streams.producers import NO_PRODUCER
from quantum.broker.streams.types import EPOCH_MAX, SEQUENCE_MAX, StreamRefusal
from quantum.model.records import RecordProtocol

_NAME: Final = "quantum.streams.hosted"
_VERSION: Final = 1
_KAFKA: Final = bytes((RecordProtocol.KAFKA,))
_R = StreamRefusal
EPOCHS_MAX: Final = 256
"""Leader epochs of a partition that are remembered; a client that asks for an older one is told
of the oldest."""


class _Frozen(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    partition: bytes
    epochs: list[tuple[int, int]]
    max_timestamp_ms: int
    max_timestamp_offset: int


class HostedPartition:
    """What `StreamPartition` decides, the leader epochs, and the newest time that was appended."""

    __slots__ = ("epochs", "file_id", "log", "max_timestamp_ms", "max_timestamp_offset")

    def __init__(self, file_id: int) -> None:
        self.file_id = file_id
        self.log = StreamPartition()
        self.epochs: list[tuple[int, int]] = []
        """(leader epoch, its first offset), in order; epochs that brought nothing are not here."""
        self.max_timestamp_ms = -1
        self.max_timestamp_offset = -1

    def append(
        self, row: AppendRow, batch: memoryview, term: int, now_ms: int
    ) -> tuple[bytes, StreamAppend | None]:
        """Judge one batch: the row of its reply, and what is to be kept."""
        _, _, count, producer_id, epoch, first_sequence, flags, stamp, _ = row
        log = self.log
        if not _is_sound(row, batch):
            return encode_outcome(-1, now_ms, log.start_offset, _R.BAD_BATCH), None
        command = AppendBatch(now_ms, count)
        if producer_id != NO_PRODUCER:
            command.producer_id, command.epoch = producer_id, epoch
            command.first_sequence = first_sequence
            command.transactional = bool(flags & TRANSACTIONAL)
        result = log.apply(command)
        if isinstance(result, StreamRefusal):
            return encode_outcome(-1, now_ms, log.start_offset, result), None
        assert isinstance(result, BatchAppended)
        base = result.base_offset
        reply = encode_outcome(base, now_ms, log.start_offset, repeat=result.repeat)
        if result.repeat:
            return reply, None
        stamp = stamp if stamp >= 0 else now_ms
        self._note(term, base, stamp)
        payload = placed_batch(_KAFKA, batch, base, term)
        return reply, StreamAppend(self.file_id, base, count, stamp, payload)

    def end(self, command: EndInPartition, term: int, now_ms: int) -> StreamAppend | None:
        """Write the marker of a transaction's end, where it was open here."""
        placed = self.log.apply(command)
        if not isinstance(placed, MarkerPlaced):
            return None
        facts = (placed.offset, now_ms, command.producer_id, command.epoch, term)
        payload = _KAFKA + control_batch(*facts, commit=placed.commit)
        self._note(term, placed.offset, now_ms)
        return StreamAppend(self.file_id, placed.offset, 1, now_ms, payload)

    def _note(self, term: int, base: int, stamp: int) -> None:
        if not self.epochs or self.epochs[-1][0] < term:
            self.epochs.append((term, base))
            del self.epochs[:-EPOCHS_MAX]
        if stamp > self.max_timestamp_ms:
            self.max_timestamp_ms, self.max_timestamp_offset = stamp, base

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return the newest epoch up to this one, and the offset behind it; -1, -1: unknown."""
        at = bisect_right(self.epochs, epoch, key=lambda each: each[0])
        if at == 0:
            return -1, -1
        end = self.epochs[at][1] if at < len(self.epochs) else self.log.end_offset
        return self.epochs[at - 1][0], end

    def trimmed(self) -> None:
        """Forget the epochs whose last record is before the start; the newest of them stays."""
        start = self.log.start_offset
        at = bisect_right(self.epochs, start, key=lambda each: each[1])
        del self.epochs[: max(0, at - 1)]

    def freeze(self) -> bytes:
        """Encode all of it; equal states give equal bytes."""
        times = (self.max_timestamp_ms, self.max_timestamp_offset)
        return encode_state(_NAME, _VERSION, _Frozen(self.log.snapshot(), self.epochs, *times))

    @classmethod
    def thaw(cls, file_id: int, data: bytes) -> HostedPartition:
        """Make it again. Raises SnapshotUnreadable."""
        frozen = decode_state(_NAME, _VERSION, _Frozen, data)
        made = cls(file_id)
        made.log.restore(frozen.partition)
        if made.log.start_offset > made.log.end_offset:
            raise SnapshotUnreadable("a partition that ends before it begins", file_id=file_id)
        made.epochs = frozen.epochs
        made.max_timestamp_ms = frozen.max_timestamp_ms
        made.max_timestamp_offset = frozen.max_timestamp_offset
        return made


def _is_sound(row: AppendRow, batch: memoryview) -> bool:
    """Say whether a row can be true of its batch: one that lies would leave a gap for ever."""
    _, _, count, producer_id, epoch, first_sequence, flags, _, length = row
    if length < HEADER_BYTES or flags & CONTROL or not 1 <= count <= SEQUENCE_MAX:
        return False
    if producer_id < NO_PRODUCER or first_sequence > SEQUENCE_MAX:
        return False
    if producer_id == NO_PRODUCER:
        return not flags & TRANSACTIONAL and last_delta(batch) == count - 1
    return 0 <= epoch <= EPOCH_MAX and last_delta(batch) == count - 1
