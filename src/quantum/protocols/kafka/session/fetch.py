"""Fetch: stored batches as they stand, at once or when there are enough of them.

A fetch reads its partitions one after the other until its answer is full. Where there is too
little it waits for news of any of them, and reads again; its time ends that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from quantum.mesh.topic_views import LeaderView, ReadOutcome, TopicView
from quantum.protocols.kafka.codec import FetchedPartition, KafkaCode, encode_fetch_response
from quantum.protocols.kafka.requests import (
    FetchedFacts,
    FetchKey,
    FetchPlan,
    WantedPartition,
)
from quantum.protocols.kafka.session.foreign_batches import as_kafka
from quantum.protocols.kafka.session.leader_hints import LeaderHints
from quantum.protocols.kafka.session.metadata import find_topic, find_topic_by_id
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.tenancy import Operation, ResourceKind

_BY_ID: Final = 13
_READ_COMMITTED: Final = 1
_UNTOLD: Final = -1


def on_fetch(request: KafkaRequest) -> None:
    """Begin with a Fetch."""
    body = request.body
    tenant = request.tenant
    plan = tenant.fetch_sessions.plan(
        getattr(body, "session_id", 0),
        getattr(body, "session_epoch", _UNTOLD),
        _wanted(request, body),
        _forgotten(request, body),
        request.node.tick_ms,
    )
    if plan.error is not KafkaCode.none:
        pieces = encode_fetch_response(
            request.version, request.head.correlation_id, [], plan.error, plan.session_id
        )
        request.finish(pieces)
        return
    FetchWork(request, plan).begin()


def _wanted(request: KafkaRequest, body: Any) -> Iterator[tuple[FetchKey, WantedPartition]]:
    for topic in body.topics:
        name = _key_of(request, topic)
        for each in topic.partitions:
            yield (
                (name, each.partition),
                WantedPartition(
                    each.fetch_offset,
                    each.partition_max_bytes,
                    getattr(each, "current_leader_epoch", _UNTOLD),
                    getattr(each, "last_fetched_epoch", _UNTOLD),
                ),
            )


def _forgotten(request: KafkaRequest, body: Any) -> Iterator[FetchKey]:
    for topic in getattr(body, "forgotten_topics_data", ()):
        name = _key_of(request, topic)
        for index in topic.partitions:
            yield name, index


def _key_of(request: KafkaRequest, topic: Any) -> bytes:
    if request.version < _BY_ID:
        return str(topic.topic).encode()
    return bytes(16) if topic.topic_id is None else bytes(topic.topic_id.bytes)


class FetchWork:
    """One fetch on its way; `is_over` and `due` are for its deadline."""

    def __init__(self, request: KafkaRequest, plan: FetchPlan) -> None:
        body, limits = request.body, request.node.limits
        self._request = request
        self._plan = plan
        wait_ms = round(body.max_wait.total_seconds() * 1000)
        self._deadline_ms = request.node.tick_ms + max(0, min(wait_ms, limits.fetch_wait_ms_max))
        self._bytes_min = body.min_bytes
        self._bytes_max = max(0, min(body.max_bytes, limits.fetch_bytes_max))
        self._committed = body.isolation_level == _READ_COMMITTED
        self._keys = list(plan.partitions)
        self._topics: dict[bytes, TopicView | None] = {}
        self._hints = LeaderHints(request)
        self._rows: dict[FetchKey, FetchedPartition] = {}
        self._place = 0
        self._bytes = 0
        self._has_failed = False
        self._is_reading = False
        self._in_loop = False
        self._is_last = wait_ms <= 0
        self._cancels: list[Callable[[], None]] = []
        self._is_waiting = False
        self._is_planned = False  # its deadline is noted

    # Reading.

    def begin(self) -> None:
        """Read all partitions, one after the other."""
        if self._request.is_over:
            self._stop_waiting()
            return
        self._rows.clear()
        self._place = self._bytes = 0
        self._has_failed = False
        self._go_on()

    def _go_on(self) -> None:
        self._in_loop = True
        while self._place < len(self._keys):
            if not self._step(self._keys[self._place]):
                self._in_loop = False
                return
            self._place += 1
        self._in_loop = False
        self._decide()

    def _step(self, key: FetchKey) -> bool:
        """Read one partition, or refuse it; say whether that is done."""
        topic, p = self._find(key[0]), key[1]
        if topic is None or not 0 <= p < topic.partitions:
            by_id = self._request.version >= _BY_ID and topic is None
            code = KafkaCode.unknown_topic_id if by_id else KafkaCode.unknown_topic_or_partition
            return self._refuse(key, code)
        if not self._request.may(Operation.CONSUME, ResourceKind.STREAM, topic.name):
            return self._refuse(key, KafkaCode.topic_authorization_failed)
        wanted = self._plan.partitions[key]
        leader = self._request.tenant.topics.leader(topic.prgs[p])
        code = _epoch_code(leader, wanted.leader_epoch)
        if code is not KafkaCode.none:
            return self._refuse(key, code, leader)
        return self._read(key, topic, wanted)

    def _find(self, name: bytes) -> TopicView | None:
        if name not in self._topics:
            found = (
                find_topic_by_id(self._request, name)
                if self._request.version >= _BY_ID
                else find_topic(self._request, name.decode())
            )
            if found is None:
                return None
            self._topics[name] = found
        return self._topics[name]

    def _refuse(self, key: FetchKey, code: KafkaCode, leader: LeaderView | None = None) -> bool:
        self._has_failed = True
        # Not null: librdkafka takes an answer without records for one that is malformed.
        row = self._rows[key] = FetchedPartition(key[1], code, batches=[])
        if leader is not None and not leader.is_here:
            row.leader_id, row.leader_epoch = self._hints.of(leader)
        return True

    def _read(self, key: FetchKey, topic: TopicView, wanted: WantedPartition) -> bool:
        topics, p = self._request.tenant.topics, key[1]
        view = topics.partition(topic, p)
        if view is None:
            return self._refuse(key, KafkaCode.not_leader_or_follower)
        if not view.start <= wanted.fetch_offset <= view.high_watermark:
            self._refuse(key, KafkaCode.offset_out_of_range)
            self._tell_ends(self._rows[key], view.high_watermark, view.last_stable, view.start)
            return True
        end = view.last_stable if self._committed else view.high_watermark
        left = self._bytes_max - self._bytes
        if wanted.fetch_offset >= end or (left <= 0 and self._bytes):
            row = self._rows[key] = FetchedPartition(p, 0)
            self._tell_ends(row, view.high_watermark, view.last_stable, view.start)
            return True
        self._is_reading = True
        limit = max(1, min(left, wanted.bytes_max))
        topics.read(
            topic, p, wanted.fetch_offset, limit, lambda found: self._on_read(key, limit, found)
        )
        return not self._is_reading

    def _tell_ends(self, row: FetchedPartition, high: int, stable: int, start: int) -> None:
        row.high_watermark, row.last_stable_offset, row.log_start_offset = high, stable, start
        row.aborted = [] if self._committed else None
        if row.batches is None:
            row.batches = []

    def _on_read(self, key: FetchKey, limit: int, found: ReadOutcome) -> None:
        self._is_reading = False
        if found.refusal is not None:
            self._refuse(key, self._request.code(found.refusal))
        else:
            self._take(key, limit, found)
        if not self._in_loop:
            self._place += 1
            self._go_on()

    def _take(self, key: FetchKey, limit: int, found: ReadOutcome) -> None:
        row = self._rows[key] = FetchedPartition(key[1], 0)
        self._tell_ends(row, found.high_watermark, found.last_stable, found.start)
        batches: list[memoryview] = []
        row.batches = batches
        size, end = 0, 0
        for each in found.batches:
            if self._committed and each.base_offset >= found.last_stable:
                break
            data = as_kafka(each, self._request.node.readers)
            # The first batch of an answer goes whatever its size: else no client gets past it.
            if size + len(data) > limit and (batches or self._bytes):
                break
            batches.append(data)
            size += len(data)
            end = each.base_offset + each.count
        self._bytes += size
        topic = self._topics.get(key[0])
        if self._committed and batches and topic is not None:
            start = self._plan.partitions[key].fetch_offset
            ranges = self._request.tenant.topics.aborted(topic, key[1], start, end)
            row.aborted = [(each.producer_id, each.first_offset) for each in ranges]

    # Waiting.

    def _decide(self) -> None:
        enough = self._bytes >= self._bytes_min or self._has_failed or not self._keys
        if enough or self._is_last or self._request.node.tick_ms >= self._deadline_ms:
            self._answer()
        elif self._has_news():
            self._request.node.host.soon(self.begin)  # something came while others were read
        else:
            self._wait()

    def _has_news(self) -> bool:
        """Say whether a partition has more than was read of it."""
        topics = self._request.tenant.topics
        for name, p in self._keys:
            topic, row = self._topics.get(name), self._rows[name, p]
            view = None if topic is None else topics.partition(topic, p)
            if view is not None and (view.high_watermark, view.last_stable) != (
                row.high_watermark,
                row.last_stable_offset,
            ):
                return True
        return False

    def _wait(self) -> None:
        topics = self._request.tenant.topics
        self._is_waiting = True
        for name, p in self._keys:
            topic = self._topics[name]
            assert topic is not None
            self._cancels.append(topics.on_news(topic, p, self._on_news))
        if not self._is_planned:
            self._is_planned = True
            self._request.node.at(self._deadline_ms, self)

    def _on_news(self) -> None:
        if self._is_waiting:
            self._stop_waiting()
            self._request.node.host.soon(self.begin)

    def _stop_waiting(self) -> None:
        self._is_waiting = False
        cancels, self._cancels = self._cancels, []
        for cancel in cancels:
            cancel()

    @property
    def is_over(self) -> bool:
        """Whether nobody waits any more; what was asked of partitions is taken back then."""
        if self._request.is_over and self._is_waiting:
            self._stop_waiting()
        return self._request.is_over

    def due(self) -> None:
        """Answer with what there is."""
        self._is_last = True
        if self._is_waiting:
            self._stop_waiting()
            self.begin()

    # The answer.

    def _answer(self) -> None:
        request, plan = self._request, self._plan
        if request.is_over:
            return
        facts = {
            key: FetchedFacts(
                row.high_watermark, row.log_start_offset, bool(row.batches), row.error
            )
            for key, row in self._rows.items()
        }
        topics: dict[bytes, list[FetchedPartition]] = {}
        for key in request.tenant.fetch_sessions.select(plan, facts):
            topics.setdefault(key[0], []).append(self._rows[key])
        pieces = encode_fetch_response(
            request.version,
            request.head.correlation_id,
            list(topics.items()),
            0,
            plan.session_id,
            request.throttle_ms,
            self._hints.endpoints(),
        )
        request.finish(pieces)


def _epoch_code(leader: LeaderView, said: int) -> KafkaCode:
    """Judge what the client believes of the leader."""
    if not leader.is_here:
        return KafkaCode.not_leader_or_follower
    if said in {_UNTOLD, leader.epoch}:
        return KafkaCode.none
    older = said < leader.epoch
    return KafkaCode.fenced_leader_epoch if older else KafkaCode.unknown_leader_epoch
