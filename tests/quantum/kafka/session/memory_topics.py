"""One node's topics in memory, by the machines that a partition's log drives: a fake at the port.

Nothing is durable and nobody else leads: `MemoryTopics` answers as `TenantTopics` does, at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from quantum.broker.streams import (
    AbortedRange,
    AdmitGroupTransaction,
    AdmitTransaction,
    AppendBatch,
    AppendOutcome,
    BatchAppended,
    CompleteJoin,
    EndArrived,
    EndInGroup,
    EndInPartition,
    GroupCoordinator,
    GroupResult,
    GroupSettings,
    MarkerPlaced,
    SetPartitionCounts,
    StreamBatch,
    StreamPartition,
    StreamRefusal,
    TopicReply,
    TransactionCoordinator,
    TransactionResult,
    TrimPartition,
)
from quantum.broker.streams.classic_group import ClassicGroup
from quantum.broker.streams.group_commands import GroupCommand
from quantum.broker.streams.topics import CreateTopic, TopicSpec, TopicTable
from quantum.mesh.topic_views import (
    FetchedBatch,
    LeaderView,
    PartitionView,
    ReadOutcome,
    TimeOutcome,
    TopicKind,
    TopicView,
)
from quantum.model.records import RecordProtocol
from quantum.protocols.kafka.codec import Marker, MarkerKind, build_marker, place, read_header

EPOCH = 3


class MemoryTopics:
    """All of one tenant; `led_by` says that another node leads."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._table = TopicTable()
        self._parts: dict[tuple[int, int], StreamPartition] = defaultdict(StreamPartition)
        self._logs: dict[tuple[int, int], list[bytes]] = defaultdict(list)
        self._news: dict[tuple[int, int], list[Callable[[], None]]] = defaultdict(list)
        self.groups = GroupCoordinator(GroupSettings(initial_delay_ms=0))
        self.transactions = TransactionCoordinator(0)
        self._told: list[Callable[[int, Any], None]] = []
        self.led_by: int | None = None
        self.knows = True
        self.heard_of: list[tuple[str, str]] = []

    # What there is.

    def _view(self, spec: TopicSpec | None) -> TopicView | None:
        if spec is None:
            return None
        prgs = (0,) * spec.partitions
        facts = (spec.number, spec.name, spec.uuid, TopicKind.TOPIC, prgs, dict(spec.configs))
        return TopicView(*facts, spec.created_ms)

    def topics(self) -> Iterator[TopicView]:
        return (view for each in self._table if (view := self._view(each)) is not None)

    def topic(self, name: str) -> TopicView | None:
        return self._view(self._table.named(name))

    def topic_by_id(self, uuid: bytes) -> TopicView | None:
        return self._view(self._table.by_uuid(uuid))

    def is_ready(self) -> bool:
        return self.knows

    def was_ready(self) -> bool:
        return self.knows

    def producers(self, topic: TopicView, p: int) -> list[tuple[int, Any, int | None]]:
        part = self._parts[topic.number, p]
        starts = {producer: start for producer, _, start in part.open_transactions()}
        return [(key, known, starts.get(key)) for key, known in part.producers()]

    def leader(self, prg: int) -> LeaderView:
        node = 1 if self.led_by is None else self.led_by
        return LeaderView(node, EPOCH, self.led_by is None)

    def partition(self, topic: TopicView, p: int) -> PartitionView | None:
        part = self._parts[topic.number, p]
        times = [(read_header(each).max_timestamp, read_header(each).base_offset)
                 for each in self._logs[topic.number, p]]  # fmt: skip
        newest = max(times, default=(-1, -1))
        ends = (part.start_offset, part.end_offset, part.last_stable_offset)
        return PartitionView(*ends, EPOCH, *newest)

    def aborted(self, topic: TopicView, p: int, start: int, end: int) -> list[AbortedRange]:
        return list(self._parts[topic.number, p].aborted_between(start, end))

    def epoch_end(self, topic: TopicView, p: int, epoch: int) -> tuple[int, int]:
        end = self._parts[topic.number, p].end_offset
        return (EPOCH, end) if epoch == EPOCH and end else (-1, -1)

    def size_bytes(self, topic: TopicView, p: int) -> int:
        return sum(map(len, self._logs[topic.number, p]))

    # Orders.

    def create_topic(
        self, name: str, partitions: int, configs: Any, uuid: bytes, done: Any
    ) -> None:
        command = CreateTopic(self._now_ms(), name, uuid, partitions, tuple(configs))
        refused = self._table.judge(command)
        if refused is None:
            self._table.last_number += 1
            number = self._table.last_number
            spec = TopicSpec(number, name, uuid, partitions, 1, command.configs, self._now_ms())
            self._put(spec)
            refused = TopicReply(number)
        done(refused)

    def delete_topic(self, name: str, done: Any) -> None:
        spec = self._table.named(name)
        if spec is not None:
            self._table.drop(spec.number)
        unknown = TopicReply(0, StreamRefusal.TOPIC_UNKNOWN)
        done(unknown if spec is None else TopicReply(spec.number))

    def grow_topic(self, name: str, partitions: int, done: Any) -> None:
        self._replace(name, done, partitions=partitions)

    def alter_topic(self, name: str, configs: Any, done: Any) -> None:
        self._replace(name, done, configs=tuple(configs))

    def _replace(self, name: str, done: Any, **changes: Any) -> None:
        import msgspec

        spec = self._table.named(name)
        assert spec is not None
        self._put(msgspec.structs.replace(spec, **changes))
        done(TopicReply(spec.number))

    def _put(self, spec: TopicSpec) -> None:
        self._table.put(spec)
        counts = ((spec.name, spec.partitions),)
        self.groups.apply(SetPartitionCounts(self._now_ms(), counts))

    def delete_records(self, topic: TopicView, p: int, offset: int, done: Any) -> None:
        part = self._parts[topic.number, p]
        wanted = part.end_offset if offset == -1 else offset
        if wanted > part.end_offset:
            done(AppendOutcome(-1, -1, part.start_offset, StreamRefusal.OFFSET_OUT_OF_RANGE))
            return
        part.apply(TrimPartition(self._now_ms(), wanted))
        done(AppendOutcome(-1, -1, part.start_offset))

    # Batches.

    def append(self, prg: int, batches: Sequence[StreamBatch], done: Any) -> None:
        outcomes = []
        for each in batches:
            key = (each.topic_number, each.partition)
            producer = (each.producer_id, each.epoch, each.first_sequence)
            command = AppendBatch(self._now_ms(), each.count, *producer, bool(each.flags & 1))
            part = self._parts[key]
            result = part.apply(command)
            if isinstance(result, StreamRefusal):
                outcomes.append(AppendOutcome(-1, -1, part.start_offset, result))
                continue
            assert isinstance(result, BatchAppended)
            if not result.repeat:
                self._store(key, each.data, result.base_offset)
            outcomes.append(AppendOutcome(result.base_offset, self._now_ms(), part.start_offset))
        done(outcomes)

    def _store(self, key: tuple[int, int], data: bytes | memoryview, base: int) -> None:
        stored = bytearray(data)
        place(stored, base, EPOCH)
        self._logs[key].append(bytes(stored))
        self._tell_news(key)

    def _tell_news(self, key: tuple[int, int]) -> None:
        for call in self._news.pop(key, []):
            call()

    def read(self, topic: TopicView, p: int, offset: int, bytes_max: int, done: Any) -> None:
        part = self._parts[topic.number, p]
        found: list[FetchedBatch] = []
        size = 0
        for each in self._logs[topic.number, p]:
            header = read_header(each)
            if header.last_offset >= offset and (not found or size + len(each) <= bytes_max):
                facts = (header.base_offset, header.record_count, header.max_timestamp)
                found.append(FetchedBatch(RecordProtocol.KAFKA, *facts, memoryview(each)))
                size += len(each)
        done(ReadOutcome(found, part.start_offset, part.end_offset, part.last_stable_offset))

    def find_time(self, topic: TopicView, p: int, time_ms: int, done: Any) -> None:
        for each in self._logs[topic.number, p]:
            header = read_header(each)
            if header.max_timestamp >= time_ms:
                facts = (header.base_offset, header.record_count, header.max_timestamp)
                done(TimeOutcome(FetchedBatch(RecordProtocol.KAFKA, *facts, memoryview(each))))
                return
        done(TimeOutcome())

    def on_news(self, topic: TopicView, p: int, call: Any) -> Callable[[], None]:
        key = (topic.number, p)
        self._news[key].append(call)
        return lambda: self._news[key].remove(call) if call in self._news[key] else None

    # Coordinators.

    def group(self, group_id: str) -> int:
        return 0

    def transaction(self, transactional_id: str) -> int:
        return 0

    def producer_prg(self) -> int:
        return 0

    def coordinator(self, prg: int) -> Any:
        return SimpleNamespace(groups=self.groups, transactions=self.transactions)

    def heard(self, group_id: str, member_id: str) -> None:
        self.heard_of.append((group_id, member_id))

    def on_group_event(self, callback: Any) -> None:
        self._told.append(callback)

    def coordinate(self, prg: int, command: Any, done: Any) -> None:
        if isinstance(command, GroupCommand):
            result: Any = self._in_groups(command)
        else:
            result = self.transactions.apply(command)
            self._carry(result)
        done(result)

    def _in_groups(self, command: Any) -> GroupResult:
        result = self.groups.apply(command)
        for event in result.events:
            for call in self._told:
                call(0, event)
        return GroupResult(result.answer)

    def elapse(self) -> None:
        """End the joins whose time is over: what the log's clock does on a node."""
        for name in self.groups.names():
            group = self.groups.get(name)
            members = None if group is None else group.members
            due = members.deadline_ms() if isinstance(members, ClassicGroup) else None
            if due is not None and self._now_ms() >= due:
                assert isinstance(members, ClassicGroup)
                self._in_groups(CompleteJoin(self._now_ms(), name, members.generation))

    def _carry(self, result: TransactionResult) -> None:
        for word in result.admissions:
            if word.partition is not None:
                part = self._parts[self._key(word.partition)]
                part.apply(AdmitTransaction(0, word.producer_id, word.epoch))
            else:
                admit = AdmitGroupTransaction(0, word.group or "", word.producer_id, word.epoch)
                self._in_groups(admit)
        for marker in result.markers:
            self._end(marker)

    def _key(self, partition: tuple[str, int]) -> tuple[int, int]:
        spec = self._table.named(partition[0])
        assert spec is not None
        return spec.number, partition[1]

    def _end(self, word: Any) -> None:
        facts = (word.producer_id, word.epoch)
        if word.partition is not None:
            key = self._key(word.partition)
            placed = self._parts[key].apply(EndInPartition(0, *facts, word.commit))
            if isinstance(placed, MarkerPlaced):
                kind = MarkerKind.COMMIT if placed.commit else MarkerKind.ABORT
                batch = build_marker(
                    Marker(kind, 0),
                    offset=placed.offset,
                    timestamp=self._now_ms(),
                    producer_id=word.producer_id,
                    producer_epoch=word.epoch,
                )
                self._logs[key].append(batch)
                self._tell_news(key)
        else:
            self._in_groups(EndInGroup(0, word.group, *facts, word.commit))
        arrived = EndArrived(0, word.transactional_id, *facts, word.partition, word.group)
        self.transactions.apply(arrived)
