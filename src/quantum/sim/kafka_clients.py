"""Kafka's clients by the bytes they send: pipelined requests on one connection of a simulated node.

They believe nothing that a broker has in its memory: answers come in the order of the requests,
what one connection sent in order is in order in the log, a fetch gives what its isolation allows.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, Protocol

from kio.index import load_request_schema, load_response_schema

from clustor.sim.errors import PromiseBroken
from clustor.sim.scenario import MS
from quantum.protocols.kafka.codec import (
    ApiKey,
    KafkaCode,
    MarkerKind,
    decode,
    encode,
    iterate_records,
    read_header,
    read_marker,
    shape,
    versions_of,
)
from quantum.sim.topic_clients import (
    MIRROR,
    PARTITIONS,
    PLAIN,
    SentBatch,
    TopicClient,
    TopicsWorld,
    batch_bytes,
)
from quantum.sim.wire import ClientEnd, SimLine

_SILENCE: Final = 3_000 * MS
_PIPELINED_MAX: Final = 5
"""Batches that a stock producer has on their way at once, and the log remembers."""
_HEAD: Final = struct.Struct(">hhih")
_BATCH_HEAD: Final = struct.Struct(">qi")
_ASK_AGAIN: Final = frozenset(
    {
        KafkaCode.not_leader_or_follower,
        KafkaCode.not_enough_replicas,
        KafkaCode.request_timed_out,
        KafkaCode.unknown_topic_or_partition,
        KafkaCode.fenced_leader_epoch,
        KafkaCode.unknown_leader_epoch,
    }
)
"""After these a stock client looks for the leader and asks again."""

Answered = Callable[[Any], None]


class KafkaWorld(TopicsWorld, Protocol):
    """A world to whose nodes one can connect as Kafka's clients do."""

    def dial_kafka(
        self, client: ClientEnd, place: tuple[str, int], rng: Random, /
    ) -> SimLine | None:
        """Connect to who leads a partition, or at times to any other node; None: nobody runs."""


def split_batches(data: bytes) -> Iterator[bytes]:
    """Walk the whole batches of fetched records."""
    while len(data) >= _BATCH_HEAD.size:
        end = _BATCH_HEAD.size + _BATCH_HEAD.unpack_from(data)[1]
        if end > len(data):
            return  # the rest of it comes with the next fetch
        yield data[:end]
        data = data[end:]


class KafkaClient(TopicClient):
    """One connection after the other, and what was asked on it."""

    def __init__(self, world: KafkaWorld, rng: Random, name: str) -> None:
        super().__init__(world, rng)
        self._kafka: KafkaWorld = world
        self.name = name
        self.line: SimLine | None = None
        self._correlation = 0
        self._asked: deque[tuple[int, ApiKey, int, Answered]] = deque()
        self._received = b""
        self._turns = 0

    def again(self, least: int = 5, most: int = 120) -> None:
        """Plan the next step, in the place of one that was planned before."""
        self._turns += 1
        turn = self._turns
        self.world.later(
            self.rng.randint(least, most) * MS,
            lambda: self.step() if turn == self._turns else None,
        )

    def connect(self, place: tuple[str, int]) -> bool:
        """Have a connection; False where nobody runs."""
        if self.line is None:
            self._received = b""
            self.line = self._kafka.dial_kafka(self, place, self.rng)
        return self.line is not None

    def ask_wire(self, key: ApiKey, version: int, facts: dict[str, Any], then: Answered) -> None:
        """Send a request behind those that wait for their answers."""
        assert self.line is not None
        self._correlation += 1
        name = self.name.encode()
        head = _HEAD.pack(key, version, self._correlation, len(name)) + name
        head += b"\0" if version >= versions_of(key, version).flexible_from else b""
        body = head + encode(shape(load_request_schema(key, version), facts))
        self._asked.append((self._correlation, key, version, then))
        self.line.send(len(body).to_bytes(4, "big") + body)
        line, asked = self.line, self._correlation
        self._kafka.later(_SILENCE, lambda: self._give_up(line, asked))

    def _give_up(self, line: SimLine, asked: int) -> None:
        if line is self.line and self._asked and self._asked[0][0] <= asked:
            self.leave()

    def leave(self) -> None:
        """Close the connection, and come again; what was not answered is unknown."""
        if self.line is not None:
            line, self.line = self.line, None
            line.drop()
            self._cut()

    def lost(self, line: SimLine) -> None:
        if line is self.line:
            self.line = None
            self._cut()

    def _cut(self) -> None:
        self._asked.clear()
        self.unanswered()

    def unanswered(self) -> None:
        """The connection is gone, with every answer that was awaited on it."""
        raise NotImplementedError

    def received(self, line: SimLine, data: bytes) -> None:
        if line is not self.line:
            return
        self._received += data
        while line is self.line and len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < end:
                return
            answer, self._received = self._received[4:end], self._received[end:]
            self._take_answer(answer)

    def _take_answer(self, answer: bytes) -> None:
        correlation = int.from_bytes(answer[:4], "big")
        if not self._asked or self._asked[0][0] != correlation:
            awaited = [each[0] for each in self._asked]
            raise PromiseBroken(f"{self.name}: {correlation} is answered, awaited: {awaited}")
        _, key, version, then = self._asked.popleft()
        start = 5 if version >= versions_of(key, version).flexible_from else 4
        then(decode(load_response_schema(key, version), answer, start))


