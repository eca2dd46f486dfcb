"""Streams on a node: made and ended at the catalogue's leader, read at any replica, kept in bounds.

A replica's files hold only what is committed and applied, so every node may answer readers; one
that follows may be a little behind. Who leads a partition also looks now and then how much of each
stream its retention still wants, and logs a trim: the start of a stream never goes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from clustor.control.command_gates import CommandGate
from clustor.log.errors import LogError
from clustor.runtime.containment import contained
from clustor.runtime.errors import NodeError
from clustor.runtime.stream_reads import StreamReads
from clustor.streams import StreamOutOfRange, UnknownStream
from quantum.broker import (
    Command,
    CreateStream,
    DeleteStream,
    StreamReply,
    TrimStreams,
    encode_command,
)
from quantum.broker.retention import Stretch, first_wanted, share_of
from quantum.broker.stream_table import CATALOGUE_PRG, Stream
from quantum.model.records import Record
from quantum.node.orders import LedByAnother, OrderRefused
from quantum.node.topic_compaction import TopicCompaction
from quantum.node.topic_files import TopicFiles, TopicRetention
from quantum.protocols.mqtt.codec.records import records_of

if TYPE_CHECKING:
    from quantum.mesh.tenant import Tenant
    from quantum.node.service import BrokerService
    from quantum.partition.leader import PartitionLeader

ORDER_SECONDS_MAX: Final = 8.0
KNOWN_SECONDS_MAX: Final = 5.0
"""How long an order waits for nodes to say which commands they know."""
RETENTION_SECONDS: Final = 5.0
COMPACTION_SECONDS: Final = 2.0
"""How often a leader looks whether a stream is due to be looked at."""
_LOOKS_PER_RETENTION: Final = 50
_LOOK_SECONDS_MAX: Final = 600.0
"""A stream without a bound in bytes is looked at so often while a message ages to its end, and at
least so often."""
READERS_MAX: Final = 256
"""Requests that may wait for messages at once."""

journal = logging.getLogger("quantum.streams")


class NoSuchStream(Exception):
    """The tenant has no stream of this name, or it has no such partition here."""


class OffsetGone(Exception):
    """It is not there any more, or not yet: there is `start` up to, not with, `next`."""

    def __init__(self, start: int, next_offset: int) -> None:
        super().__init__(f"the partition begins at {start}, and {next_offset} is the next to come")
        self.start = start
        self.next = next_offset


class OrderLost(Exception):
    """No answer came in time: the order may or may not be carried out."""


class TooManyReaders(Exception):
    """As many requests as a node takes wait for messages."""


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """A stream that somebody wants."""

    name: str
    filters: tuple[str, ...]
    retention_ms: int
    retention_bytes: int


@dataclass(frozen=True, slots=True)
class StreamReading:
    """What was read of a partition: whole batches' records from the offset on."""

    records: list[Record]
    start: int
    next: int
    """Where to go on; the end of the partition where nothing more is there."""


