"""Partitions join a transaction with their first batch (KIP-890), each once, and in order.

Batches of one producer must not pass each other while one of them waits for the coordinator: they
wait in a line, and whoever has nothing to wait for and nobody before it goes on at once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from quantum.broker.streams import (
    AddToTransaction,
    GroupResult,
    StreamRefusal,
    TransactionResult,
)
from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.request import KafkaRequest

_PRODUCERS_KEPT_MAX: Final = 10_000
Joined = Callable[[KafkaCode], None]
_Place = tuple[str, int]


@dataclass(slots=True)
class _Line:
    """What is known of one producer's transaction: an epoch has one, so nothing grows old."""

    inside: set[_Place] = field(default_factory=set)
    waiting: deque[tuple[KafkaRequest, str, Sequence[_Place], Joined]] = field(
        default_factory=deque
    )


class TransactionJoins:
    """The producers of one tenant that this node serves, by id and epoch."""

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[int, int], _Line] = OrderedDict()

    def join(  # noqa: PLR0917  # who joins what is all of these
        self,
        request: KafkaRequest,
        name: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[_Place],
        joined: Joined,
    ) -> None:
        """Call `joined` when all partitions are in the transaction, or cannot be."""
        key = (producer_id, epoch)
        line = self._lines.setdefault(key, _Line())
        self._lines.move_to_end(key)
        if not line.waiting and line.inside.issuperset(partitions):
            joined(KafkaCode.none)
            return
        line.waiting.append((request, name, partitions, joined))
        if len(line.waiting) == 1:
            self._ask(key, line)
        self._forget_some()

    def _ask(self, key: tuple[int, int], line: _Line) -> None:
        request, name, partitions, joined = line.waiting[0]

        def done(result: GroupResult | TransactionResult | None) -> None:
            code = KafkaCode.not_leader_or_follower  # nobody knows: the producer asks again
            if result is not None and isinstance(result.answer, StreamRefusal):
                code = request.code(result.answer)
            elif result is not None:
                code = KafkaCode.none
                line.inside.update(partitions)
            line.waiting.popleft()
            joined(code)
            if code is not KafkaCode.none:
                _fail_behind(line, partitions, code)
            if line.waiting:
                self._ask(key, line)

        topics = request.tenant.topics
        command = AddToTransaction(request.now_ms, name, *key, tuple(partitions))
        topics.coordinate(topics.transaction(name), command, done)

    def _forget_some(self) -> None:
        while len(self._lines) > _PRODUCERS_KEPT_MAX:
            oldest = next(iter(self._lines))
            if self._lines[oldest].waiting:
                return
            del self._lines[oldest]


def _fail_behind(line: _Line, partitions: Sequence[_Place], code: KafkaCode) -> None:
    """Let nothing pass a batch that could not join, in any of its partitions.

    A partition that does not know a producer lets it begin with any batch: the one that failed
    would be out of order when it comes again, and its transaction could only be aborted.
    """
    closed, waiting = set(partitions), line.waiting
    line.waiting = deque()
    for each in waiting:
        if closed.isdisjoint(each[2]):
            line.waiting.append(each)
        else:
            closed.update(each[2])
            each[3](code)


def join_first(  # noqa: PLR0917
    request: KafkaRequest,
    name: str,
    producer_id: int,
    epoch: int,
    partitions: Sequence[_Place],
    joined: Joined,
) -> None:
    """Bring partitions into a transaction, behind what this producer sent before."""
    tenant = request.tenant
    if not isinstance(tenant.joins, TransactionJoins):
        tenant.joins = TransactionJoins()
    tenant.joins.join(request, name, producer_id, epoch, partitions, joined)
