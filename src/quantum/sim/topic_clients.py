"""Producers, readers and operators of topics in the simulated broker: clients as Kafka has them.

Each knows only what it was told. What it was not told it asks again, as stock clients do: a batch
with the sequence that it had, an end with the epoch that it had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from random import Random
from typing import Any, Final, Protocol

from clustor.sim.errors import PromiseBroken
from clustor.sim.scenario import MS
from quantum.broker.streams import (
    TRANSACTIONAL,
    AddToTransaction,
    AppendOutcome,
    CommitInTransaction,
    CommittedOffset,
    EndTransaction,
    InitProducer,
    ProducerGiven,
    StreamBatch,
    StreamRefusal,
)
from quantum.mesh.topic_views import TopicView
from quantum.mesh.topics import TenantTopics
from quantum.protocols.kafka.codec import (
    KafkaRecord,
    build_batch,
)

PLAIN: Final = "numbers"
MIRROR: Final = "whole"
TRIMMED: Final = "shortened"
PARTITIONS: Final = 3
SINK: Final = "sink"
_PATIENCE: Final = 3_000 * MS
_R = StreamRefusal


class TopicsWorld(Protocol):
    """A world whose nodes serve topics."""

    @property
    def injection(self) -> Any: ...
    def later(self, delay: int, call: Callable[[], None], /) -> None: ...
    def any_topics(self, rng: Random, /) -> TenantTopics | None: ...
    def led_topics(self, name: str, partition: int, /) -> tuple[TenantTopics, TopicView] | None:
        """Return the topics of the node that leads a partition, as far as it knows itself."""


def batch_bytes(values: list[str], producer: tuple[int, int, int], attributes: int = 0) -> bytes:
    """Build a batch as a producer does."""
    records = [KafkaRecord(n, 1 + n, None, each.encode()) for n, each in enumerate(values)]
    id_, epoch, sequence = producer
    return build_batch(
        records,
        producer_id=id_,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=attributes,
    )


class TopicClient:
    """Somebody who asks, waits for a while, and asks again."""

    def __init__(self, world: TopicsWorld, rng: Random) -> None:
        self.world = world
        self.rng = rng
        world.later(rng.randint(1, 300) * MS, self.step)

    def step(self) -> None:
        raise NotImplementedError

    def again(self, least: int = 5, most: int = 120) -> None:
        self.world.later(self.rng.randint(least, most) * MS, self.step)

    def ask(
        self,
        topics: TenantTopics | None,
        begin: Callable[[TenantTopics, Callable[[Any], None]], None],
        then: Callable[[Any], None],
    ) -> None:
        """Ask once; None comes where no answer does."""
        is_over = False

        def answer(said: Any) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                then(said)

        self.world.later(_PATIENCE if topics is not None else 50 * MS, lambda: answer(None))
        if topics is not None:
            begin(topics, answer)

    def coordinate(self, prg_of: Callable[[TenantTopics], int], command: Any, then: Any) -> None:
        """Ask a coordinator by any node."""

        def told(result: Any) -> None:
            then(None if result is None else result)

        self.ask(
            self.world.any_topics(self.rng),
            lambda topics, done: topics.coordinate(prg_of(topics), command, done),
            told,
        )


class TopicOperator(TopicClient):
    """Makes the topics, grows one, and deletes records of another now and then."""

    def __init__(self, world: TopicsWorld, rng: Random) -> None:
        super().__init__(world, rng)
        self.wanted = [PLAIN, MIRROR, TRIMMED]
        self._uuids = {name: rng.randbytes(16) for name in self.wanted}
        self.starts: list[int] = [0] * PARTITIONS
        """The newest start that each partition of `trimmed` was said to have."""

    @property
    def is_idle(self) -> bool:
        return not self.wanted

    def step(self) -> None:
        if self.wanted:
            name = self.wanted[0]
            self.ask(
                self.world.any_topics(self.rng),
                lambda topics, done: topics.create_topic(
                    name, PARTITIONS, (), self._uuids[name], done
                ),
                self._made,
            )
        elif not self.world.injection.over:
            self._trim(self.rng.randrange(PARTITIONS))

    def _made(self, reply: Any) -> None:
        if reply is not None and reply.refusal is None:
            self.wanted.pop(0)
        elif reply is not None and reply.refusal is not _R.BUSY:
            raise PromiseBroken(f"a topic was refused: {reply}")
        self.again()

    def _trim(self, p: int) -> None:
        led = self.world.led_topics(TRIMMED, p)
        view = None if led is None else led[0].partition(led[1], p)
        if led is None or view is None:
            self.again()
            return
        offset = self.rng.randint(view.start, view.high_watermark)

        def trimmed(outcome: AppendOutcome | None) -> None:
            if outcome is not None and outcome.refusal is None:
                self.starts[p] = max(self.starts[p], outcome.start_offset)
            self.again(100, 500)

        topic = led[1]
        self.ask(
            self.world.any_topics(self.rng),
            lambda topics, done: topics.delete_records(topic, p, offset, done),
            trimmed,
        )


@dataclass(slots=True)
class SentBatch:
    """A batch that was not answered yet, or was."""

    values: list[str]
    sequence: int
    outcome: AppendOutcome | None = None


class IdempotentProducer(TopicClient):
    """Sends up to three batches at once to a partition, and again until each has its offset."""

    def __init__(self, world: TopicsWorld, rng: Random, name: str, limit: int) -> None:
        super().__init__(world, rng)
        self.name = name
        self._left = limit
        self._number = 0
        self._id: int | None = None
        self._sequences: dict[tuple[str, int], int] = {}
        self._flight: list[SentBatch] = []
        self._place = (PLAIN, 0)
        self.acknowledged: dict[str, tuple[str, int, int]] = {}
        """Of each value: topic, partition, offset."""

    @property
    def is_idle(self) -> bool:
        return not self._left and not self._flight

    def step(self) -> None:
        if self._id is None:
            command = InitProducer(0, None, 0)
            self.coordinate(lambda topics: topics.producer_prg(), command, self._given)
        elif self._flight:
            self._send()
        elif self._left:
            self._fill()
            self._send()

    def _given(self, result: Any) -> None:
        if result is not None and isinstance(result.answer, ProducerGiven):
            self._id = result.answer.producer_id
        self.again()

    def _fill(self) -> None:
        name = self.rng.choice((PLAIN, PLAIN, TRIMMED))
        self._place = (name, self.rng.randrange(PARTITIONS))
        # The first batch goes alone: who is not known yet may begin anywhere.
        most = 3 if self._place in self._sequences else 1
        for _ in range(min(self._left, self.rng.randint(1, most))):
            self._left -= 1
            sequence = self._sequences.get(self._place, 0)
            values = []
            for _ in range(self.rng.randint(1, 3)):
                self._number += 1
                values.append(f"{self.name}:{self._number}")
            self._flight.append(SentBatch(values, sequence))
            self._sequences[self._place] = sequence + len(values)

    def _send(self) -> None:
        led = self.world.led_topics(*self._place)
        if led is None:
            self.again()
            return
        topics, topic = led
        assert self._id is not None
        left = len(self._flight)
        for sent in self._flight:
            producer = (self._id, 0, sent.sequence)
            facts = (topic.number, self._place[1], len(sent.values), *producer, 0, 5)
            batch = StreamBatch(*facts, batch_bytes(sent.values, producer))

            def told(outcomes: Any, sent: SentBatch = sent) -> None:
                nonlocal left
                left -= 1
                if outcomes is not None:
                    self._answered(sent, outcomes[0])
                if not left:
                    self._flight = [each for each in self._flight if each.outcome is None]
                    self.again()

            prg = topic.prgs[self._place[1]]
            # Each on its own way: they may overtake one another.
            ask = partial(self.ask, topics, partial(_append_one, prg, batch), told)
            self.world.later(self.rng.choice((0, 0, self.rng.randint(1, 15) * MS)), ask)

    def _answered(self, sent: SentBatch, outcome: AppendOutcome) -> None:
        if outcome.refusal is None:
            sent.outcome = outcome
            for nth, value in enumerate(sent.values):
                self.acknowledged[value] = (*self._place, outcome.base_offset + nth)
        elif outcome.refusal not in {_R.OUT_OF_ORDER_SEQUENCE, _R.TOPIC_UNKNOWN}:
            raise PromiseBroken(f"{self.name}: {outcome}")


def _append_one(
    prg: int, batch: StreamBatch, topics: TenantTopics, done: Callable[[Any], None]
) -> None:
    topics.append(prg, [batch], done)


class Ended(Enum):
    """What a client was told of its transaction's end."""

    COMMITTED = 1
    ABORTED = 2
    UNKNOWN = 3


