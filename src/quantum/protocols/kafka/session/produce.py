"""Produce: batches are checked, handed to the leader's log untouched, and answered when durable.

`acks` 1 and all are the same here, durable on a quorum; 0 is logged like the others and not
answered. A partition whose leader is elsewhere is refused with the leader's address.
"""

from __future__ import annotations

from typing import Final

from quantum.broker.streams import AppendOutcome, StreamBatch
from quantum.broker.streams.appending import TRANSACTIONAL
from quantum.broker.streams.topic_configs import DEFAULTS, MESSAGE_BYTES_MAX, TIMESTAMP_TYPE
from quantum.mesh.topic_views import TopicView
from quantum.mesh.topics import AppendDone
from quantum.protocols.kafka.codec import (
    BatchHeader,
    BatchRefused,
    KafkaCode,
    MalformedRequest,
    ProducedPartition,
    ProduceRow,
    check_produced,
    encode_produce_response,
    scan_produce,
    stamp_append_time,
    versions_of,
)
from quantum.protocols.kafka.session.gathering import Gathering
from quantum.protocols.kafka.session.leader_hints import LeaderHints
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.protocols.kafka.session.transaction_joins import join_first
from quantum.tenancy import Operation, Rate, ResourceKind

_ACKS: Final = frozenset({-1, 0, 1})
_JOINS_BY_ITSELF: Final = 12
"""From this version on a batch brings its partition into its transaction (KIP-890)."""
_LOG_APPEND_TIME: Final = "LogAppendTime"
_NEVER: Final = -1
_TIMEOUT_MS_MIN: Final = 100
_TIMEOUT_MS_MAX: Final = 120_000


def on_produce(request: KafkaRequest) -> None:
    """Begin with a Produce. Raises RequestFault for one that cannot be read."""
    if request.version < versions_of(request.head.api_key, request.version).served_from:
        raise MalformedRequest("message sets before version 2 are not stored")
    facts = scan_produce(request.data, request.head.body_start, request.version)
    ProduceWork(request, *facts).begin()


