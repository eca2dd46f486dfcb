"""All that a PRG knows of streams, and how its parts find each other."""

from __future__ import annotations

from typing import Final

from clustor.streams.changes import StreamDefine, StreamRemove, StreamTrim
from quantum.broker.sections import SectionEffect, SectionWorld
from quantum.broker.streams.compacting import PartitionCompaction
from quantum.broker.streams.group_commands import (
    GroupEvent,
    GroupResult,
    SetPartitionCounts,
)
from quantum.broker.streams.groups import GroupCoordinator
from quantum.broker.streams.hosted_partition import HostedPartition
from quantum.broker.streams.partition import TrimPartition
from quantum.broker.streams.section_items import StreamItem, encode_stream_item
from quantum.broker.streams.topics import TopicSpec, TopicTable, file_id_of
from quantum.broker.streams.transactions import TransactionCoordinator

HEADER_PAGE: Final = b"h"
GROUP_KEY: Final = b"group:"
TRANSACTION_KEY: Final = b"transaction:"


class GroupHappened(SectionEffect):
    """Events of groups, for whoever waits at the leader."""

    events: tuple[GroupEvent, ...]


def partition_page(number: int, partition: int) -> bytes:
    return b"p" + number.to_bytes(8, "big") + partition.to_bytes(4, "big")


def compaction_page(number: int, partition: int) -> bytes:
    return b"c" + number.to_bytes(8, "big") + partition.to_bytes(4, "big")


def topic_page(number: int) -> bytes:
    return b"t" + number.to_bytes(8, "big")


def group_page(name: str) -> bytes:
    return b"g" + name.encode()


def transaction_page(name: str) -> bytes:
    return b"x" + name.encode()


