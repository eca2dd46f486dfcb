"""A client of the small world: it keeps MQTT's rules, and remembers all that it was told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantum.broker import SubscriptionSpec, WillSpec, encode_record
from quantum.broker.subscribing import shared_key
from quantum.topics import matches
from tests.quantum.broker.connection import Connection, Published

if TYPE_CHECKING:
    from tests.quantum.broker.world import World

FOR_EVER = 1 << 60


@dataclass
class Received:
    """One message that an application was given."""

    published: Published | None  # None: a will's
    qos: int
    retained: bool
    identifiers: tuple[int, ...]
    share: bytes


class Client:
    """`durable` ones keep their session; others forget everything with their connection."""

    def __init__(
        self,
        world: World,
        client_id: bytes,
        *,
        durable: bool,
        expiry_seconds: int = 86_400,
        window: int = 3,
        has_will: bool = False,
    ) -> None:
        self.world = world
        self.client_id = client_id
        self.durable = durable
        self.expiry_seconds = expiry_seconds if durable else 0
        self.window = window
        self.has_will = has_will
        self.connection: Connection | None = None
        self.connected = False
        self.next_packet_id = 1
        self.epoch = 0
        self.outgoing: dict[int, tuple[Published, bool]] = {}
        """Publishes that are not finished: packet id → (message, whether PUBREL was sent)."""
        self.incoming: set[int] = set()
        self.received: list[Received] = []
        self.filters: dict[bytes, int] = {}
        self.wished: dict[bytes, int] = {}
        """When it last asked for a filter."""
        """Until when, on the world's count, messages published to a filter may come."""
        self.asked: dict[int, list[SubscriptionSpec]] = {}
        self.since: dict[bytes, tuple[int, SubscriptionSpec]] = {}
        """Acknowledged subscriptions, and from when on they count."""
        self.refused: list[int] = []
        self.connections = 0

    # Connecting.

    def connect(self) -> None:
        """Connect to the leader of the session's partition, whatever was there before."""
        partition = self.world.partition_of(self.client_id)
        if not partition.admits(self.client_id):
            return
        if not self.durable:
            self.forget()
            partition.commit()
        connection = Connection(self.world, self, partition)
        self.connections += 1
        self.connection, self.connected = connection, False
        will = None
        if self.has_will:
            record = encode_record(b"will/" + self.client_id, b"will", 1, b"", 0, b"", 0, 0)
            will = WillSpec(record, self.world.rng.choice((0, 2)))
        known = self.client_id in partition.broker.state.sessions
        if self.durable or known or will is not None:
            self.connection.begin(self.expiry_seconds, will)
        else:
            self.connection.register(present=False)

    def forget(self) -> None:
        """Lose the session: what was not acknowledged is given up."""
        self.outgoing.clear()
        self.incoming.clear()
        self.asked.clear()
        self.since.clear()
        self.filters.clear()

    def connection_lost(self) -> None:
        self.connection, self.connected = None, False
        self.asked.clear()

    def send(self, *packet: Any) -> None:
        if self.connection is not None and self.connected:
            self.connection.to_server.append(packet)

    # What the application wants.

    def publish(self, topic: bytes, qos: int, *, retain: bool = False) -> Published | None:
        if not self.connected or len(self.outgoing) >= 10:
            return None
        published = self.world.new_message(self.client_id, topic, qos, retain=retain)
        published.connection = self.connections
        packet_id = 0
        if qos:
            packet_id = self._free_packet_id()
            self.outgoing[packet_id] = (published, False)
        self._send_publish(packet_id, published)
        return published

    def _free_packet_id(self) -> int:
        while self.next_packet_id in self.outgoing:
            self.next_packet_id = self.next_packet_id % 20 + 1
        return self.next_packet_id

    def _send_publish(self, packet_id: int, message: Published) -> None:
        payload = b"%b|%b|%d|%d" % (message.publisher, message.topic, message.qos, message.number)
        self.send("PUBLISH", packet_id, message.topic, payload, message.qos, message.retain)

    def subscribe(self, *specs: SubscriptionSpec) -> None:
        if not self.connected:
            return
        token = self.world.tick()
        self.asked[token] = list(specs)
        for spec in specs:
            self.filters[shared_key(spec)] = FOR_EVER
            self.wished[shared_key(spec)] = token
        self.send("SUBSCRIBE", token, list(specs))

    def unsubscribe(self, key: bytes) -> None:
        if self.connected and self.connection is not None and self.connection.epoch:
            self.since.pop(key, None)
            token = self.world.tick()
            self.asked[token] = [SubscriptionSpec(key, 0)]
            self.send("UNSUBSCRIBE", token, [key])

    # What the server says.

    def receive(self) -> None:
        """Take the oldest packet from the server."""
        if self.connection is None or not self.connection.to_client:
            return
        kind, *rest = self.connection.to_client.popleft()
        getattr(self, "_on_" + kind.lower())(*rest)

    def _on_connack(self, present: bool, epoch: int) -> None:
        self.connected = True
        # No client can know of a session that began and ended without a CONNACK it saw; the
        # epoch tells this one.
        is_another, self.epoch = not present or epoch != self.epoch, epoch
        if is_another and (self.outgoing or self.incoming or self.since):
            assert self.expiry_seconds < 86_400, f"{self.client_id!r} lost its session"
            self.forget()
        for packet_id, (published, released) in list(self.outgoing.items()):
            if released:
                self.send("PUBREL", packet_id)
            else:
                self._send_publish(packet_id, published)

    def _on_puback(self, packet_id: int, reason: int) -> None:
        published, _ = self.outgoing.pop(packet_id, (None, False))
        if published is not None:
            self._answered(published, reason)

    def _answered(self, published: Published, reason: int) -> None:
        if reason:
            published.refused = True
            self.refused.append(reason)
        else:
            published.acknowledged = True

    def _on_pubrec(self, packet_id: int, reason: int) -> None:
        found = self.outgoing.get(packet_id)
        if found is None:
            return
        if not found[1]:
            self._answered(found[0], reason)
        if reason:
            del self.outgoing[packet_id]
        else:
            self.outgoing[packet_id] = (found[0], True)
            self.send("PUBREL", packet_id)

    def _on_pubcomp(self, packet_id: int) -> None:
        self.outgoing.pop(packet_id, None)

    def _on_suback(self, token: int, reasons: list[int]) -> None:
        for spec, reason in zip(self.asked.pop(token, []), reasons, strict=False):
            key = shared_key(spec)
            if reason < 0x80 and key not in self.since:
                self.since[key] = (self.world.tick(), spec)

    def _on_unsuback(self, token: int) -> None:
        for spec in self.asked.pop(token, []):
            if self.wished.get(spec.filter, 0) < token:  # else it subscribed again meanwhile
                self.filters[spec.filter] = self.world.tick()

    def _on_publish(
        self,
        packet_id: int,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        again: bool,
        share: bytes,
    ) -> None:
        if qos == 2 and packet_id in self.incoming:
            assert again, f"packet id {packet_id} was used again without DUP"
        else:
            self._take(topic, payload, qos, retain, identifiers, share)
        if qos == 1:
            self.send("PUBACK", packet_id)
        elif qos == 2:
            self.incoming.add(packet_id)
            self.send("PUBREC", packet_id)

    def _take(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        retained: bool,
        identifiers: tuple[int, ...],
        share: bytes,
    ) -> None:
        published = self.world.find_message(payload)
        at = published.at if published is not None else 0
        assert any(
            until >= at and matches(_inner(key), topic) for key, until in self.filters.items()
        ), f"{self.client_id!r} got {payload!r} and did not subscribe"
        if published is not None:
            assert published.topic == topic
            assert qos <= published.qos
        self.received.append(Received(published, qos, retained, identifiers, share))

    def _on_pubrel(self, packet_id: int) -> None:
        self.incoming.discard(packet_id)
        self.send("PUBCOMP", packet_id)


def _inner(key: bytes) -> bytes:
    return key.split(b"/", 2)[2] if key.startswith(b"$share/") else key