class ProduceWork:
    """One Produce on its way."""

    def __init__(
        self,
        request: KafkaRequest,
        transactional_id: bytes | None,
        acks: int,
        timeout_ms: int,
        rows: list[ProduceRow],
    ) -> None:
        self._request = request
        self._transactional_id = transactional_id
        self._acks = acks
        self._timeout_ms = max(_TIMEOUT_MS_MIN, min(timeout_ms, _TIMEOUT_MS_MAX))
        self._rows = rows
        self._answers: dict[tuple[bytes, int], ProducedPartition] = {}
        self._hints = LeaderHints(request)
        self._gathering = Gathering(self._answer)
        self._batches: dict[int, list[tuple[tuple[bytes, int], StreamBatch]]] = {}
        """What goes to each PRG, with the partition it is answered for."""
        self._joins: dict[tuple[int, int], list[tuple[str, int]]] = {}
        """Partitions that may have to join a transaction, by producer and epoch."""
        self._has_failed = False
        self._is_append_time: set[tuple[bytes, int]] = set()

    def begin(self) -> None:
        """Check every batch, and hand on those that pass."""
        request = self._request
        request.node.at(request.node.tick_ms + self._timeout_ms, self)
        code = self._refuse_whole()
        for row in self._rows:
            if code is None:
                self._take(row)
            else:
                self._refuse(row[0], row[1], code)
        self._charge()
        if self._joins and request.version >= _JOINS_BY_ITSELF:
            self._join_then_append()
        else:
            self._append()

    def _refuse_whole(self) -> KafkaCode | None:
        if self._acks not in _ACKS:
            return KafkaCode.invalid_required_acks
        name = self._transactional_id
        if name is not None and not self._request.may(
            Operation.PRODUCE, ResourceKind.TRANSACTIONAL_ID, name.decode(errors="replace")
        ):
            return KafkaCode.transactional_id_authorization_failed
        return None

    def _take(self, row: ProduceRow) -> None:
        name, index, start, end = row
        request = self._request
        topic = request.tenant.topics.topic(name.decode(errors="replace"))
        if not request.may(Operation.PRODUCE, ResourceKind.STREAM, name.decode(errors="replace")):
            self._refuse(name, index, KafkaCode.topic_authorization_failed)
        elif topic is None or not 0 <= index < topic.partitions:
            self._refuse(name, index, KafkaCode.unknown_topic_or_partition)
        elif self._is_led_here(topic, name, index):
            batch = None if start < 0 else memoryview(request.data)[start:end]
            self._check(topic, name, index, batch)

    def _is_led_here(self, topic: TopicView, name: bytes, index: int) -> bool:
        leader = self._request.tenant.topics.leader(topic.prgs[index])
        if leader.is_here and not leader.closed:
            return True
        if leader.is_here:
            self._refuse(name, index, KafkaCode.not_enough_replicas, leader.closed)
            return False
        self._refuse(name, index, KafkaCode.not_leader_or_follower)
        answer = self._answers[name, index]
        answer.leader_id, answer.leader_epoch = self._hints.of(leader)
        return False

    def _check(self, topic: TopicView, name: bytes, index: int, data: memoryview | None) -> None:
        configs = topic.configs
        limit = int(configs.get(MESSAGE_BYTES_MAX, DEFAULTS[MESSAGE_BYTES_MAX]))
        try:
            header = check_produced(data, api_version=self._request.version, batch_bytes_max=limit)
        except BatchRefused as refused:
            self._request.node.count_batch(refused)
            self._refuse(name, index, refused.code, refused.reason)
            return
        assert data is not None
        kept: bytes | memoryview = data
        if configs.get(TIMESTAMP_TYPE) == _LOG_APPEND_TIME:
            stamped = bytearray(data)
            stamp_append_time(stamped, self._request.now_ms)
            self._is_append_time.add((name, index))
            kept = bytes(stamped)
        self._keep(topic, name, index, header, kept)

    def _keep(
        self,
        topic: TopicView,
        name: bytes,
        index: int,
        header: BatchHeader,
        data: bytes | memoryview,
    ) -> None:
        batch = StreamBatch(
            topic.number,
            index,
            header.record_count,
            header.producer_id,
            max(0, header.producer_epoch),
            max(0, header.base_sequence),
            TRANSACTIONAL if header.is_transactional else 0,
            header.max_timestamp,
            data,
        )
        self._batches.setdefault(topic.prgs[index], []).append(((name, index), batch))
        if header.is_transactional:
            key = (header.producer_id, header.producer_epoch)
            self._joins.setdefault(key, []).append((topic.name, index))

    def _refuse(self, name: bytes, index: int, code: KafkaCode, reason: str = "") -> None:
        self._has_failed = True
        words = reason.encode() or None
        self._answers[name, index] = ProducedPartition(index, code, error_message=words)

    def _charge(self) -> None:
        """Count what is produced against the tenant's rates: who is too fast is told to wait."""
        request = self._request
        guard, now_ms = request.tenant.tenant.guard, request.node.tick_ms
        count = sum(batch.count for rows in self._batches.values() for _, batch in rows)
        waits = (
            guard.ask(Rate.PUBLISHES, count, now_ms).wait_ms,
            guard.ask(Rate.PUBLISH_BYTES, request.size, now_ms).wait_ms,
        )
        request.throttle_ms = max(waits)

    def _join_then_append(self) -> None:
        """Bring partitions into their transaction before the batches (KIP-890)."""
        name = self._transactional_id
        if name is None or len(self._joins) != 1:
            self._refuse_transactional(KafkaCode.invalid_txn_state)
            self._append()
            return
        ((producer_id, epoch), partitions) = next(iter(self._joins.items()))

        def joined(code: KafkaCode) -> None:
            if code is not KafkaCode.none:
                self._refuse_transactional(code)
            self._append()

        join_first(self._request, name.decode(), producer_id, epoch, partitions, joined)

    def _refuse_transactional(self, code: KafkaCode) -> None:
        for prg, rows in list(self._batches.items()):
            for (name, index), batch in rows:
                if batch.flags & TRANSACTIONAL:
                    self._refuse(name, index, code)
            self._batches[prg] = [row for row in rows if not row[1].flags & TRANSACTIONAL]

    def _append(self) -> None:
        topics = self._request.tenant.topics
        for prg, rows in self._batches.items():
            if rows:
                self._gathering.expect()
                topics.append(prg, [batch for _, batch in rows], self._done_with(prg, rows))
        self._batches = {}
        self._gathering.begin()

    def _done_with(self, prg: int, rows: list[tuple[tuple[bytes, int], StreamBatch]]) -> AppendDone:
        keys = [key for key, _ in rows]

        def done(outcomes: list[AppendOutcome] | None) -> None:
            if outcomes is None:
                leader = self._request.tenant.topics.leader(prg)
                for name, index in keys:
                    self._refuse(name, index, KafkaCode.not_leader_or_follower)
                    answer = self._answers[name, index]
                    answer.leader_id, answer.leader_epoch = self._hints.of(leader)
            else:
                for (name, index), outcome in zip(keys, outcomes, strict=True):
                    self._settle(name, index, outcome)
            self._gathering.came()

        return done

    def _settle(self, name: bytes, index: int, outcome: AppendOutcome) -> None:
        if outcome.refusal is not None:
            self._refuse(name, index, self._request.code(outcome.refusal), outcome.refusal.value)
            return
        stamped = (name, index) in self._is_append_time
        self._answers[name, index] = ProducedPartition(
            index,
            KafkaCode.none,
            outcome.base_offset,
            outcome.log_append_ms if stamped else _NEVER,
            outcome.start_offset,
        )

    @property
    def is_over(self) -> bool:
        return self._request.is_over

    def due(self) -> None:
        """Answer with what is known: the rest may or may not come to stand in the log."""
        for name, index, _, _ in self._rows:
            if (name, index) not in self._answers:
                self._refuse(name, index, KafkaCode.request_timed_out)
        self._answer()

    def _answer(self) -> None:
        request = self._request
        if request.is_over:
            return
        if self._acks == 0:
            request.finish(())
            if self._has_failed:
                request.connection.close_soon()  # the only way to say it, as Apache does
            return
        topics: dict[bytes, list[ProducedPartition]] = {}
        for name, index, _, _ in self._rows:
            topics.setdefault(name, []).append(self._answers[name, index])
        answer = encode_produce_response(
            request.version,
            request.head.correlation_id,
            list(topics.items()),
            request.throttle_ms,
            self._hints.endpoints(),
        )
        request.finish((answer,))