class BrokerStreams:
    """The streams of all tenants of a node."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._reads: dict[PartitionLeader, StreamReads] = {}
        self._waiting: dict[tuple[PartitionLeader, int], list[asyncio.Future[None]]] = {}
        self._readers = 0
        self._due: dict[PartitionLeader, dict[int, float]] = {}
        """When to look at the retention of each stream again, by its number."""
        duty = contained.lasting("stream retention", self._keep_retention)
        self._retention = asyncio.get_running_loop().create_task(duty)
        service.on_stream_news = self._wake
        service.stream_files = TopicFiles(self._reader)
        self.topic_retention = TopicRetention(self._reader)
        knows = partial(service.members_know, gate=CommandGate.COMPACTION)
        self._compaction = TopicCompaction(self._reader, knows)
        duty = contained.lasting("topic compaction", self._keep_compacting)
        self._compacting = asyncio.get_running_loop().create_task(duty)

    def close(self) -> None:
        """Answer nobody any more."""
        self._retention.cancel()
        self._compacting.cancel()
        self._compaction.close()
        for reads in self._reads.values():
            reads.close()

    # What there is.

    def named(self, tenant: Tenant, name: str) -> list[tuple[PartitionLeader, Stream]]:
        """Return a stream's partitions as this node's replicas have them, by number."""
        found = [(prg, prg.broker.state.streams.named(name.encode())) for prg in tenant.prgs]
        return [(prg, stream) for prg, stream in found if stream is not None]

    def all(self, tenant: Tenant) -> Iterator[Stream]:
        """Walk the catalogue, by name."""
        streams = tenant.prgs[CATALOGUE_PRG].broker.state.streams
        return iter(sorted(streams, key=lambda stream: stream.spec.name))

    def size_bytes(self, prg: PartitionLeader, stream: Stream) -> int:
        """Return how much this node keeps of a partition, without what is still in memory."""
        streams = prg.group.replica.streams
        files = None if streams is None else streams.store.partitions.get(stream.file_id)
        return 0 if files is None else sum(segment.size_bytes for segment in files.segments)

    # Orders.

    async def create(self, tenant: Tenant, order: StreamOrder, who: str) -> None:
        """Make a stream; it is everywhere when this returns.

        Raises OrderRefused, LedByAnother and OrderLost.
        """
        command = CreateStream(
            self._service.now_ms(),
            order.name.encode(),
            [each.encode() for each in order.filters],
            order.retention_ms,
            order.retention_bytes,
        )
        await self._order(tenant, command)
        self._note("StreamCreated", tenant, order.name, who)

    async def delete(self, tenant: Tenant, name: str, who: str) -> None:
        """End a stream with all that it holds; raises as `create` does, and NoSuchStream."""
        if not self.named(tenant, name):
            raise NoSuchStream(name)
        await self._order(tenant, DeleteStream(self._service.now_ms(), name.encode()))
        self._note("StreamDeleted", tenant, name, who)

    def _note(self, what: str, tenant: Tenant, name: str, who: str) -> None:
        self._service.note_act(what, "Done", who=who, target=f"stream/{name}", tenant=tenant.name)

    async def _order(self, tenant: Tenant, command: Command) -> None:
        prg = tenant.prgs[CATALOGUE_PRG]
        if not prg.leading:
            raise LedByAnother(prg.leader_node)
        await self._all_know(tenant)
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        prg.propose(encode_command(command), lambda reply: _answer(answered, reply))
        try:
            async with asyncio.timeout(ORDER_SECONDS_MAX):
                reply = await answered
                if reply is None:
                    raise OrderLost("the partition's leader changed meanwhile")
                answer = msgspec.msgpack.decode(reply, type=StreamReply)
                if answer.refused:
                    raise OrderRefused(answer.refused)
                for way, place in answer.awaited:
                    await self._taken(prg, way, place)
        except TimeoutError:
            raise OrderLost("not every partition has answered in time") from None

    async def _all_know(self, tenant: Tenant) -> None:
        """Wait until every node has said that it knows streams: one that just started has not."""
        deadline = asyncio.get_running_loop().time() + KNOWN_SECONDS_MAX
        while not all(
            self._service.members_know(each, CommandGate.STREAMS) for each in tenant.prgs
        ):
            if asyncio.get_running_loop().time() >= deadline:
                raise OrderRefused("not every node knows streams yet: upgrade them first")
            await asyncio.sleep(0.05)

    async def _taken(self, prg: PartitionLeader, way: int, place: int) -> None:
        """Wait until another partition's log has an item."""
        while prg.broker.state.channels.to(way).acked_through < place:
            if not prg.leading:
                raise OrderLost("the partition's leader changed meanwhile")
            await asyncio.sleep(0.01)  # an item's way is a round or two

    # Reading.

    async def read(
        self,
        tenant: Tenant,
        name: str,
        partition: int,
        offset: int,
        *,
        bytes_max: int,
        wait_ms: int = 0,
    ) -> StreamReading:
        """Read from an offset on; with nothing there, wait for something so long.

        Raises NoSuchStream, OffsetGone, TooManyReaders and the runtime's ReaderBusy.
        """
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        while True:
            prg, stream = self._partition(tenant, name, partition)
            found = await self._read(prg, stream, offset, bytes_max)
            left = deadline - asyncio.get_running_loop().time()
            if found.records or left <= 0:
                return found
            if stream.next_offset > offset:
                continue  # it came while the disk was asked: no news follow for it
            if not await self._news(prg, stream, left):
                return found

    async def offset_of_time(self, tenant: Tenant, name: str, partition: int, time_ms: int) -> int:
        """Return the first offset that was taken at that time or later; the end where none was."""
        prg, stream = self._partition(tenant, name, partition)
        end = stream.next_offset  # what comes while the disk is asked was not looked at
        try:
            found = await self._reader(prg).find_time(stream.file_id, time_ms)
        except UnknownStream:
            raise NoSuchStream(name) from None
        return end if found is None else max(found, stream.start_offset)

    def _partition(
        self, tenant: Tenant, name: str, partition: int
    ) -> tuple[PartitionLeader, Stream]:
        for prg, stream in self.named(tenant, name):
            if prg.number == partition:
                return prg, stream
        raise NoSuchStream(name)

    async def _read(
        self, prg: PartitionLeader, stream: Stream, offset: int, bytes_max: int
    ) -> StreamReading:
        try:
            chunks = await self._reader(prg).read(stream.file_id, offset, bytes_max)
        except StreamOutOfRange as gone:
            facts = gone.facts
            raise OffsetGone(int(str(facts["start"])), int(str(facts["next"]))) from None
        except UnknownStream:
            raise NoSuchStream(stream.spec.name.decode()) from None
        records = [
            record
            for chunk in chunks
            for batch in chunk.batches()
            for record in records_of(batch.payload, batch.first_index, batch.timestamp)
            if record.offset >= offset
        ]
        end = records[-1].offset + 1 if records else offset
        return StreamReading(records, stream.start_offset, end)

    def _reader(self, prg: PartitionLeader) -> StreamReads:
        reads = self._reads.get(prg)
        if reads is None:
            reads = self._reads[prg] = StreamReads(prg.group)
        return reads

    async def _news(self, prg: PartitionLeader, stream: Stream, seconds: float) -> bool:
        """Wait until something happens to a partition; say whether it did in time."""
        if self._readers >= READERS_MAX:
            raise TooManyReaders
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        key = (prg, stream.file_id)
        waiting = self._waiting.setdefault(key, [])
        waiting.append(woken)
        self._readers += 1
        try:
            async with asyncio.timeout(seconds):
                await woken
        except TimeoutError:
            return False
        finally:
            self._readers -= 1
            if woken in waiting:
                waiting.remove(woken)
            if not waiting and self._waiting.get(key) is waiting:
                del self._waiting[key]
        return True

    def _wake(self, prg: PartitionLeader, partitions: set[int]) -> None:
        for partition in partitions:
            for woken in self._waiting.pop((prg, partition), ()):
                if not woken.done():
                    woken.set_result(None)

    # Retention.

    async def _keep_retention(self) -> None:
        while True:
            await asyncio.sleep(RETENTION_SECONDS)
            for tenant in list(self._service.tenants.values()):
                for prg in tenant.prgs:
                    if prg.leading:
                        await self._trim_alone(prg)

    async def _trim_alone(self, prg: PartitionLeader) -> None:
        try:
            if len(prg.broker.state.streams):
                await self.trim(prg)
            await self.topic_retention.trim(prg, self._service.now_ms())
        except (LogError, NodeError) as error:  # it is looked at again
            journal.warning("retention of %s/%d: %s", prg.tenant.name, prg.number, error)

    async def _keep_compacting(self) -> None:
        while True:
            await asyncio.sleep(COMPACTION_SECONDS)
            for tenant in list(self._service.tenants.values()):
                for prg in tenant.prgs:
                    await self._compaction.compact(prg, self._service.now_ms())

    async def trim(self, prg: PartitionLeader) -> None:
        """Log what the retention of the streams of a partition does not want any more."""
        now_ms = self._service.now_ms()
        trims = []
        for stream in self._take_due(prg):
            first = await self._first_wanted(prg, stream, now_ms)
            if first is not None and first > stream.start_offset:
                trims.append((int(stream.number), first))
        if trims and prg.leading:
            prg.propose(encode_command(TrimStreams(now_ms, trims)))

    def _take_due(self, prg: PartitionLeader) -> list[Stream]:
        """Return the streams whose retention is to be looked at now, and note the next time."""
        now = asyncio.get_running_loop().time()
        before, due = self._due.get(prg, {}), []
        times = self._due[prg] = {}
        for stream in prg.broker.state.streams:
            number = int(stream.number)
            times[number] = before.get(number, 0.0)
            if now >= times[number]:
                times[number] = now + _look_again_seconds(stream)
                due.append(stream)
        return due

    async def _first_wanted(self, prg: PartitionLeader, stream: Stream, now_ms: int) -> int | None:
        spec, streams = stream.spec, prg.group.replica.streams
        if streams is None or stream.start_offset == stream.next_offset:
            return None
        files = streams.store.partitions.get(stream.file_id)
        if files is None or not (spec.retention_ms or spec.retention_bytes):
            return None
        by_size = first_wanted(
            [Stretch(at.next_index, at.size_bytes, at.max_timestamp) for at in files.segments],
            now_ms,
            bytes_max=share_of(spec.retention_bytes, prg.broker.state.prg_count),
        )
        by_age = None
        if spec.retention_ms:
            # What is taken while the disk is asked was not looked at, and is not too old.
            end = stream.next_offset
            found = await self._reader(prg).find_time(stream.file_id, now_ms - spec.retention_ms)
            by_age = end if found is None else int(found)
        wanted = [each for each in (by_size, by_age) if each is not None]
        return max(wanted, default=None)


def _look_again_seconds(stream: Stream) -> float:
    """A bound in bytes can be passed at any time; age comes slowly."""
    spec = stream.spec
    if spec.retention_bytes:
        return RETENTION_SECONDS
    age = spec.retention_ms / 1000 / _LOOKS_PER_RETENTION
    return min(age or _LOOK_SECONDS_MAX, _LOOK_SECONDS_MAX)


def _answer(answered: asyncio.Future[bytes | None], reply: bytes | None) -> None:
    if not answered.done():
        answered.set_result(reply)