@dataclass(slots=True)
class SimTransaction:
    """One transaction of a client, by what it was told."""

    number: int
    values: dict[int, str]
    ended: Ended = Ended.ABORTED
    asked_to_commit: bool = False


@dataclass(slots=True)
class _Steps:
    """What is still to be done of the transaction that is open."""

    transaction: SimTransaction
    is_open: bool = False
    unsent: dict[int, str] = field(default_factory=dict)
    offsets_sent: bool = False
    is_decided: bool = False


class TransactionalProducer(TopicClient):
    """Writes into several partitions and a group's offsets, whole or not at all."""

    def __init__(self, world: TopicsWorld, rng: Random, name: str, limit: int) -> None:
        super().__init__(world, rng)
        self.name = name
        self._left = limit
        self.times_out = rng.random() < 0.3
        """Whether its transactions may time out; else none of its batches may be refused."""
        self._given: ProducerGiven | None = None
        self._steps: _Steps | None = None
        self.done: list[SimTransaction] = []

    @property
    def is_idle(self) -> bool:
        return not self._left and self._steps is None

    def step(self) -> None:
        if self._given is None:
            timeout_ms = 400 if self.times_out else 600_000
            command = InitProducer(0, self.name, timeout_ms)
            self.coordinate(lambda topics: topics.transaction(self.name), command, self._init)
            return
        if self._steps is None:
            if not self._left:
                return
            self._begin()
        steps = self._steps
        assert steps is not None
        if not steps.is_open:
            self._open(steps)
        elif steps.unsent:
            self._append(steps, *next(iter(steps.unsent.items())))
        elif not steps.offsets_sent:
            self._send_offsets(steps)
        elif not steps.is_decided and self.rng.random() < 0.12:
            self._finish(Ended.ABORTED)  # it dies; who comes next has its id and fences it
            self._given = None
            self.again(1, 300)
        else:
            self._end(steps)

    def _init(self, result: Any) -> None:
        if result is not None and isinstance(result.answer, ProducerGiven):
            self._given = result.answer
        self.again()

    def _begin(self) -> None:
        self._left -= 1
        number = len(self.done) + 1
        places = self.rng.sample(range(PARTITIONS), self.rng.randint(1, PARTITIONS))
        values = {p: f"{self.name}:{number}:{p}" for p in places}
        self._steps = _Steps(SimTransaction(number, values), unsent=dict(values))

    @property
    def _producer(self) -> tuple[int, int]:
        assert self._given is not None
        return self._given.producer_id, self._given.epoch

    def _open(self, steps: _Steps) -> None:
        places = tuple((MIRROR, p) for p in sorted(steps.transaction.values))
        command = AddToTransaction(0, self.name, *self._producer, places, (SINK,))

        def opened(result: Any) -> None:
            answer = None if result is None else result.answer
            if isinstance(answer, ProducerGiven):
                steps.is_open = True
            elif answer in {_R.FENCED, _R.UNKNOWN_PRODUCER}:
                self._fenced()
            self.again(0, 2 if steps.is_open else 60)  # who was answered may write at once

        self.coordinate(lambda topics: topics.transaction(self.name), command, opened)

    def _fenced(self) -> None:
        """Somebody has ended it meanwhile: only the coordinator's clock does that."""
        if not self.times_out:
            raise PromiseBroken(f"{self.name} was fenced")
        assert self._steps is not None
        asked = self._steps.transaction.asked_to_commit
        self._finish(Ended.UNKNOWN if asked else Ended.ABORTED)
        self._given = None

    def _finish(self, ended: Ended) -> None:
        assert self._steps is not None
        self._steps.transaction.ended = ended
        self.done.append(self._steps.transaction)
        self._steps = None

    def _append(self, steps: _Steps, p: int, value: str) -> None:
        led = self.world.led_topics(MIRROR, p)
        if led is None:
            self.again()
            return
        topics, topic = led
        producer = (*self._producer, 0)
        data = batch_bytes([value], producer, attributes=0x10)
        batch = StreamBatch(topic.number, p, 1, *producer, TRANSACTIONAL, 5, data)

        def appended(outcomes: Any) -> None:
            outcome = None if outcomes is None else outcomes[0]
            if outcome is not None and outcome.refusal is None:
                steps.unsent.pop(p, None)
            elif outcome is not None and outcome.refusal is not _R.TOPIC_UNKNOWN:
                self._fenced()
            self.again(1, 60)

        self.ask(topics, lambda at, done: at.append(topic.prgs[p], [batch], done), appended)

    def _send_offsets(self, steps: _Steps) -> None:
        rows = (((self.name, 0), CommittedOffset(steps.transaction.number)),)
        command = CommitInTransaction(0, SINK, -1, "", *self._producer, rows)

        def sent(result: Any) -> None:
            if result is not None and result.answer == (None,):
                steps.offsets_sent = True
            elif result is not None and isinstance(result.answer, StreamRefusal):
                self._fenced()
            self.again(1, 60)

        self.coordinate(lambda topics: topics.group(SINK), command, sent)

    def _end(self, steps: _Steps) -> None:
        transaction = steps.transaction
        if not steps.is_decided:
            steps.is_decided, transaction.asked_to_commit = True, self.rng.random() < 0.7
        commit = transaction.asked_to_commit
        command = EndTransaction(0, self.name, *self._producer, commit=commit)

        def ended(result: Any) -> None:
            answer = None if result is None else result.answer
            if isinstance(answer, ProducerGiven):
                self._given = answer
                self._finish(Ended.COMMITTED if commit else Ended.ABORTED)
            elif answer in {_R.FENCED, _R.UNKNOWN_PRODUCER}:
                self._fenced()
            elif answer is _R.WRONG_TRANSACTION_STATE:
                raise PromiseBroken(f"{self.name}: {answer}")
            self.again(1, 60)

        self.coordinate(lambda topics: topics.transaction(self.name), command, ended)
