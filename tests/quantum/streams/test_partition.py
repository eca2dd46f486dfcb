"""One partition: nothing twice, nothing out of order, and a reader knows what was aborted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from quantum.broker.streams import (
    AdmitTransaction,
    AppendBatch,
    BatchAppended,
    CommandUnreadable,
    EndInPartition,
    ExpireProducers,
    MarkerPlaced,
    PartitionCommand,
    PartitionDone,
    PartitionResult,
    SnapshotUnreadable,
    StreamPartition,
    StreamRefusal,
    TrimPartition,
    decode_partition_command,
    encode_command,
)

R = StreamRefusal
LARGEST = (1 << 31) - 1


def append(
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    producer: int = 7,
    tx: bool = False,
    at: int = 0,
) -> AppendBatch:
    return AppendBatch(at, count, producer, epoch, sequence, tx)


STORIES: dict[str, list[tuple[PartitionCommand, PartitionResult]]] = {
    "without a producer everything is appended": [
        (AppendBatch(0, 3), BatchAppended(0)),
        (AppendBatch(0, 3), BatchAppended(3)),
    ],
    "an empty batch is none": [(AppendBatch(0, 0), R.OUT_OF_ORDER_SEQUENCE)],
    "a repeat has its first offset": [
        (append(0, 3), BatchAppended(0)),
        (append(3, 2), BatchAppended(3)),
        (append(0, 3), BatchAppended(0, repeat=True)),
        (append(3, 2), BatchAppended(3, repeat=True)),
        (append(5), BatchAppended(5)),
    ],
    "a gap is refused, and so is a part of a batch": [
        (append(0, 3), BatchAppended(0)),
        (append(4), R.OUT_OF_ORDER_SEQUENCE),
        (append(1, 2), R.OUT_OF_ORDER_SEQUENCE),
        (append(3), BatchAppended(3)),
    ],
    "five are remembered and the sixth is not": [
        *((append(nth), BatchAppended(nth)) for nth in range(6)),
        (append(1), BatchAppended(1, repeat=True)),
        (append(0), R.OUT_OF_ORDER_SEQUENCE),
    ],
    "sequences wrap": [
        (append(LARGEST - 1, 1), BatchAppended(0)),
        (append(LARGEST, 3), BatchAppended(1)),
        (append(LARGEST, 3), BatchAppended(1, repeat=True)),
        (append(2), BatchAppended(4)),
    ],
    "a new epoch begins with 0 and ends the old one": [
        (append(0), BatchAppended(0)),
        (append(1, epoch=1), R.OUT_OF_ORDER_SEQUENCE),
        (append(0, epoch=1), BatchAppended(1)),
        (append(1, epoch=0), R.STALE_EPOCH),
        (append(0, epoch=0), R.STALE_EPOCH),
    ],
    "who is unknown may begin anywhere": [
        (append(42), BatchAppended(0)),
        (append(43), BatchAppended(1)),
    ],
    "producers do not see each other": [
        (append(0, producer=1), BatchAppended(0)),
        (append(0, producer=2), BatchAppended(1)),
    ],
    "a batch of no open transaction is refused": [
        (append(0, tx=True), R.TRANSACTION_NOT_OPEN),
        (AdmitTransaction(0, 7, 0), PartitionDone(1)),
        (append(0, tx=True, epoch=1), R.TRANSACTION_NOT_OPEN),
        (append(0, tx=True), BatchAppended(0)),
        (append(1, tx=False), R.WRONG_TRANSACTION_STATE),
        (EndInPartition(0, 7, 1, commit=True), MarkerPlaced(1, commit=True)),
        (append(1, tx=True), R.STALE_EPOCH),
        (append(0, tx=True, epoch=1), R.TRANSACTION_NOT_OPEN),
    ],
    "without a bump a late batch is refused all the same": [
        (AdmitTransaction(0, 7, 0), PartitionDone(1)),
        (append(0, tx=True), BatchAppended(0)),
        (EndInPartition(0, 7, 0, commit=True), MarkerPlaced(1, commit=True)),
        (append(1, tx=True), R.TRANSACTION_NOT_OPEN),
        (append(0, tx=True), BatchAppended(0, repeat=True)),
        (AdmitTransaction(0, 7, 0), PartitionDone(1)),
        (append(1, tx=True), BatchAppended(2)),
    ],
    "an end without a batch leaves a marker that fences": [
        (AdmitTransaction(0, 7, 3), PartitionDone(1)),
        (EndInPartition(0, 7, 4, commit=False), MarkerPlaced(0, commit=False)),
        (append(0, epoch=3), R.STALE_EPOCH),
        (append(1, epoch=4), R.OUT_OF_ORDER_SEQUENCE),
        (append(0, epoch=4), BatchAppended(1)),
    ],
    "an end comes once": [
        (AdmitTransaction(0, 7, 0), PartitionDone(1)),
        (EndInPartition(0, 7, 1, commit=True), MarkerPlaced(0, commit=True)),
        (EndInPartition(0, 7, 1, commit=True), PartitionDone()),
        (AdmitTransaction(0, 7, 0), R.STALE_EPOCH),
    ],
    "an admission comes again, and not across epochs": [
        (AdmitTransaction(0, 7, 2), PartitionDone(1)),
        (AdmitTransaction(0, 7, 2), PartitionDone(1)),
        (AdmitTransaction(0, 7, 3), R.WRONG_TRANSACTION_STATE),
        (EndInPartition(0, 7, 1, commit=True), R.STALE_EPOCH),
    ],
    "silence is forgotten by the log's clock": [
        (append(0, at=1000), BatchAppended(0)),
        (ExpireProducers(2000), PartitionDone()),
        (ExpireProducers(2001), PartitionDone(1)),
        (append(5, at=0), BatchAppended(1)),
        (ExpireProducers(3001), PartitionDone()),
    ],
    "who is in a transaction is not forgotten": [
        (append(0, at=1), BatchAppended(0)),
        (AdmitTransaction(1, 7, 0), PartitionDone(1)),
        (ExpireProducers(9999), PartitionDone()),
        (EndInPartition(9999, 7, 1, commit=True), MarkerPlaced(1, commit=True)),
        (ExpireProducers(10_999), PartitionDone()),
        (ExpireProducers(11_000), PartitionDone(1)),
    ],
    "the start goes forward only, and not beyond the end": [
        (AppendBatch(0, 9), BatchAppended(0)),
        (TrimPartition(0, 4), PartitionDone(4)),
        (TrimPartition(0, 2), PartitionDone(0)),
        (TrimPartition(0, 99), PartitionDone(5)),
    ],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_what_a_partition_says(story: list[tuple[PartitionCommand, PartitionResult]]) -> None:
    partition = StreamPartition(producer_expiry_ms=1000)
    for step, (command, result) in enumerate(story):
        wire = encode_command(command)
        assert decode_partition_command(wire) == command
        before = partition.snapshot()
        assert partition.apply(decode_partition_command(wire)) == result, step
        other = StreamPartition(producer_expiry_ms=1000)
        other.restore(before)
        assert other.apply(command) == result, step
        assert other.digest() == partition.digest(), step
        if isinstance(result, StreamRefusal):
            unchanged = StreamPartition()
            unchanged.restore(before)
            assert other.end_offset == unchanged.end_offset, step


def test_readers_of_committed_records_know_how_far_and_what_not() -> None:
    partition = StreamPartition()
    for producer in (1, 2):
        partition.apply(AdmitTransaction(0, producer, 0))
    partition.apply(AppendBatch(0, 5))
    assert partition.last_stable_offset == 5, "a transaction without a batch holds nobody up"
    partition.apply(append(0, 2, producer=1, tx=True))
    partition.apply(append(0, 3, producer=2, tx=True))
    assert partition.last_stable_offset == 5
    partition.apply(EndInPartition(0, 2, 1, commit=False))
    assert partition.last_stable_offset == 5
    partition.apply(EndInPartition(0, 1, 1, commit=True))
    assert partition.last_stable_offset == partition.end_offset == 12
    (aborted,) = partition.aborted_between(0, 12)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (2, 7, 10)
    assert [
        len(partition.aborted_between(*each)) for each in ((0, 7), (0, 8), (10, 11), (11, 12))
    ] == [
        0,
        1,
        1,
        0,
    ]
    partition.apply(TrimPartition(0, 10))
    assert partition.aborted_between(0, 12)
    partition.apply(TrimPartition(0, 11))
    assert not partition.aborted_between(0, 12)


@dataclass
class Naive:
    """The rules said over all that ever was appended, with no index and no window but five."""

    history: list[tuple[str, int, int, int, int, int]] = field(default_factory=list)
    end: int = 0
    admitted: dict[int, int] = field(default_factory=dict)

    def known(self, producer: int) -> int | None:
        epochs = [row[2] for row in self.history if row[1] == producer]
        return max(epochs, default=None)

    def append(self, command: AppendBatch) -> PartitionResult:
        known = self.known(command.producer_id)
        batches = [
            row
            for row in self.history
            if row[0] in {"data", "tx"} and row[1:3] == (command.producer_id, command.epoch)
        ]
        if known is not None:
            if command.epoch < known:
                return R.STALE_EPOCH
            for row in batches[-5:]:
                if row[3:5] == (command.first_sequence, command.count):
                    return BatchAppended(row[5], repeat=True)
            follows = 0
            if batches:
                follows = (batches[-1][3] + batches[-1][4]) % (LARGEST + 1)
            if command.first_sequence != follows:
                return R.OUT_OF_ORDER_SEQUENCE
        is_open = self.admitted.get(command.producer_id)
        if command.transactional and is_open != command.epoch:
            return R.TRANSACTION_NOT_OPEN
        if not command.transactional and is_open is not None:
            return R.WRONG_TRANSACTION_STATE
        kind = "tx" if command.transactional else "data"
        facts = (command.producer_id, command.epoch, command.first_sequence, command.count)
        self.history.append((kind, *facts, self.end))
        self.end += command.count
        return BatchAppended(self.end - command.count)

    def admit(self, command: AdmitTransaction) -> PartitionResult:
        known = self.known(command.producer_id)
        if known is not None and command.epoch < known:
            return R.STALE_EPOCH
        if self.admitted.setdefault(command.producer_id, command.epoch) != command.epoch:
            return R.WRONG_TRANSACTION_STATE
        return PartitionDone(1)

    def finish(self, command: EndInPartition) -> PartitionResult:
        if command.producer_id not in self.admitted:
            return PartitionDone()
        if command.epoch < self.admitted[command.producer_id]:
            return R.STALE_EPOCH
        del self.admitted[command.producer_id]
        kind = "commit" if command.commit else "abort"
        self.history.append((kind, command.producer_id, command.epoch, -1, 1, self.end))
        self.end += 1
        return MarkerPlaced(self.end - 1, command.commit)

    def transactions(self) -> tuple[int, list[tuple[int, int, int]]]:
        """Walk everything: the last stable offset, and what was aborted."""
        begun: dict[int, int] = {}
        aborted = []
        for kind, producer, *_, offset in self.history:
            if kind == "tx":
                begun.setdefault(producer, offset)
            elif kind in {"commit", "abort"}:
                first = begun.pop(producer, None)
                if kind == "abort" and first is not None:
                    aborted.append((producer, first, offset))
        return min(begun.values(), default=self.end), aborted


def drawn(rng: random.Random, sequences: dict[tuple[int, int], int]) -> PartitionCommand:
    producer, epoch = rng.randint(1, 3), rng.choice([0, 0, 1, 1, 2, 3])
    match rng.randrange(10):
        case 0 | 1:
            return AdmitTransaction(0, producer, epoch)
        case 2:
            return EndInPartition(0, producer, epoch, rng.random() < 0.5)
        case _:
            follows = sequences.get((producer, epoch), rng.choice([0, 0, 0, LARGEST - 2]))
            sequence = max(0, follows - rng.choice([0, 0, 0, 1, 2, 3, 7]))
            return append(
                sequence, rng.randint(1, 3), epoch=epoch, producer=producer, tx=rng.random() < 0.5
            )


@pytest.mark.parametrize("seed", range(150))
def test_a_partition_agrees_with_its_naive_twin(seed: int) -> None:
    rng = random.Random(seed)
    partition, twin = StreamPartition(), Naive()
    sequences: dict[tuple[int, int], int] = {}
    for _ in range(120):
        command = drawn(rng, sequences)
        result = partition.apply(command)
        if isinstance(command, AppendBatch):
            assert result == twin.append(command), (seed, command)
            if isinstance(result, BatchAppended) and not result.repeat:
                follows = (command.first_sequence + command.count) % (LARGEST + 1)
                sequences[command.producer_id, command.epoch] = follows
        elif isinstance(command, AdmitTransaction):
            assert result == twin.admit(command), (seed, command)
        elif isinstance(command, EndInPartition):
            assert result == twin.finish(command), (seed, command)
        stable, aborted = twin.transactions()
        assert (partition.end_offset, partition.last_stable_offset) == (twin.end, stable), seed
        start = rng.randint(0, twin.end)
        found = [
            (each.producer_id, each.first_offset, each.last_offset)
            for each in partition.aborted_between(start, twin.end)
        ]
        assert found == [each for each in aborted if each[2] >= start], seed
        if rng.random() < 0.05:
            fresh = StreamPartition()
            fresh.restore(partition.snapshot())
            assert fresh.digest() == partition.digest()
            partition = fresh


@pytest.mark.parametrize(
    "data", [b"", b"\xc0", b"\x93\x09\x00\x00", b"\x92\x00\xff", b"\x91" * 900]
)
def test_bytes_that_are_no_command_or_snapshot_are_typed(data: bytes) -> None:
    with pytest.raises(CommandUnreadable):
        decode_partition_command(data)
    with pytest.raises(SnapshotUnreadable):
        StreamPartition().restore(data)
