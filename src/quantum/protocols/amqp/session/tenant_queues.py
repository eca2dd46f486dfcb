"""The AMQP clients of one tenant on this node, and their ways to queues (`TenantSide`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from clustor.control.command_gates import CommandGate
from quantum.broker.queues import (
    CloseTerminus,
    DefineQueue,
    DeleteQueue,
    NewMessage,
    OpenTerminus,
    PurgeQueue,
    QueueRefusal,
    QueueReply,
    QueueSpec,
    ReviveMessages,
    decode_queue_reply,
    encode_queue_command,
    place_key,
)
from quantum.mesh.tenant import Tenant
from quantum.model.records import RecordReaders, RecordWriter
from quantum.partition.leader import PartitionLeader
from quantum.protocols.amqp.session.lane import Done, MakeCommand, SenderLane
from quantum.protocols.amqp.session.partition_queues import PartitionQueues
from quantum.protocols.amqp.session.stream_lanes import RecordLanes
from quantum.protocols.amqp.session.topic_port import TopicPort
from quantum.protocols.amqp.session.ways import QueueWays
from quantum.protocols.ports import Host
from quantum.tenancy import Quotas

REQUEST_MS_MAX: Final = 10_000
"""For so long a request about a queue looks for somebody who answers."""
_AGAIN_MS: Final = 3_000


class TenantClientPort(Protocol):
    """A connection, as its tenant knows it."""

    def policy_changed(self) -> None: ...
    def sent_away(self, why: str) -> None: ...
    def on_tick(self) -> None: ...


Answered = Callable[[QueueReply | None], None]
QueueOrder = DefineQueue | DeleteQueue | PurgeQueue | ReviveMessages | OpenTerminus | CloseTerminus


@dataclass(slots=True, eq=False)
class _Request:
    prg: int
    command: bytes
    then: Answered
    began_ms: int
    asked_ms: int = -1
    is_over: bool = False


class TenantQueues:
    """AMQP's side of a tenant."""

    def __init__(
        self,
        host: Host,
        tenant: Tenant,
        lane: bytes,
        readers: Callable[[], RecordReaders],
        writer: Callable[[], RecordWriter | None],
        *,
        topics: Callable[[], TopicPort | None] = lambda: None,
    ) -> None:
        self.tenant = tenant
        self.guard = tenant.guard
        self.name = tenant.name
        self.readers = readers
        """How batches of other protocols are read, once the node has said so."""
        self.topics = topics
        """Who keeps sessions for links to topics, once the node has said so."""
        self._host = host
        self._lane = lane
        self._lanes: dict[int, SenderLane] = {}
        self._requests: list[_Request] = []
        self.queues: list[PartitionQueues] = []
        """The queues of each partition that is hosted here, by its number."""
        self.streams = RecordLanes(tenant, writer)
        self.ways = QueueWays(host, tenant, self.queues)
        self.clients: set[TenantClientPort] = set()

    def clock_ms(self) -> int:
        return self._host.clock_ms()

    def place(self, queue: bytes) -> int:
        """Return the partition of a queue: where the tenant's first ring places it, for ever."""
        settings = self.tenant.prgs[0].broker.settings
        return settings.topic_partition(place_key(queue), settings.prg_count)

    def is_known(self, queue: bytes) -> bool:
        """Say whether this node's replica has a queue; it may be a little behind."""
        return queue in self.queues[self.place(queue)].section.queues

    def knows_queues(self, queue: bytes) -> bool:
        """Say whether every replica of a queue's partition can apply its commands."""
        prg = self.tenant.prgs[self.place(queue)]
        return self._host.members_know(prg, CommandGate.QUEUES)

    def knows_transactions(self, places: set[int]) -> bool:
        """Say whether every replica of these partitions can apply parts of transactions."""
        gate, prgs = CommandGate.QUEUE_TRANSACTIONS, self.tenant.prgs
        return all(self._host.members_know(prgs[each], gate) for each in places)

    # What the tenant may have: as this node's replicas know it, so that what is on its way from
    # others may pass a bound by as much.

    def refuse_queue(self, queue: bytes) -> QueueRefusal:
        """Say why the tenant may not have one more queue."""
        count = sum(len(each.section.queues) for each in self.queues)
        is_over = not self.is_known(queue) and count >= self._quotas.queues
        return QueueRefusal.TOO_MANY if is_over else QueueRefusal.NONE

    def refuse_messages(self, count: int, size: int) -> QueueRefusal:
        """Say why the tenant's queues may not hold so much more."""
        quotas, totals = self._quotas, [each.section.totals for each in self.queues]
        is_over = (
            sum(each.messages for each in totals) + count > quotas.queue_messages
            or sum(each.bytes for each in totals) + size > quotas.queue_bytes
        )
        return QueueRefusal.OVER_LIMIT if is_over else QueueRefusal.NONE

    @property
    def _quotas(self) -> Quotas:
        return self.guard.description.policy.quotas

    # Messages.

    def enqueue(self, queue: bytes, message: NewMessage, done: Done) -> None:
        """Let the log of its partition have a message, unless the tenant has too many."""
        refusal = self.refuse_messages(1, len(message.payload))
        if refusal:
            self.tenant.soon(lambda: done(refusal))
            return
        self._lane_to(self.place(queue)).add(queue, message, done)

    def transact(
        self, prg: int, make: MakeCommand, messages: list[NewMessage], settled: int, done: Done
    ) -> None:
        """Let the log of one partition have a command that takes messages and settles some."""
        size = sum(len(message.payload) for message in messages)
        refusal = self.refuse_messages(max(0, len(messages) - settled), size)
        if messages and refusal:
            self.tenant.soon(lambda: done(refusal))
            return
        self._lane_to(prg).add_alone(make, done)

    def _lane_to(self, prg: int) -> SenderLane:
        lane = self._lanes.get(prg)
        if lane is None:
            lane = self._lanes[prg] = SenderLane(self.tenant, prg, self._lane, self.clock_ms)
        return lane

    # Queues.

    def define(self, spec: QueueSpec, then: Answered, *, keeps: bool = True) -> None:
        """Make a queue where there is none; None comes back where nobody answered in time."""
        refusal = self.refuse_queue(spec.name)
        if refusal:
            self.tenant.soon(lambda: then(QueueReply(refusal)))
            return
        self.order(spec.name, DefineQueue(spec, keeps), then)

    def order(self, queue: bytes, command: QueueOrder, then: Answered) -> None:
        """Let a queue's partition carry out an order; done twice it is done once."""
        encoded = encode_queue_command(self.tenant.now_ms(), command)
        request = _Request(self.place(queue), encoded, then, self.clock_ms())
        self._requests.append(request)
        self._ask(request)

    def _ask(self, request: _Request) -> None:
        request.asked_ms = self.clock_ms()

        def answered(reply: bytes | None) -> None:
            if request.is_over:
                return
            if not reply:
                request.asked_ms = -1  # with the next tick
                return
            self._finish(request, reply)

        self.tenant.asks.ask(request.prg, request.command, answered)

    def _finish(self, request: _Request, reply: bytes | None) -> None:
        request.is_over = True
        self._requests.remove(request)
        try:
            request.then(None if reply is None else decode_queue_reply(reply))
        except msgspec.DecodeError:
            request.then(None)

    # What the tenant says.

    def judge_again(self) -> None:
        for client in list(self.clients):
            client.policy_changed()

    def send_away(self, why: str) -> int:
        clients = list(self.clients)
        for client in clients:
            client.sent_away(why)
        return len(clients)

    def ring_grew(self, fresh: list[PartitionLeader]) -> None:
        """A queue stays where it was made."""

    def link_anew(self, peer: int) -> None:
        self.ways.link_anew(peer)

    def review(self) -> None:
        """Lanes look at their partitions' gates with every tick."""

    def on_tick(self, now_ms: int) -> None:
        for queues in self.queues:
            queues.on_tick()
        for lane in self._lanes.values():
            if not lane.is_idle:
                lane.on_tick(now_ms)
        self.streams.on_tick()
        for request in list(self._requests):
            if now_ms - request.began_ms > REQUEST_MS_MAX:
                self._finish(request, None)
            elif request.asked_ms < 0 or now_ms - request.asked_ms > _AGAIN_MS:
                self._ask(request)
        for client in list(self.clients):
            client.on_tick()
