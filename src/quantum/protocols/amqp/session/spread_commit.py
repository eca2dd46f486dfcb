"""The commit of one transaction whose work is in several partitions.

The coordinator's partition has its own part first, then all others have theirs, then it decides:
its word is the end, and reaches them without us. Whoever asks may die at any point: what is not
decided by then the log of the coordinator rolls back by its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from quantum.broker.queues import (
    DecideTransaction,
    Enqueue,
    NewMessage,
    PrepareTransaction,
    QueueRefusal,
    Settlement,
)
from quantum.protocols.amqp.session.lane import Done, MakeCommand
from quantum.protocols.amqp.session.tenant_queues import TenantQueues

PREPARE_MS_MAX: Final = 60_000
"""A partition that does not answer for so long has the transaction rolled back."""


@dataclass(slots=True)
class TransactionPart:
    """What a transaction does in one partition."""

    messages: list[tuple[bytes, NewMessage]] = field(default_factory=list)
    settles: dict[tuple[bytes, bytes], list[Settlement]] = field(default_factory=dict)
    """By queue, and by the durable receiver that holds the messages; empty: none does."""

    @property
    def batches(self) -> list[tuple[bytes, list[NewMessage]]]:
        found: dict[bytes, list[NewMessage]] = {}
        for queue, message in self.messages:
            found.setdefault(queue, []).append(message)
        return list(found.items())

    def log_whole(self, home: TenantQueues, place: int, done: Done) -> None:
        """Let it be one entry of the partition's log: there is no other part."""
        settles = [(queue, said) for (queue, _), said in self.settles.items()]

        def make(lane: bytes, sequence: int) -> Enqueue:
            return Enqueue(lane, sequence, self.batches, settles, is_whole=True)

        self.log(home, place, make, done)

    def log(self, home: TenantQueues, place: int, make: MakeCommand, done: Done) -> None:
        """Let the partition's log have it, unless the tenant has too much."""
        settled = sum(map(len, self.settles.values()))
        home.transact(place, make, [message for _, message in self.messages], settled, done)


class SpreadCommit:
    """One commit on its way; `done` hears its end."""

    def __init__(
        self,
        home: TenantQueues,
        transaction: bytes,
        parts: dict[int, TransactionPart],
        done: Done,
    ) -> None:
        self._home = home
        self._transaction = transaction
        self._parts = parts
        self._done = done
        self._began_ms = home.clock_ms()
        places = sorted(parts)
        self._coordinator = places[transaction[0] % len(places)]
        self._others = [each for each in places if each != self._coordinator]
        self._unanswered = set(self._others)
        self._refusal = QueueRefusal.NONE
        self._is_promised = self._is_deciding = False
        self.is_over = False

    def begin(self) -> None:
        self._prepare(self._coordinator, self._others, self._on_promised)

    def _prepare(self, place: int, others: list[int], then: Done) -> None:
        part, facts = self._parts[place], (self._transaction, self._coordinator, others)
        settles = [(*key, said) for key, said in part.settles.items()]

        def make(lane: bytes, sequence: int) -> PrepareTransaction:
            return PrepareTransaction(lane, sequence, *facts, part.batches, settles)

        part.log(self._home, place, make, then)

    def _on_promised(self, refusal: QueueRefusal) -> None:
        """The coordinator has its part, or the transaction is nowhere."""
        if refusal:
            self._end(refusal)
            return
        self._is_promised = True
        for place in self._others:
            self._prepare(place, [], partial(self._on_part, place))

    def _on_part(self, place: int, refusal: QueueRefusal) -> None:
        self._unanswered.discard(place)
        self._refusal = self._refusal or refusal
        if not self._unanswered:
            self._decide()

    def _decide(self) -> None:
        if self._is_deciding:
            return
        self._is_deciding = True
        commit = not self._refusal

        def make(lane: bytes, sequence: int) -> DecideTransaction:
            return DecideTransaction(lane, sequence, self._transaction, commit)

        def decided(refusal: QueueRefusal) -> None:
            self._end(refusal if commit else self._refusal)

        self._home.transact(self._coordinator, make, [], 0, decided)

    def _end(self, refusal: QueueRefusal) -> None:
        self.is_over = True
        self._done(refusal)

    def on_tick(self, now_ms: int) -> None:
        """Roll back what a partition does not answer to."""
        if self._is_promised and now_ms - self._began_ms > PREPARE_MS_MAX:
            self._refusal = self._refusal or QueueRefusal.NO_TRANSACTION
            self._decide()


def begin_commit(
    home: TenantQueues, transaction: bytes, parts: dict[int, TransactionPart], done: Done
) -> SpreadCommit | None:
    """Let a transaction count, whole or not at all; return what has to be kept an eye on."""
    if not parts:
        done(QueueRefusal.NONE)
        return None
    if len(parts) == 1:
        [(place, part)] = parts.items()
        part.log_whole(home, place, done)
        return None
    commit = SpreadCommit(home, transaction, parts, done)
    commit.begin()
    return commit