class StreamState:
    """The tables; each change notes its page. Everything comes from the log, so replicas agree."""

    __slots__ = (
        "compactions",
        "group_due",
        "groups",
        "partitions",
        "swept_ms",
        "term",
        "topics",
        "transaction_due",
        "transactions",
        "world",
    )

    def __init__(self, world: SectionWorld) -> None:
        self.world = world
        self.topics = TopicTable()
        self.partitions: dict[tuple[int, int], HostedPartition] = {}
        """Those that live in this PRG, by the topic's number and their own."""
        self.compactions: dict[tuple[int, int], PartitionCompaction] = {}
        """Of the partitions that were ever compacted."""
        self.groups = GroupCoordinator()
        self.transactions = TransactionCoordinator(world.prg)
        self.term = 0
        """The newest leader's term that the log told of: the epoch of markers."""
        self.swept_ms = 0
        """When was last looked for what nobody uses any more."""
        self.group_due: dict[str, int] = {}
        """Groups that have a time to look at them; it follows from them."""
        self.transaction_due: dict[str, int] = {}
        """The same of open transactions."""

    # Places.

    def owner_of(self, topic: str, partition: int) -> int | None:
        """Say which PRG has a partition; None where there is no such one."""
        spec = self.topics.named(topic)
        if spec is None or not 0 <= partition < spec.partitions:
            return None
        return spec.place(partition, self.world.place)

    def coordinates_group(self, name: str) -> bool:
        return self._is_here(GROUP_KEY + name.encode())

    def coordinates_transaction(self, name: str) -> bool:
        return self._is_here(TRANSACTION_KEY + name.encode())

    def _is_here(self, key: bytes) -> bool:
        return self.world.place(key, self.world.first_prg_count) == self.world.prg

    def group_prg(self, name: str) -> int:
        return self.world.place(GROUP_KEY + name.encode(), self.world.first_prg_count)

    def hosted(self, topic: str, partition: int) -> tuple[bytes, HostedPartition] | None:
        """Return a partition that lives here, by its topic's name, and its page."""
        spec = self.topics.named(topic)
        found = None if spec is None else self.partitions.get((spec.number, partition))
        if spec is None or found is None:
            return None
        return partition_page(spec.number, partition), found

    def send(self, prg: int, item: StreamItem) -> tuple[int, int] | None:
        """Send an item; return its place in a channel, None where it stays here."""
        place = self.world.send(prg, encode_stream_item(item))
        return (prg, place) if place else None

    # Topics.

    def put_topic(self, spec: TopicSpec) -> None:
        """Take a topic, or what became of one: its partitions that live here begin."""
        before = self.topics.get(spec.number)
        other = self.topics.named(spec.name)
        if other is not None and other.number != spec.number:
            return  # the catalogue never says that, and names stay unique
        self.topics.put(spec)
        self.world.page_changed(topic_page(spec.number))
        for partition in range(0 if before is None else before.partitions, spec.partitions):
            if spec.place(partition, self.world.place) == self.world.prg:
                self._begin(spec.number, partition)
        if before is None or before.partitions != spec.partitions:
            self._set_count(spec.name, spec.partitions)

    def _begin(self, number: int, partition: int) -> None:
        hosted = HostedPartition(file_id_of(number, partition))
        self.partitions[number, partition] = hosted
        self.world.page_changed(partition_page(number, partition))
        self.world.note_stream(StreamDefine(hosted.file_id))

    def end_topic(self, number: int) -> None:
        """Let a topic end here, with its partitions and what groups committed of it."""
        spec = self.topics.drop(number)
        if spec is None:
            return
        self.world.page_changed(topic_page(number))
        for partition in range(spec.partitions):
            hosted = self.partitions.pop((number, partition), None)
            if hosted is not None:
                self.world.page_changed(partition_page(number, partition))
                self.world.note_stream(StreamRemove(hosted.file_id))
            if self.compactions.pop((number, partition), None) is not None:
                self.world.page_changed(compaction_page(number, partition))
        self._set_count(spec.name, 0)
        for name in self.groups.forget_topic(spec.name):
            self.world.page_changed(group_page(name))

    def _set_count(self, topic: str, count: int) -> None:
        self.groups.apply(SetPartitionCounts(self.world.now_ms, ((topic, count),)))
        for name in self.groups.assigned_to(topic):
            self.note_group(name)

    def trim(self, number: int, partition: int, offset: int) -> HostedPartition | None:
        """Let a partition start later; a negative offset is its end."""
        hosted = self.partitions.get((number, partition))
        if hosted is None:
            return None
        log = hosted.log
        before, start = log.start_offset, log.end_offset if offset < 0 else offset
        log.apply(TrimPartition(self.world.now_ms, start))
        self.world.page_changed(partition_page(number, partition))
        if log.start_offset != before:
            hosted.trimmed()
            self.world.note_stream(StreamTrim(hosted.file_id, log.start_offset))
        return hosted

    def compact(self, number: int, partition: int, through: int, purged: int) -> None:
        """Let a partition be compacted so far; nothing of an open transaction is."""
        hosted = self.partitions.get((number, partition))
        if hosted is None:
            return
        known = self.compactions.get((number, partition)) or PartitionCompaction()
        if known.take(through, purged, hosted.log.last_stable_offset, self.world.now_ms):
            self.compactions[number, partition] = known
            self.world.page_changed(compaction_page(number, partition))

    # Groups and transactional ids.

    def note_group(self, name: str, result: GroupResult | None = None) -> None:
        """Take in that a group changed, and let those who wait know."""
        self.world.page_changed(group_page(name))
        if result is not None and result.events:
            self.world.emit(GroupHappened(result.events))
        self.look_at_group(name)

    def look_at_group(self, name: str) -> None:
        due = self.groups.due_ms(name)
        if due is None:
            self.group_due.pop(name, None)
        else:
            self.group_due[name] = due

    def note_transaction(self, name: str) -> None:
        """Take in that a transactional id changed."""
        self.world.page_changed(transaction_page(name))
        self.look_at_transaction(name)

    def look_at_transaction(self, name: str) -> None:
        due = self.transactions.due_ms(name)
        if due is None:
            self.transaction_due.pop(name, None)
        else:
            self.transaction_due[name] = due

    def note_header(self) -> None:
        self.world.page_changed(HEADER_PAGE)

    def see_term(self, term: int) -> None:
        """Take in which term the leader has."""
        if term > self.term:
            self.term = term
            self.note_header()
