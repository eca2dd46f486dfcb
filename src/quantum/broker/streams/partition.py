"""One partition of a stream as its log sees it: offsets, producers, transactions.

It decides and holds no records: a batch that it lets in is appended at the offset it says, and a
marker likewise. Everything comes from the log, the time too, so replicas agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

import msgspec

from quantum.broker.streams.coding import (
    CoordinationCommand,
    decode_command,
    decode_state,
    digest_of,
    encode_state,
)
from quantum.broker.streams.open_transactions import AbortedIndex, AbortedRange, OpenTransaction
from quantum.broker.streams.producers import (
    NO_PRODUCER,
    KeptBatch,
    KnownProducer,
    ProducerTable,
    add_sequence,
    judge,
)
from quantum.broker.streams.types import Amount, Epoch, Sequence, Stamp, StreamRefusal

_NAME: Final = "quantum.streams.partition"
_VERSION: Final = 1
PRODUCER_EXPIRY_MS: Final = 86_400_000


class AppendBatch(CoordinationCommand, tag=0):
    """Append one batch; without a producer, `producer_id` is -1 and the rest of it is 0."""

    now_ms: Stamp
    count: Sequence
    producer_id: int = NO_PRODUCER
    epoch: Epoch = 0
    first_sequence: Sequence = 0
    transactional: bool = False


class AdmitTransaction(CoordinationCommand, tag=1):
    """The coordinator has this partition in its transaction: batches of that epoch may come."""

    now_ms: Stamp
    producer_id: Amount
    epoch: Epoch


class EndInPartition(CoordinationCommand, tag=2):
    """The coordinator's word on how a transaction ended; `epoch` is the marker's."""

    now_ms: Stamp
    producer_id: Amount
    epoch: Epoch
    commit: bool


class ExpireProducers(CoordinationCommand, tag=3):
    """Forget producers that were silent for too long."""

    now_ms: Stamp


class TrimPartition(CoordinationCommand, tag=4):
    """Let go of what lies before `start_offset`; the start never goes back."""

    now_ms: Stamp
    start_offset: Amount


PartitionCommand = AppendBatch | AdmitTransaction | EndInPartition | ExpireProducers | TrimPartition
_DECODER: Final[msgspec.msgpack.Decoder[PartitionCommand]] = msgspec.msgpack.Decoder(
    PartitionCommand
)


@dataclass(slots=True, frozen=True)
class BatchAppended:
    """The batch stands at `base_offset`; with `repeat` it stood there before."""

    base_offset: int
    repeat: bool = False


@dataclass(slots=True, frozen=True)
class MarkerPlaced:
    """A marker is to be written at `offset`."""

    offset: int
    commit: bool


@dataclass(slots=True, frozen=True)
class PartitionDone:
    """The command took effect, and nothing is to be written. `count` is how many it touched."""

    count: int = 0


PartitionResult = BatchAppended | MarkerPlaced | PartitionDone | StreamRefusal


def decode_partition_command(data: bytes) -> PartitionCommand:
    """Decode a committed command. Raises CommandUnreadable."""
    return decode_command(_DECODER, data)


class _Frozen(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    start_offset: int
    end_offset: int
    now_ms: int
    producers: list[tuple[int, int, int, list[tuple[int, int, int]]]]
    transactions: list[tuple[int, int, int | None]]
    aborted: list[tuple[int, int, int]]


class StreamPartition:
    """Offsets are [start_offset, end_offset); what is below `last_stable_offset` is decided."""

    def __init__(self, *, producer_expiry_ms: int = PRODUCER_EXPIRY_MS) -> None:
        self._expiry_ms = producer_expiry_ms
        self.start_offset = 0
        self.end_offset = 0
        self.now_ms = 0
        """The log's own clock: the largest time that any command brought."""
        self._producers = ProducerTable()
        self._open: dict[int, OpenTransaction] = {}
        self._aborted = AbortedIndex()

    @property
    def last_stable_offset(self) -> int:
        """Below this offset every transaction has ended: read_committed reads no further."""
        begun = (each.first_offset for each in self._open.values())
        return min((first for first in begun if first is not None), default=self.end_offset)

    @property
    def producer_count(self) -> int:
        return len(self._producers)

    def aborted_between(self, start: int, end: int) -> list[AbortedRange]:
        """List what a reader of [start, end) with read_committed must skip."""
        return self._aborted.between(start, end)

    def open_transactions(self) -> list[tuple[int, int, int | None]]:
        """List producer, epoch and first offset of what is open (DescribeProducers)."""
        return [(each, open_.epoch, open_.first_offset) for each, open_ in self._open.items()]

    def open_epoch(self, producer_id: int) -> int | None:
        """Return the epoch of a producer's open transaction; None: it has none here."""
        transaction = self._open.get(producer_id)
        return None if transaction is None else transaction.epoch

    def producers(self) -> list[tuple[int, KnownProducer]]:
        """List the producers that are remembered (DescribeProducers)."""
        return self._producers.items()

    def apply(self, command: PartitionCommand) -> PartitionResult:
        """Apply one committed command: equal state and command give an equal result."""
        self.now_ms = max(self.now_ms, command.now_ms)
        match command:
            case AppendBatch():
                return self._on_append(command)
            case AdmitTransaction():
                return self._on_admit(command)
            case EndInPartition():
                return self._on_end(command)
            case ExpireProducers():
                before = self.now_ms - self._expiry_ms
                return PartitionDone(self._producers.expire(before, frozenset(self._open)))
            case TrimPartition():
                return self._on_trim(command)
            case _:
                assert_never(command)

    def _on_append(self, command: AppendBatch) -> PartitionResult:
        if command.count < 1:
            return StreamRefusal.OUT_OF_ORDER_SEQUENCE
        if command.producer_id == NO_PRODUCER:
            return BatchAppended(self._take(command.count))
        known = self._producers.get(command.producer_id)
        verdict = judge(known, command.epoch, command.first_sequence, command.count)
        if isinstance(verdict, KeptBatch):
            return BatchAppended(verdict.base_offset, repeat=True)
        refusal = verdict or self._misplaced(command)
        if refusal is not None:
            return refusal
        base = self._take(command.count)
        last = add_sequence(command.first_sequence, command.count - 1)
        kept = KeptBatch(command.first_sequence, last, base)
        self._producers.on_appended(command.producer_id, command.epoch, kept, self.now_ms)
        if command.transactional:
            transaction = self._open[command.producer_id]
            if transaction.first_offset is None:
                transaction.first_offset = base
        return BatchAppended(base)

    def _misplaced(self, command: AppendBatch) -> StreamRefusal | None:
        """Refuse a batch that is in no transaction, or in one that it does not say it is in."""
        transaction = self._open.get(command.producer_id)
        if not command.transactional:
            return StreamRefusal.WRONG_TRANSACTION_STATE if transaction is not None else None
        if transaction is None or transaction.epoch != command.epoch:
            return StreamRefusal.TRANSACTION_NOT_OPEN
        return None

    def _take(self, count: int) -> int:
        base = self.end_offset
        self.end_offset += count
        return base

    def _on_admit(self, command: AdmitTransaction) -> PartitionResult:
        known = self._producers.get(command.producer_id)
        if known is not None and command.epoch < known.epoch:
            return StreamRefusal.STALE_EPOCH
        transaction = self._open.get(command.producer_id)
        if transaction is None:
            self._open[command.producer_id] = OpenTransaction(command.epoch)
        elif transaction.epoch != command.epoch:
            return StreamRefusal.WRONG_TRANSACTION_STATE
        return PartitionDone(1)

    def _on_end(self, command: EndInPartition) -> PartitionResult:
        """Write the marker, even of a transaction without a batch here: it fences its epoch."""
        transaction = self._open.get(command.producer_id)
        if transaction is None:
            return PartitionDone()  # it was ended before: the channel's word came again
        if command.epoch < transaction.epoch:
            return StreamRefusal.STALE_EPOCH
        offset = self._take(1)
        del self._open[command.producer_id]
        if not command.commit and transaction.first_offset is not None:
            first = transaction.first_offset
            self._aborted.add(AbortedRange(command.producer_id, first, offset))
        self._producers.on_marker(command.producer_id, command.epoch, self.now_ms)
        return MarkerPlaced(offset, command.commit)

    def _on_trim(self, command: TrimPartition) -> PartitionResult:
        start = min(command.start_offset, self.end_offset)
        gone = max(0, start - self.start_offset)
        self.start_offset = max(self.start_offset, start)
        self._aborted.trim(self.start_offset)
        return PartitionDone(gone)

    def snapshot(self) -> bytes:
        """Encode the whole state; equal states give equal bytes."""
        producers = [
            (
                producer_id,
                known.epoch,
                known.last_ms,
                [(b.first_sequence, b.last_sequence, b.base_offset) for b in known.batches],
            )
            for producer_id, known in self._producers.items()
        ]
        aborted = [(r.producer_id, r.first_offset, r.last_offset) for r in self._aborted.ranges]
        numbers = (self.start_offset, self.end_offset, self.now_ms)
        frozen = _Frozen(*numbers, producers, sorted(self.open_transactions()), aborted)
        return encode_state(_NAME, _VERSION, frozen)

    def restore(self, snapshot: bytes) -> None:
        """Take the state of a snapshot. Raises SnapshotUnreadable, and changes nothing then."""
        frozen = decode_state(_NAME, _VERSION, _Frozen, snapshot)
        self.start_offset, self.end_offset = frozen.start_offset, frozen.end_offset
        self.now_ms = frozen.now_ms
        self._producers = ProducerTable()
        for producer_id, epoch, last_ms, batches in frozen.producers:
            known = KnownProducer(epoch, last_ms)
            known.batches.extend(KeptBatch(*each) for each in batches)
            self._producers.put(producer_id, known)
        self._open = {
            producer_id: OpenTransaction(epoch, first)
            for producer_id, epoch, first in frozen.transactions
        }
        self._aborted = AbortedIndex([AbortedRange(*each) for each in frozen.aborted])

    def digest(self) -> bytes:
        """Digest the state, to compare replicas."""
        return digest_of(self.snapshot())