class PipeliningProducer(KafkaClient):
    """An idempotent producer as stock clients are: five requests on their way, one connection.

    What comes back as out of order though nothing before it failed would end it for good.
    """

    def __init__(self, world: KafkaWorld, rng: Random, name: str, limit: int) -> None:
        super().__init__(world, rng, name)
        self._left = limit
        self._number = 0
        self._id: int | None = None
        self._sequence = 0
        self._is_known = False  # the partition has a batch of it
        self._place = (PLAIN, rng.randrange(PARTITIONS))
        self._flight: list[SentBatch] = []
        self._has_failed = False
        self._unsent: deque[SentBatch] = deque()
        self.acknowledged: dict[str, tuple[str, int, int]] = {}

    @property
    def is_idle(self) -> bool:
        return not self._left and not self._flight

    def step(self) -> None:
        if self._id is None:
            facts = {
                "transactional_id": None,
                "transaction_timeout": 60_000,
                "producer_id": -1,
                "producer_epoch": -1,
            }
            if self.connect(self._place):
                self.ask_wire(ApiKey.INIT_PRODUCER_ID, 3, facts, self._given)
            else:
                self.again()
            return
        if not self._flight and not self._left:
            return
        self._fill()
        if not self.connect(self._place):
            self.again()
            return
        self._has_failed = False
        self._unsent = deque(self._flight)
        self._send_next()

    def _given(self, answer: Any) -> None:
        if answer.error_code is KafkaCode.none:
            self._id = answer.producer_id
        self.again()

    def _fill(self) -> None:
        # The first batch goes alone: who is not known yet may begin anywhere.
        most = self.rng.randint(1, _PIPELINED_MAX) if self._is_known else 1
        while self._left and len(self._flight) < most:
            self._left -= 1
            values = []
            for _ in range(self.rng.randint(1, 3)):
                self._number += 1
                values.append(f"{self.name}:{self._number}")
            self._flight.append(SentBatch(values, self._sequence))
            self._sequence += len(values)

    def _send_next(self) -> None:
        """Send the next of the flight: several at once, or each a little later than the last."""
        line = self.line
        if line is None or not self._unsent:
            return
        self._send(self._unsent.popleft())
        if self.rng.random() < 0.3:  # what is answered at once has to wait for its turn, too
            self.ask_wire(ApiKey.API_VERSIONS, 0, {}, lambda _answer: self._rest())
        delay = self.rng.choice((0, 0, self.rng.randint(1, 25) * MS))
        self._kafka.later(delay, lambda: self._send_next() if self.line is line else None)

    def _send(self, sent: SentBatch) -> None:
        assert self._id is not None
        topic, p = self._place
        records = batch_bytes(sent.values, (self._id, 0, sent.sequence))
        rows = [{"name": topic, "partition_data": [{"index": p, "records": records}]}]
        facts = {"transactional_id": None, "acks": -1, "timeout": 2_000, "topic_data": rows}
        self.ask_wire(ApiKey.PRODUCE, 8, facts, lambda answer: self._told(sent, answer))

    def _told(self, sent: SentBatch, answer: Any) -> None:
        row = answer.responses[0].partition_responses[0]
        if row.error_code is KafkaCode.none:
            self._is_known = True
            self._flight.remove(sent)
            for nth, value in enumerate(sent.values):
                self.acknowledged[value] = (*self._place, row.base_offset + nth)
        elif row.error_code in _ASK_AGAIN:
            self._has_failed = True
        elif row.error_code is not KafkaCode.out_of_order_sequence_number or not self._has_failed:
            raise PromiseBroken(f"{self.name} {sent}: {row.error_code!r} ends a stock producer")
        self._rest()

    def _rest(self) -> None:
        """Go on once everything of this flight is answered."""
        if not self._asked and not self._unsent:
            if self._has_failed:
                self.leave()  # it looks for the leader
            else:
                self.again()

    def unanswered(self) -> None:
        self._unsent.clear()
        self.again()


