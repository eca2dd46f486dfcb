"""The lanes of this node to partitions of streams: what clients send, until the log has it.

All that waits for a partition goes as one batch, and the next when that is answered. A batch has
the number of this node's producer and its place among what that sent: one whose answer is not
known is asked for again, and counts once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from quantum.broker.streams import (
    AppendOutcome,
    InitProducer,
    ProducerGiven,
    StreamBatch,
    StreamRefusal,
)
from quantum.broker.streams.producers import add_sequence
from quantum.broker.streams.topic_configs import DEFAULTS, MESSAGE_BYTES_MAX, TIMESTAMP_TYPE
from quantum.mesh.tenant import Tenant
from quantum.mesh.topic_views import PrgLeader, TopicView
from quantum.mesh.topics import AppendDone, CoordinateDone
from quantum.model.records import Record, RecordWriter

StreamDone: TypeAlias = Callable[[StreamRefusal | None], None]

_BATCH_BYTES_MAX: Final = 512 << 10
"""What one batch has, unless one message alone has more."""
_BATCH_RECORDS_MAX: Final = 4_096
_RECORD_BYTES: Final = 128
"""What a record costs beside what its sender said."""
_ANSWER_MS_MAX: Final = 3_000
"""An answer that is not here by then is asked for again, as it is when another node leads."""
_LOG_APPEND_TIME: Final = "LogAppendTime"


@dataclass(slots=True)
class _Waiting:
    record: Record
    size: int
    done: StreamDone


class RecordLane:
    """What this node's clients have for one partition."""

    def __init__(self, tenant: Tenant, lanes: RecordLanes, topic: TopicView, p: int) -> None:
        self._tenant = tenant
        self._lanes = lanes
        self._topic = topic
        self._p = p
        self._waiting: list[_Waiting] = []
        self._producer: ProducerGiven | None = None
        self._sequence = 0
        self._open: tuple[StreamBatch, list[StreamDone]] | None = None
        self._asked: PrgLeader | None = None
        """Who led when the open batch was last asked for; None: nobody is asked."""
        self._asked_ms = 0
        self._attempt = 0
        self._is_due = False
        self.is_gone = False
        """Whether its stream was not there any more."""

    @property
    def is_idle(self) -> bool:
        return self._open is None and not self._waiting

    def add(self, record: Record, size: int, done: StreamDone) -> None:
        """Let a record go with this turn; `done` is called when the log has it, or has not."""
        self._waiting.append(_Waiting(record, 2 * size + _RECORD_BYTES, done))
        if not self._is_due:
            self._is_due = True
            self._tenant.soon(self.flush)

    def flush(self) -> None:
        """Ask for what is open, or for what waits."""
        self._is_due = False
        topics, prg = self._tenant.topics, self._topic.prgs[self._p]
        leader, now_ms = topics.leader(prg), self._tenant.tick_ms
        is_recent = self._asked == leader and now_ms - self._asked_ms < _ANSWER_MS_MAX
        if is_recent or leader.closed or leader.node is None:
            return  # it is looked at again
        if self._open is None:
            self._open = self._gather()
        if self._open is not None:
            self._asked, self._asked_ms = leader, now_ms
            self._attempt += 1
            topics.append_anywhere(prg, self._open[0], self._answer_to(self._attempt))

    def _gather(self) -> tuple[StreamBatch, list[StreamDone]] | None:
        """Make a batch of what waits; None: nothing does, or this node has no producer yet."""
        if not self._waiting:
            return None
        producer = self._producer = self._producer or self._lanes.take_producer()
        if producer is None:
            return None
        taken, size = 0, 0
        for each in self._waiting[:_BATCH_RECORDS_MAX]:
            size += each.size
            if taken and size > self._bytes_max():
                break
            taken += 1
        some, self._waiting = self._waiting[:taken], self._waiting[taken:]
        records = [each.record for each in some]
        data = self._lanes.writer.join_records(
            *(records, producer.producer_id, producer.epoch, self._sequence),
            is_append_time=self._topic.configs.get(TIMESTAMP_TYPE) == _LOG_APPEND_TIME,
        )
        facts = (self._topic.number, self._p, taken, producer.producer_id, producer.epoch)
        newest_ms = max(each.timestamp_ms for each in records)
        batch = StreamBatch(*facts, self._sequence, 0, newest_ms, data)
        return batch, [each.done for each in some]

    def _bytes_max(self) -> int:
        return min(message_bytes_max(self._topic), _BATCH_BYTES_MAX)

    def _answer_to(self, attempt: int) -> AppendDone:
        assert self._open is not None
        batch, dones = self._open

        def answered(outcomes: list[AppendOutcome] | None) -> None:
            if self._open is None or self._open[0] is not batch:
                return  # another attempt was answered before
            refusal = None if outcomes is None else outcomes[0].refusal
            if outcomes is not None and refusal is not StreamRefusal.BUSY:
                self._finish(batch, dones, refusal)
            elif attempt == self._attempt:
                self._asked = None  # nobody knows: it is asked for again

        return answered

    def _finish(
        self, batch: StreamBatch, dones: list[StreamDone], refusal: StreamRefusal | None
    ) -> None:
        self._open = self._asked = None
        if refusal is None:
            self._sequence = add_sequence(self._sequence, batch.count)
        else:
            self._producer, self._sequence = None, 0  # another one, from the beginning
        self.is_gone = refusal is StreamRefusal.TOPIC_UNKNOWN
        for done in dones:
            done(refusal)
        if self._waiting:
            self._tenant.soon(self.flush)

    def on_tick(self) -> None:
        if (self._open is not None or self._waiting) and not self._is_due:
            self.flush()


