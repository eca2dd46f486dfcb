"""AMQP on this node: its doors, and where the bodies of its queues' messages are read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from clustor.log.errors import LogError
from clustor.runtime.containment import contained
from clustor.runtime.errors import NodeError
from clustor.runtime.stream_reads import StreamReads
from quantum.broker.queues import (
    CarryMessages,
    Queue,
    decode_queue_reply,
    encode_queue_command,
    messages_in,
)
from quantum.edge.websocket import AMQP
from quantum.model.records import RecordProtocol
from quantum.node.listeners import Listeners
from quantum.node.service import BrokerService
from quantum.node.topic_sessions import TopicSessions
from quantum.partition.leader import PartitionLeader
from quantum.protocols.amqp.session.amqp_node import AmqpNode
from quantum.protocols.amqp.session.partition_queues import BodySource, PartitionQueues
from quantum.protocols.kafka.codec import KafkaRecordWriter
from quantum.protocols.kafka.codec import records_of as kafka_records
from quantum.protocols.mqtt.codec.records import records_of as mqtt_records

_READ_BYTES: Final = 512 << 10
"""What is read ahead of a queue's receivers at once."""
CARRY_BYTES_MIN: Final = 512 << 20
"""Smaller files are let be: what is let go of is let go of in whole segments."""
KEEP_SECONDS: Final = 5.0
_ORDER_SECONDS_MAX: Final = 10.0

journal = logging.getLogger("quantum.amqp")


class QueueBodies:
    """Reads messages of queues from their files (`BodySource`)."""

    def __init__(self) -> None:
        self._reads: dict[PartitionLeader, StreamReads] = {}

    def read(
        self,
        leader: PartitionLeader,
        file_id: int,
        place: int,
        then: Callable[[list[tuple[int, bytes]]], None],
    ) -> None:
        """Call `then` later with places and bodies from one on; with none where that fails."""
        reads = self._reads.get(leader)
        if reads is None:
            reads = self._reads[leader] = StreamReads(leader.group)
        contained.spawn("queue bodies", _read(reads, file_id, place, then))

    def close(self) -> None:
        for reads in self._reads.values():
            reads.close()


async def _read(
    reads: StreamReads,
    file_id: int,
    place: int,
    then: Callable[[list[tuple[int, bytes]]], None],
) -> None:
    await asyncio.sleep(0)  # never from within the call that asks
    found: list[tuple[int, bytes]] = []
    try:
        for chunk in await reads.read(file_id, place, _READ_BYTES):
            for batch in chunk.batches():
                bodies = messages_in(batch.payload)
                found += [(batch.first_index + n, body) for n, body in enumerate(bodies)]
    except (LogError, NodeError, ValueError) as error:
        journal.warning("messages of a queue cannot be read now: %s", error)
    then([each for each in found if each[0] >= place])


def file_bytes(leader: PartitionLeader, file_id: int) -> int:
    """Return how much a replica's disk keeps of a file, without what is still in memory."""
    streams = leader.group.replica.streams
    files = None if streams is None else streams.store.partitions.get(file_id)
    return 0 if files is None else sum(segment.size_bytes for segment in files.segments)


class QueueFilesKeeper:
    """Keeps the files of queues in bounds: what is open is carried forward behind the rest.

    A file begins with the oldest message or dead letter that is open, whatever was settled behind
    it. Where a file is larger than `bytes_min` and several times what is open in it, its leader
    has the log append the open bodies anew; the file then begins there. What is written so is
    less than a third of what becomes free.
    """

    def __init__(self, amqp: AmqpNode, bodies: BodySource, *, bytes_min: int) -> None:
        self._amqp = amqp
        self._bodies = bodies
        self._bytes_min = bytes_min

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            await self.look()

    async def look(self) -> int:
        """Look at every queue that is led here; return how many messages were carried."""
        return sum(
            [
                await self._carry(partition, queue)
                for home in list(self._amqp.tenants.values())
                for partition in list(home.queues)
                for queue in self._due(partition)
            ]
        )

    def _due(self, partition: PartitionQueues) -> list[Queue]:
        leader = partition.leader
        if not leader.leading:
            return []
        return [
            queue
            for queue in partition.section.queues.values()
            if file_bytes(leader, queue.file_id) > self._bytes_min + 4 * queue.bytes
        ]

    async def _carry(self, partition: PartitionQueues, queue: Queue) -> int:
        """Carry what stands before the file's present end, in its order."""
        leader, end, carried = partition.leader, queue.next, 0
        while leader.leading and (place := queue.lowest()) < end:
            found: asyncio.Future[list[tuple[int, bytes]]]
            found = asyncio.get_running_loop().create_future()
            self._bodies.read(leader, queue.file_id, place, found.set_result)
            bodies = _carried(queue, await found, end)
            if not bodies or not await _order(leader, CarryMessages(queue.name, bodies)):
                break  # it is looked at again
            carried += len(bodies)
        return carried


def _carried(queue: Queue, read: list[tuple[int, bytes]], end: int) -> list[tuple[int, int, bytes]]:
    owners = [(queue.entry_at(place), body) for place, body in read if place < end]
    return [(entry.number, entry.at, body) for entry, body in owners if entry is not None]


async def _order(leader: PartitionLeader, command: CarryMessages) -> bool:
    """Let the log have it; say whether it does, and something came of it."""
    answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    leader.propose(
        encode_queue_command(leader.now_ms(), command),
        lambda reply: None if answered.done() else answered.set_result(reply),
    )
    try:
        async with asyncio.timeout(_ORDER_SECONDS_MAX):
            reply = await answered
    except TimeoutError:
        return False
    return reply is not None and decode_queue_reply(reply).done > 0


def serve_amqp(service: BrokerService, listeners: Listeners) -> Callable[[], None]:
    """Put AMQP behind its doors; they open with the others. Returns what ends it."""
    new = service.amqp.new_connection
    service.amqp.readers = {
        RecordProtocol.MQTT: mqtt_records,
        RecordProtocol.KAFKA: kafka_records,
    }
    listeners.plaintext["amqp"] = listeners.encrypted["amqps"] = new
    listeners.over_websocket[AMQP] = new
    service.amqp.writer = KafkaRecordWriter()
    service.amqp.topics = TopicSessions(service)
    bodies = service.amqp.bodies = QueueBodies()
    keeper = QueueFilesKeeper(service.amqp, bodies, bytes_min=CARRY_BYTES_MIN)
    duty = contained.lasting("queue files", keeper.keep)
    task = asyncio.get_running_loop().create_task(duty)

    def end() -> None:
        task.cancel()
        bodies.close()

    return end