class CommittedReader(KafkaClient):
    """A stock consumer with read_committed of one partition, from its start to its end."""

    def __init__(self, world: KafkaWorld, rng: Random, partition: int) -> None:
        super().__init__(world, rng, f"c{partition}")
        self.place = (MIRROR, partition)
        self.position = 0
        self.given: dict[int, str] = {}
        """What it was given, by offset."""

    def step(self) -> None:
        if not self.connect(self.place):
            self.again()
            return
        bytes_max = self.rng.choice((1, 200, 4_000))
        row = {
            "partition": self.place[1],
            "current_leader_epoch": -1,
            "fetch_offset": self.position,
            "log_start_offset": -1,
            "partition_max_bytes": bytes_max,
        }
        facts = {
            "replica_id": -1,
            "max_wait": self.rng.choice((0, 100)),
            "min_bytes": 1,
            "max_bytes": 10_000,
            "isolation_level": 1,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": self.place[0], "partitions": [row]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        self.ask_wire(ApiKey.FETCH, 11, facts, self._told)

    def _told(self, answer: Any) -> None:
        row = answer.responses[0].partitions[0]
        if row.error_code is KafkaCode.none:
            self._take(row)
        elif row.error_code is KafkaCode.offset_out_of_range:
            if self.position <= row.high_watermark:
                raise PromiseBroken(f"{self.name}: {self.position} is out of range: {row}")
            self.leave()  # a leader that does not know yet what another has shown
            return
        elif row.error_code in _ASK_AGAIN:
            self.leave()
            return
        else:
            raise PromiseBroken(f"{self.name}: {row.error_code!r}")
        self.again()

    def _take(self, row: Any) -> None:
        """Skip what was aborted, as Kafka's consumers do: by the list of the answer."""
        waiting = sorted(
            row.aborted_transactions or (), key=lambda each: (each.first_offset, each.producer_id)
        )
        gone: set[int] = set()
        for batch in split_batches(bytes(row.records or b"")):
            header = read_header(batch)
            if header.base_offset >= row.last_stable_offset:
                raise PromiseBroken(f"{self.name}: {header} is not decided, and was given")
            if header.base_offset > self.position:
                raise PromiseBroken(f"{self.name}: {header.base_offset} came for {self.position}")
            while waiting and waiting[0].first_offset <= header.base_offset:
                gone.add(waiting.pop(0).producer_id)
            if header.is_control:
                if read_marker(batch).kind is MarkerKind.ABORT:
                    gone.discard(header.producer_id)
            elif header.producer_id not in gone:
                for record in iterate_records(batch):
                    assert record.value is not None
                    self._give(record.offset, record.value.decode())
            self.position = header.base_offset + header.record_count

    def _give(self, offset: int, value: str) -> None:
        if offset >= self.position:
            self.given[offset] = value

    def unanswered(self) -> None:
        self.again()