class RecordLanes:
    """All lanes of one tenant on this node, and the producers that they write as."""

    def __init__(self, tenant: Tenant, writer: Callable[[], RecordWriter | None]) -> None:
        self._tenant = tenant
        self._writer = writer
        self._lanes: dict[tuple[int, int], RecordLane] = {}
        self._given: list[ProducerGiven] = []
        self._asked_ms: int | None = None
        """When a producer was asked for; None: none is."""

    def add(self, topic: TopicView, p: int, record: Record, size: int, done: StreamDone) -> None:
        """Let the log of a partition have a record."""
        lane = self._lanes.get((topic.number, p))
        if lane is None:
            lane = RecordLane(self._tenant, self, topic, p)
            self._lanes[topic.number, p] = lane
        lane.add(record, size, done)

    @property
    def writer(self) -> RecordWriter:
        writer = self._writer()
        assert writer is not None, "doors open when the node has said who writes"
        return writer

    def partition_of(self, topic: TopicView, key: bytes) -> int:
        """Return where messages of a key go."""
        return self.writer.key_partition(key, topic.partitions)

    def take_producer(self) -> ProducerGiven | None:
        """Return a producer that nobody writes as; None: one is asked for."""
        if self._given:
            return self._given.pop()
        now_ms, topics = self._tenant.tick_ms, self._tenant.topics
        if self._asked_ms is None or now_ms - self._asked_ms >= _ANSWER_MS_MAX:
            self._asked_ms = now_ms
            topics.coordinate(topics.producer_prg(), InitProducer(0, None, 0), self._on_given())
        return None

    def _on_given(self) -> CoordinateDone:
        def given(result: object) -> None:
            self._asked_ms = None
            answer = getattr(result, "answer", None)
            if isinstance(answer, ProducerGiven):
                self._given.append(answer)
                self._tenant.soon(self.on_tick)

        return given

    def on_tick(self) -> None:
        """Ask again where nobody knows what became of it, and forget streams that are gone."""
        for key, lane in list(self._lanes.items()):
            lane.on_tick()
            if lane.is_gone and lane.is_idle:
                del self._lanes[key]


def message_bytes_max(topic: TopicView) -> int:
    """Return how large a message of a stream may be."""
    return int(topic.configs.get(MESSAGE_BYTES_MAX, DEFAULTS[MESSAGE_BYTES_MAX]))
