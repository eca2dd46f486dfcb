"""Streams as a section of a partition's machine: the catalogue, batches, producers, groups.

Commands of one family, told apart by the byte behind the head: packed batches (hot), orders about
topics, groups, transactions, trims, and the term of a new leader. State is a page for each
partition, group and transactional id, so that what changes little costs little.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from clustor.streams.changes import StreamExtent
from quantum.broker.errors import SnapshotUnusable
from quantum.broker.sections import SECTION_HEAD, SectionWorld
from quantum.broker.streams.answers import encode_reply
from quantum.broker.streams.appending import (
    APPENDS,
    KIND_AT,
    STREAM_FAMILY,
    encode_outcome,
    read_appends,
)
from quantum.broker.streams.catalogue import apply_topic, tell_of_topics
from quantum.broker.streams.coding import CoordinationCommand, encode_command
from quantum.broker.streams.compacting import PartitionCompaction, encode_passes, read_passes
from quantum.broker.streams.errors import CommandUnreadable, SnapshotUnreadable
from quantum.broker.streams.group_commands import (
    AdmitGroupTransaction,
    EndInGroup,
    ExpireOffsets,
    GroupCommand,
    SetPartitionCounts,
    decode_group_command,
)
from quantum.broker.streams.groups import GroupCoordinator
from quantum.broker.streams.hosted_partition import HostedPartition
from quantum.broker.streams.partition import ExpireProducers
from quantum.broker.streams.section_items import (
    EndNoted,
    TopicDefined,
    TopicEnded,
    TransactionEnded,
    TransactionOpened,
    decode_stream_item,
)
from quantum.broker.streams.section_state import (
    HEADER_PAGE,
    StreamState,
    compaction_page,
    group_page,
    partition_page,
    topic_page,
    transaction_page,
)
from quantum.broker.streams.topics import TopicSpec, TopicTable, decode_topic_command, file_id_of
from quantum.broker.streams.transacting import (
    apply_transaction,
    end_here,
    end_noted,
    expire_transactions,
    open_here,
)
from quantum.broker.streams.transaction_commands import decode_transaction_command
from quantum.broker.streams.transactions import TransactionCoordinator
from quantum.broker.streams.types import StreamRefusal

TOPICS: Final = 2
GROUPS: Final = 3
TRANSACTIONS: Final = 4
TRIMS: Final = 5
TERM: Final = 6
COMPACT: Final = 7

SWEEP_MS: Final = 3_600_000
"""How often is looked for producers, offsets and transactional ids that nobody uses any more."""

_HEAD: Final = struct.Struct("<BQB")
_TERM: Final = struct.Struct("<BQBI")
_TRIM: Final = struct.Struct("<QIq")
_TRIMS_MAX: Final = 65_536


class _Header(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    last_number: int
    given: int
    term: int
    swept_ms: int


_header_decoder: Final = msgspec.msgpack.Decoder(_Header)
_spec_decoder: Final = msgspec.msgpack.Decoder(TopicSpec)
_encode = msgspec.msgpack.Encoder().encode


def encode_stream_command(now_ms: int, kind: int, command: CoordinationCommand) -> bytes:
    """Encode an order about topics, groups or transactions."""
    return _HEAD.pack(STREAM_FAMILY, now_ms, kind) + encode_command(command)


def encode_trims(now_ms: int, trims: Iterable[tuple[int, int, int]]) -> bytes:
    """Encode (topic number, partition, first offset that is kept); -1 keeps nothing."""
    return _HEAD.pack(STREAM_FAMILY, now_ms, TRIMS) + b"".join(_TRIM.pack(*each) for each in trims)


def encode_compaction(now_ms: int, passes: Iterable[tuple[int, int, int, int]]) -> bytes:
    """Encode (topic number, partition, compacted through, purged through)."""
    return _HEAD.pack(STREAM_FAMILY, now_ms, COMPACT) + encode_passes(passes)


def encode_term(now_ms: int, term: int) -> bytes:
    """Encode the word of a new leader."""
    return _TERM.pack(STREAM_FAMILY, now_ms, TERM, term)


class StreamSection:
    """All of streams that one PRG has (`quantum.broker.sections.BrokerSection`)."""

    def __init__(self, world: SectionWorld) -> None:
        self._world = world
        self.state = StreamState(world)

    @property
    def family(self) -> int:
        return STREAM_FAMILY

    @property
    def groups(self) -> GroupCoordinator:
        """The groups that are coordinated here: to be read."""
        return self.state.groups

    @property
    def transactions(self) -> TransactionCoordinator:
        """The transactional ids that are coordinated here: to be read."""
        return self.state.transactions

    @property
    def topics(self) -> TopicTable:
        """The catalogue as this PRG knows it: to be read."""
        return self.state.topics

    @property
    def partitions(self) -> dict[tuple[int, int], HostedPartition]:
        """The partitions that live here: to be read."""
        return self.state.partitions

    def compaction(self, number: int, partition: int) -> PartitionCompaction:
        """Return how far the log said that a partition is compacted: to be read."""
        return self.state.compactions.get((number, partition)) or PartitionCompaction()

    # Commands.

    def apply(self, data: bytes) -> bytes:
        """Apply one committed command; bytes that are none of its commands change nothing."""
        if len(data) <= KIND_AT:
            return b""
        kind = data[KIND_AT]
        if kind == APPENDS:
            return self._append(data)
        if kind == TRIMS:
            return self._trim(data)
        if kind == COMPACT:
            for number, partition, through, purged in read_passes(memoryview(data)[KIND_AT + 1 :]):
                self.state.compact(number, partition, through, purged)
            return b""
        if kind == TERM and len(data) == _TERM.size:
            self.state.see_term(_TERM.unpack(data)[3])
            return b""
        try:
            return self._coordinate(kind, data[KIND_AT + 1 :])
        except CommandUnreadable:
            return b""

    def _coordinate(self, kind: int, body: bytes) -> bytes:
        if kind == TOPICS:
            return apply_topic(self.state, decode_topic_command(body))
        if kind == GROUPS:
            return self._apply_group(decode_group_command(body))
        if kind == TRANSACTIONS:
            return apply_transaction(self.state, decode_transaction_command(body))
        return b""

    def _append(self, data: bytes) -> bytes:
        read = read_appends(data)
        if read is None:
            return b""
        term, rows, start = read
        state, world = self.state, self._world
        state.see_term(term)
        whole, now_ms, replies = memoryview(data), world.now_ms, []
        for row in rows:
            end = start + row[8]
            hosted = state.partitions.get((row[0], row[1]))
            if hosted is None:
                replies.append(encode_outcome(-1, now_ms, -1, StreamRefusal.TOPIC_UNKNOWN))
            else:
                reply, change = hosted.append(row, whole[start:end], term, now_ms)
                replies.append(reply)
                world.page_changed(partition_page(row[0], row[1]))
                if change is not None:
                    world.note_stream(change)
            start = end
        return b"".join(replies)

    def _trim(self, data: bytes) -> bytes:
        trims = memoryview(data)[KIND_AT + 1 :]
        if len(trims) % _TRIM.size or len(trims) > _TRIMS_MAX * _TRIM.size:
            return b""
        replies, now_ms = [], self._world.now_ms
        for number, partition, offset in _TRIM.iter_unpack(trims):
            hosted = self.state.partitions.get((number, partition))
            refusal = StreamRefusal.TOPIC_UNKNOWN if hosted is None else None
            if hosted is not None and offset > hosted.log.end_offset:
                refusal = StreamRefusal.OFFSET_OUT_OF_RANGE
            elif hosted is not None:
                self.state.trim(number, partition, offset)
            start = -1 if hosted is None else hosted.log.start_offset
            replies.append(encode_outcome(-1, now_ms, start, refusal))
        return b"".join(replies)

    def _apply_group(self, command: GroupCommand) -> bytes:
        state = self.state
        inner = (AdmitGroupTransaction, EndInGroup, ExpireOffsets, SetPartitionCounts)
        if isinstance(command, inner) or not state.coordinates_group(command.group):
            return encode_reply(StreamRefusal.NOT_COORDINATOR)
        command.now_ms = self._world.now_ms
        result = state.groups.apply(command)
        state.note_group(command.group, result)
        return encode_reply(result.answer)

    # Items.

    def receive(self, origin: int, data: bytes) -> None:
        """Take what streams of another PRG sent, or these sent to themselves."""
        match decode_stream_item(data):
            case TopicDefined(spec=spec):
                self.state.put_topic(spec)
            case TopicEnded(number=number):
                self.state.end_topic(number)
            case TransactionOpened() as item:
                open_here(self.state, item)
            case TransactionEnded() as item:
                end_here(self.state, origin, item)
            case EndNoted() as item:
                end_noted(self.state, item)
            case None:
                pass

    def joined(self, prg: int) -> None:
        """Tell a partition that joins the ring of every topic."""
        tell_of_topics(self.state, prg)

    # Time.

    def elapse(self) -> None:
        """Do what is due by the log's clock."""
        state, now_ms = self.state, self._world.now_ms
        for name in sorted(each for each, due in state.group_due.items() if due <= now_ms):
            state.groups.now_ms = max(state.groups.now_ms, now_ms)
            state.note_group(name, state.groups.let_go(name))
        if any(due <= now_ms for due in state.transaction_due.values()):
            expire_transactions(state)
        sweep_ms = self._next_sweep_ms()
        if sweep_ms is not None and sweep_ms <= now_ms:
            self._sweep(now_ms)

    def _sweep(self, now_ms: int) -> None:
        state = self.state
        state.swept_ms = now_ms
        state.note_header()
        for (number, partition), hosted in state.partitions.items():
            if hosted.log.producer_count:
                hosted.log.apply(ExpireProducers(now_ms))
                self._world.page_changed(partition_page(number, partition))
        names = state.groups.names()
        state.groups.apply(ExpireOffsets(now_ms))
        for name in names:
            state.note_group(name)
        expire_transactions(state)

    def _next_sweep_ms(self) -> int | None:
        state = self.state
        is_used = state.partitions or state.groups.names() or state.transactions.ids()
        return state.swept_ms + SWEEP_MS if is_used else None

    def next_deadline_ms(self) -> int | None:
        """When `elapse` has something to do, at the earliest."""
        state = self.state
        due = [*state.group_due.values(), *state.transaction_due.values()]
        sweep_ms = self._next_sweep_ms()
        if sweep_ms is not None:
            due.append(sweep_ms)
        return min(due, default=None)

    # Pages.

    def page_keys(self) -> Iterable[bytes]:
        """Name all pages, sorted."""
        state = self.state
        keys = [
            *map(group_page, state.groups.names()),
            *(partition_page(*each) for each in state.partitions),
            *(compaction_page(*each) for each in state.compactions),
            *(topic_page(each.number) for each in state.topics),
            *map(transaction_page, state.transactions.ids()),
        ]
        if self._header() is not None:
            keys.append(HEADER_PAGE)
        return sorted(keys)

    def _header(self) -> _Header | None:
        state = self.state
        facts = (state.topics.last_number, state.transactions.given, state.term, state.swept_ms)
        return _Header(*facts) if any(facts) else None

    def page(self, key: bytes) -> bytes | None:
        """Return a page; None where there is none of this key."""
        state = self.state
        match key[:1]:
            case b"h":
                header = self._header()
                return None if header is None else _encode(header)
            case b"p":
                hosted = state.partitions.get(_partition_of(key))
                return None if hosted is None else hosted.freeze()
            case b"c":
                compaction = state.compactions.get(_partition_of(key))
                return None if compaction is None else compaction.freeze()
            case b"t":
                spec = state.topics.get(int.from_bytes(key[1:], "big"))
                return None if spec is None else _encode(spec)
            case b"g":
                return state.groups.freeze(key[1:].decode())
            case b"x":
                return state.transactions.freeze(key[1:].decode())
        return None

    def put_page(self, key: bytes, data: bytes) -> None:
        """Take a page of a snapshot. Raises SnapshotUnusable."""
        try:
            self._put_page(key, data)
        except (SnapshotUnreadable, msgspec.DecodeError, UnicodeDecodeError) as fault:
            raise SnapshotUnusable("a page of streams", key=key[:64], fault=str(fault)) from fault

    def _put_page(self, key: bytes, data: bytes) -> None:
        state = self.state
        match key[:1]:
            case b"h":
                header = _header_decoder.decode(data)
                state.topics.last_number = header.last_number
                state.transactions.given = header.given
                state.term, state.swept_ms = header.term, header.swept_ms
            case b"p":
                number, partition = _partition_of(key)
                hosted = HostedPartition.thaw(file_id_of(number, partition), data)
                state.partitions[number, partition] = hosted
            case b"c":
                state.compactions[_partition_of(key)] = PartitionCompaction.thaw(data)
            case b"t":
                state.topics.put(_spec_decoder.decode(data))
            case b"g":
                state.groups.thaw(data)
            case b"x":
                state.transactions.thaw(data)
            case _:
                raise SnapshotUnreadable("a page of a later release")

    def drop_page(self, key: bytes) -> None:
        """Let go of a page that a delta says is gone."""
        state = self.state
        match key[:1]:
            case b"p":
                state.partitions.pop(_partition_of(key), None)
            case b"c":
                state.compactions.pop(_partition_of(key), None)
            case b"t":
                state.topics.drop(int.from_bytes(key[1:], "big"))
            case b"g":
                state.groups.drop(key[1:].decode())
            case b"x":
                state.transactions.drop(key[1:].decode())

    def restored(self) -> None:
        """Work out counts and times from what the pages say."""
        state = self.state
        state.groups.put_counts({each.name: each.partitions for each in state.topics})
        state.group_due.clear()
        state.transaction_due.clear()
        for name in state.groups.names():
            state.look_at_group(name)
        for name in state.transactions.ids():
            state.look_at_transaction(name)

    def stream_extents(self) -> Iterator[StreamExtent]:
        """Say which partitions there are, and how far they reach."""
        for key in sorted(self.state.partitions):
            hosted = self.state.partitions[key]
            yield StreamExtent(hosted.file_id, hosted.log.start_offset, hosted.log.end_offset)


def _partition_of(key: bytes) -> tuple[int, int]:
    return int.from_bytes(key[1:9], "big"), int.from_bytes(key[9:13], "big")


assert _HEAD.size == SECTION_HEAD.size + 1
