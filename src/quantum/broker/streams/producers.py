"""Idempotent producers of one partition: what was appended is not appended again.

Each producer has an epoch and its last five batches, as many as a stock client keeps in flight. A
batch that repeats one of them is answered with the offset of the first; any other must follow the
last one without a gap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from quantum.broker.streams.types import SEQUENCE_MAX, StreamRefusal

BATCHES_KEPT: Final = 5
NO_PRODUCER: Final = -1


@dataclass(slots=True)
class KeptBatch:
    """A batch that may come again: its sequences and the offset that it got."""

    first_sequence: int
    last_sequence: int
    base_offset: int


@dataclass(slots=True)
class KnownProducer:
    """One producer in one partition. Invariant: at most five batches, each following the last."""

    epoch: int
    last_ms: int
    batches: deque[KeptBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))


def add_sequence(sequence: int, count: int) -> int:
    """Return the sequence `count` later: behind the largest comes 0."""
    return (sequence + count) % (SEQUENCE_MAX + 1)


def judge(
    known: KnownProducer | None, epoch: int, first_sequence: int, count: int
) -> StreamRefusal | KeptBatch | None:
    """Say what a batch is: refused, a repeat of a kept one, or new (None).

    A producer that nobody remembers may begin anywhere: its state may have expired with its
    records. One that is known begins a new epoch with sequence 0.
    """
    if known is None:
        return None
    if epoch < known.epoch:
        return StreamRefusal.STALE_EPOCH
    if epoch > known.epoch:
        return None if first_sequence == 0 else StreamRefusal.OUT_OF_ORDER_SEQUENCE
    last_sequence = add_sequence(first_sequence, count - 1)
    for kept in known.batches:
        if (kept.first_sequence, kept.last_sequence) == (first_sequence, last_sequence):
            return kept
    expected = add_sequence(known.batches[-1].last_sequence, 1) if known.batches else 0
    return None if first_sequence == expected else StreamRefusal.OUT_OF_ORDER_SEQUENCE


class ProducerTable:
    """The producers of one partition, in the order in which they were last heard."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, KnownProducer] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, producer_id: int) -> KnownProducer | None:
        return self._known.get(producer_id)

    def items(self) -> list[tuple[int, KnownProducer]]:
        """List the producers, those heard longest ago first: a snapshot keeps this order."""
        return list(self._known.items())

    def put(self, producer_id: int, known: KnownProducer) -> None:
        """Remember a producer as the last one heard."""
        self._known.pop(producer_id, None)
        self._known[producer_id] = known

    def on_appended(self, producer_id: int, epoch: int, batch: KeptBatch, now_ms: int) -> None:
        """Remember a batch that was appended."""
        known = self._known.get(producer_id)
        if known is None or known.epoch != epoch:
            known = KnownProducer(epoch, now_ms)
        known.batches.append(batch)
        known.last_ms = now_ms
        self.put(producer_id, known)

    def on_marker(self, producer_id: int, epoch: int, now_ms: int) -> None:
        """A marker of a later epoch fences the batches of the epochs before it."""
        known = self._known.get(producer_id)
        if known is None or known.epoch < epoch:
            known = KnownProducer(epoch, now_ms)
        known.last_ms = now_ms
        self.put(producer_id, known)

    def expire(self, before_ms: int, keep: frozenset[int]) -> int:
        """Forget who was not heard since `before_ms`; say how many."""
        gone = []
        for producer_id, known in self._known.items():
            if known.last_ms >= before_ms:
                break
            if producer_id not in keep:
                gone.append(producer_id)
        for producer_id in gone:
            del self._known[producer_id]
        return len(gone)
