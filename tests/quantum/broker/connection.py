"""The server's end of one connection in the small world, and the client at the other end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from quantum.broker import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    Acknowledge,
    Attach,
    Attached,
    Delivery,
    Detach,
    Message,
    Outbound,
    PublishOnce,
    Release,
    RouteTarget,
    Subscribe,
    SubscribeReply,
    SubscriptionSpec,
    Unsubscribe,
    WillSpec,
    decode_record,
    encode_record,
)
from quantum.broker.message import RETAIN
from quantum.broker.types import MACHINE_PACKET_ID_MAX, PacketId

if TYPE_CHECKING:
    from tests.quantum.broker.client import Client
    from tests.quantum.broker.partition import Partition
    from tests.quantum.broker.world import World

_KINDS = {"PUBACK": PUBACK, "PUBREC": PUBREC, "PUBCOMP": PUBCOMP}


class Connection:
    """What the leader of a session's partition knows of a connected client, and forgets."""

    def __init__(self, world: World, client: Client, partition: Partition) -> None:
        self.world = world
        self.client = client
        self.partition = partition
        self.to_client: deque[tuple[Any, ...]] = deque()
        self.to_server: deque[tuple[Any, ...]] = deque()
        self.open = True
        self.epoch = 0
        self.attachment = 0
        self.once: dict[int, bool] = {}
        """QoS 2 publishes of a session that only this connection knows: whether accepted."""
        self.logged_0: dict[int, Logged] = {}
        """The last QoS 0 publish for each partition that went through its log."""
        self.volatile = Outbound(client.window, MACHINE_PACKET_ID_MAX + 1, 0xFFFF)

    # Beginning and ending.

    def begin(self, expiry_seconds: int, will: WillSpec | None) -> None:
        client_id = self.client.client_id
        command = Attach(
            self.world.now_ms,
            client_id,
            not self.client.durable,
            expiry_seconds,
            self.client.window,
            will,
        )
        self.partition.dialing.append(self)
        self.partition.propose(command, self._attached)

    def _attached(self, reply: bytes) -> None:
        self.partition.dialing.remove(self)
        attached = msgspec.msgpack.decode(reply, type=Attached)
        if attached.is_moved:
            self.break_off()
            return
        self.epoch, self.attachment = attached.epoch, attached.attachment
        if not self.open:
            self._detach(gracefully=False)
            return
        self.register(present=attached.present)

    def register(self, *, present: bool) -> None:
        older = self.partition.connections.get(self.client.client_id)
        if older is not None and older is not self:
            older.break_off()
        self.partition.connections[self.client.client_id] = self
        self.to_client.append(("CONNACK", present, self.epoch))

    def break_off(self) -> None:
        """The network broke, or another connection took the session over."""
        self.open = False
        self.to_client.clear()
        self.to_server.clear()
        if self.client.connection is self:
            self.client.connection_lost()

    def session_ended(self, epoch: int) -> None:
        if epoch == self.epoch:
            self._leave()
            self.break_off()

    def _leave(self) -> None:
        if self.partition.connections.get(self.client.client_id) is self:
            del self.partition.connections[self.client.client_id]

    def end(self, *, gracefully: bool) -> None:
        """The server notices that the client is gone."""
        if not self.open:
            return
        self._leave()
        self.break_off()
        if self.epoch:
            self._detach(gracefully=gracefully)

    def _detach(self, *, gracefully: bool) -> None:
        self.partition.propose(
            Detach(
                self.world.now_ms,
                self.client.client_id,
                self.epoch,
                gracefully,
                None,
                self.attachment,
            )
        )

    # From the client.

    def handle(self) -> None:
        """Do what the oldest packet from the client wants."""
        if not self.open or not self.to_server:
            return
        kind, *rest = self.to_server.popleft()
        match kind:
            case "PUBLISH":
                self._publish(*rest)
            case "PUBREL":
                self._release(*rest)
            case "SUBSCRIBE":
                self._subscribe(*rest)
            case "UNSUBSCRIBE":
                self._unsubscribe(*rest)
            case "DISCONNECT":
                self.end(gracefully=True)
            case _:
                self._acknowledge(kind, *rest)

    def _publish(
        self, packet_id: int, topic: bytes, payload: bytes, qos: int, retain: bool
    ) -> None:
        flags = qos | (RETAIN if retain else 0)
        client = self.client
        record = encode_record(
            topic, payload, flags, b"", 0, client.client_id, self.epoch, packet_id
        )
        if qos == 2 and client.durable:

            def refused(reply: bytes) -> None:
                for _, reason in msgspec.msgpack.decode(reply) if reply else ():
                    self.world.note_refusal(payload)
                    self.to_client.append(("PUBREC", packet_id, reason))

            self.partition.propose(PublishOnce(self.world.now_ms, [record]), refused)
            return
        if qos == 2:
            if packet_id in self.once:
                return
            self.once[packet_id] = False
        owner = self.world.owner(topic, self.partition.prg_count)
        if qos == 0:
            before = self.logged_0.get(owner)
            if not retain and (before is None or before.done):
                self.world.partitions[owner].publish_unlogged(decode_record(record)[0])
                return
            # As the service does: what is retained is logged, and what follows it waits for it.
            self.logged_0[owner] = Logged()
        logged = self.logged_0[owner] if qos == 0 else Logged()

        def answered(reason: int) -> None:
            logged.done = True
            self._answer(packet_id, qos, reason, payload)

        if owner != self.partition.number:
            self.partition.forward(owner, record, answered)
            return

        def published(reply: bytes) -> None:
            refusals = msgspec.msgpack.decode(reply) if reply else []
            answered(refusals[0][1] if refusals else 0)

        self.partition.propose_publishes([record], published)

    def _answer(self, packet_id: int, qos: int, reason: int, payload: bytes) -> None:
        if reason:
            self.world.note_refusal(payload)
        if qos == 2:
            if reason:
                self.once.pop(packet_id, None)
            else:
                self.once[packet_id] = True
        if self.open and qos:
            self.to_client.append(("PUBACK" if qos == 1 else "PUBREC", packet_id, reason))

    def _release(self, packet_id: int) -> None:
        if not self.client.durable:
            self.once.pop(packet_id, None)
            self.to_client.append(("PUBCOMP", packet_id))
            return
        self.partition.propose(
            Release(self.world.now_ms, [(self.client.client_id, packet_id)]),
            lambda _: self.to_client.append(("PUBCOMP", packet_id)),
        )

    def _acknowledge(self, kind: str, packet_id: int) -> None:
        if packet_id <= MACHINE_PACKET_ID_MAX:
            said = (self.client.client_id, _KINDS[kind], packet_id)
            self.partition.propose(Acknowledge(self.world.now_ms, [said]))
            return
        outbound, place = self.volatile, PacketId(packet_id)
        if kind == "PUBREC":
            if outbound.on_pubrec(place):
                self.to_client.append(("PUBREL", packet_id))
            return
        outbound.on_puback(place) if kind == "PUBACK" else outbound.on_pubcomp(place)
        for delivery in outbound.take_ready(self.world.now_ms):
            self.send_kept(delivery, again=False)

    def _subscribe(self, token: int, specs: list[SubscriptionSpec]) -> None:
        command = Subscribe(self.world.now_ms, self.client.client_id, self.epoch, specs)

        def subscribed(reply: bytes) -> None:
            answer = msgspec.msgpack.decode(reply, type=SubscribeReply)
            if not self.epoch:
                self.epoch, self.attachment = answer.epoch, answer.attachment
                if not self.open and self.epoch:
                    self._detach(gracefully=False)
            self.partition.when_taken(
                answer.awaited,
                lambda: self.to_client.append(("SUBACK", token, answer.reasons)),
            )

        self.partition.propose(command, subscribed)

    def _unsubscribe(self, token: int, filters: list[bytes]) -> None:
        command = Unsubscribe(self.world.now_ms, self.client.client_id, self.epoch, filters)

        def unsubscribed(reply: bytes) -> None:
            answer = msgspec.msgpack.decode(reply, type=SubscribeReply)
            self.partition.when_taken(
                answer.awaited, lambda: self.to_client.append(("UNSUBACK", token))
            )

        self.partition.propose(command, unsubscribed)

    # To the client.

    def send_kept(self, delivery: Delivery, *, again: bool) -> None:
        message = delivery.message
        self.to_client.append(
            (
                "PUBLISH",
                delivery.packet_id,
                message.topic,
                message.payload,
                delivery.qos,
                delivery.retain,
                delivery.identifiers,
                again,
                delivery.share,
            )
        )

    def fan_out(self, target: RouteTarget, message: Message) -> None:
        wanted: RouteTarget | None = target
        if target.no_local and target.client_id == message.client_id:
            wanted = target.for_publisher()
        if wanted is not None:
            retain = message.retain and wanted.retain_as_published
            qos = min(message.qos, wanted.qos)
            self.send_volatile(message, qos, retain, wanted.identifiers)

    def send_unlogged(self, message: Message, share: bytes) -> None:
        delivery = Delivery(message, 0, retain=False, identifiers=(), share=share)
        self.send_kept(delivery, again=False)

    def send_volatile(
        self, message: Message, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        delivery = Delivery(message, qos, retain, identifiers)
        if qos == 0 or self.volatile.push(delivery):
            self.send_kept(delivery, again=False)


@dataclass
class Logged:
    """A publish on its way into a log."""

    done: bool = False


@dataclass
class Published:
    """One message that a client sent, and what became of it."""

    publisher: bytes
    topic: bytes
    number: int
    qos: int
    retain: bool
    at: int
    """When it was sent, on the world's own count."""
    connection: int = 0
    """Which of its publisher's connections it was sent on."""
    acknowledged: bool = False
    refused: bool = False
    once_refused: bool = False
    """Some attempt was refused, whether or not its publisher heard of it: what was published
    meanwhile comes first."""
