"""The listener with partitions and a transaction coordinator behind it.

What a node would send through its channels is carried here at once, or held back by a test.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from quantum.broker.streams import (
    AddToTransaction,
    AdmitTransaction,
    AppendBatch,
    BatchAppended,
    EndArrived,
    EndInPartition,
    EndTransaction,
    InitProducer,
    MarkerPlaced,
    ProducerGiven,
    StreamPartition,
    StreamRefusal,
    TransactionCoordinator,
)
from quantum.protocols.kafka.codec import (
    BatchRefused,
    FetchedPartition,
    KafkaCode,
    Marker,
    MarkerKind,
    ProducedPartition,
    RequestHead,
    build_marker,
    check_produced,
    encode_produce_response,
    place,
    read_header,
    scan_produce,
)
from quantum.protocols.kafka.requests import code_of
from tests.quantum.kafka.listener import Listener

COMMITTED = 1


class TransactionListener(Listener):
    """Batches are placed by `StreamPartition`, ends are decided by `TransactionCoordinator`."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = TransactionCoordinator(3)
        self.partitions: dict[Any, StreamPartition] = defaultdict(StreamPartition)
        self.channel: deque[Any] = deque()
        self.held_back = False
        self.answers: list[Any] = []

    def coordinate(self, command: Any) -> Any:
        result = self.coordinator.apply(command)
        self.channel += [*result.admissions, *result.markers]
        self.carry()
        self.answers.append(result.answer)
        return result.answer

    def carry(self) -> None:
        while self.channel and not self.held_back:
            word = self.channel.popleft()
            if word.partition is None:
                continue
            partition = self.partitions[word.partition]
            if not hasattr(word, "commit"):
                partition.apply(AdmitTransaction(0, word.producer_id, word.epoch))
                continue
            end = EndInPartition(0, word.producer_id, word.epoch, word.commit)
            placed = partition.apply(end)
            if isinstance(placed, MarkerPlaced):
                self._write_marker(word, placed)
            facts = (word.transactional_id, word.producer_id, word.epoch, word.partition)
            self.coordinator.apply(EndArrived(0, *facts))

    def _write_marker(self, word: Any, placed: MarkerPlaced) -> None:
        kind = MarkerKind.COMMIT if placed.commit else MarkerKind.ABORT
        batch = build_marker(
            Marker(kind, 0),
            offset=placed.offset,
            timestamp=0,
            producer_id=word.producer_id,
            producer_epoch=word.epoch,
        )
        self.logs[word.partition].append(batch)
        self._grown.notify_all()

    def end_of(self, topic: str, index: int) -> int:
        return self.partitions[topic, index].end_offset

    def _produce(self, head: RequestHead, request: bytes) -> bytes:
        facts = scan_produce(request, head.body_start, head.api_version)
        transactional_id, _, _, rows = facts
        topics: dict[bytes, list[ProducedPartition]] = defaultdict(list)
        with self._grown:
            for topic, index, start, end in rows:
                batch = memoryview(request)[start:end]
                produced = self._place(transactional_id, topic.decode(), index, batch, head)
                topics[topic].append(produced)
            self._grown.notify_all()
        return encode_produce_response(head.api_version, head.correlation_id, list(topics.items()))

    def _place(
        self, name: bytes | None, topic: str, index: int, batch: memoryview, head: RequestHead
    ) -> ProducedPartition:
        try:
            header = check_produced(batch, api_version=head.api_version)
        except BatchRefused as refused:
            return ProducedPartition(index, refused.code)
        producer = (header.producer_id, max(0, header.producer_epoch), max(0, header.base_sequence))
        if name is not None and head.api_version >= 12:
            # KIP-890: the partition is brought in by the batch itself.
            add = AddToTransaction(0, name.decode(), *producer[:2], ((topic, index),))
            refusal = self.coordinate(add)
            if isinstance(refusal, StreamRefusal):
                return ProducedPartition(index, code_of(refusal, head.api_key, head.api_version))
        command = AppendBatch(0, header.record_count, *producer, header.is_transactional)
        result = self.partitions[topic, index].apply(command)
        if isinstance(result, StreamRefusal):
            return ProducedPartition(index, code_of(result, head.api_key, head.api_version))
        assert isinstance(result, BatchAppended)
        if not result.repeat:
            stored = bytearray(batch)
            place(stored, result.base_offset, 0)
            self.logs[topic, index].append(bytes(stored))
        return ProducedPartition(index, KafkaCode.none, result.base_offset, -1, 0)

    def _fetched(self, head: RequestHead, body: Any) -> list[tuple[bytes, list[FetchedPartition]]]:
        topics = super()._fetched(head, body)
        for topic, (_, rows) in zip(body.topics, topics, strict=True):
            name = self.names[topic.topic_id] if head.api_version >= 13 else topic.topic
            for wanted, row in zip(topic.partitions, rows, strict=True):
                partition = self.partitions[name, row.index]
                row.last_stable_offset = stable = partition.last_stable_offset
                if body.isolation_level != COMMITTED:
                    continue
                row.batches = [
                    each for each in row.batches or () if read_header(each).base_offset < stable
                ]
                row.aborted = [
                    (each.producer_id, each.first_offset)
                    for each in partition.aborted_between(wanted.fetch_offset, stable)
                ]
        return topics

    def _given(self, head: RequestHead, answer: Any) -> dict[str, Any]:
        if isinstance(answer, ProducerGiven):
            return {"producer_id": answer.producer_id, "producer_epoch": answer.epoch}
        code = code_of(answer, head.api_key, head.api_version)
        return {"producer_id": -1, "producer_epoch": -1, "error_code": code}

    def _on_init_producer_id(self, head: RequestHead, body: Any) -> dict[str, Any]:
        timeout = round(body.transaction_timeout.total_seconds() * 1000)
        claim = (getattr(body, "producer_id", -1), getattr(body, "producer_epoch", -1))
        command = InitProducer(0, body.transactional_id, max(0, timeout), *claim)
        return self._given(head, self.coordinate(command))

    def _on_end_txn(self, head: RequestHead, body: Any) -> dict[str, Any]:
        command = EndTransaction(
            *(0, body.transactional_id, body.producer_id, body.producer_epoch, body.committed),
            bump=head.api_version >= 5,
        )
        return self._given(head, self.coordinate(command))

    def _on_add_partitions_to_txn(self, head: RequestHead, body: Any) -> dict[str, Any]:
        wanted = tuple((t.name, n) for t in body.v3_and_below_topics for n in t.partitions)
        answer = self.coordinate(
            AddToTransaction(
                *(0, body.v3_and_below_transactional_id, body.v3_and_below_producer_id),
                *(body.v3_and_below_producer_epoch, wanted),
            )
        )
        refusal = answer if isinstance(answer, StreamRefusal) else None
        code = code_of(refusal, head.api_key, head.api_version)
        facts = super()._on_add_partitions_to_txn(head, body)
        for topic in facts["results_by_topic_v3_and_below"]:
            for each in topic["results_by_partition"]:
                each["partition_error_code"] = code
        return facts
