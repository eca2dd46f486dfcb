"""The MQTT sessions of one partition: MQTT's family at the partition's leader.

It knows the connections, turns what they say of their exchanges into commands, a few for all of a
turn, and brings them what the machine has for them. All of it ends with the leadership.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from clustor.runtime.containment import Ending, end_alone
from quantum.broker import (
    Acknowledge,
    Delivery,
    FanOut,
    Message,
    PublishOnce,
    Release,
    RemoveSession,
    RouteTarget,
    Send,
    SendPubrec,
    SendPubrel,
    SendVolatile,
    SessionEnd,
    decode_refusals,
    encode_command,
)
from quantum.broker.items import Deliver
from quantum.broker.message import decode_record
from quantum.broker.shares import ShareMember
from quantum.broker.sharing import share_key
from quantum.partition.batches import cuts
from quantum.partition.leader import PartitionLeader
from quantum.partition.ports import Completion
from quantum.partition.reasons import RefusalReason
from quantum.protocols.mqtt.codec import ReasonCode
from quantum.protocols.mqtt.session.delivery import Outgoing
from quantum.protocols.mqtt.session.phase import PLACE

_CarryOut: TypeAlias = Callable[[Any], None]


class OnceClient(Protocol):
    """A connection with exchanges of QoS 2 whose publishes the log takes once."""

    client_id: bytes

    def send_pubcomp(self, packet_id: int) -> None: ...
    def answer_pubrec(self, packet_id: int, refusal: RefusalReason | None) -> None: ...


class AttachedClient(OnceClient, Ending, Protocol):
    """A connection whose session is of this partition."""

    epoch: int

    @property
    def identity(self) -> str | None: ...
    def deliver_to(self, target: RouteTarget, outgoing: Outgoing) -> None: ...
    def deliver(
        self, outgoing: Outgoing, qos: int, retain: int, identifiers: tuple[int, ...]
    ) -> None: ...
    def send_kept(self, delivery: Delivery, *, again: bool) -> None: ...
    def send_pubrel(self, packet_id: int) -> None: ...
    def session_ended(self, epoch: int, reason: str) -> None: ...
    def partition_moved(self, why: str) -> None: ...
    def taken_over(self) -> None: ...
    def disconnect(self, reason: ReasonCode, why: str) -> None: ...


ClientT = TypeVar("ClientT", bound=AttachedClient)


class Neighbours(Protocol):
    """The other partitions of the same tenant."""

    @property
    def sessions(self) -> Sequence[PartitionSessions[Any]]: ...
    def deliver_unlogged(self, origin: int, number: int, message: Message) -> None: ...
    def deliver_to_member(self, member: ShareMember, message: Message) -> None: ...


class PartitionSessions(Generic[ClientT]):
    """What MQTT knows of one partition while this node leads it."""

    def __init__(self, leader: PartitionLeader, home: Neighbours) -> None:
        self.leader = leader
        self.home = home
        self.connections: dict[bytes, ClientT] = {}
        """The clients that are connected now, by their ids."""
        self.busy_clients: dict[bytes, int] = {}
        """Clients about whom something is on its way into the log, and how much."""
        self._acknowledgements: list[tuple[bytes, int, int]] = []
        self._once: list[bytes] = []
        self._once_from: list[tuple[OnceClient, int]] = []
        self._releases: list[tuple[bytes, int]] = []
        self._releases_from: list[OnceClient] = []
        self.effects: dict[type, _CarryOut] = {
            FanOut: self._fan_out,
            Message: self.fan_out,
            Send: self._for_client(_send),
            SendVolatile: self._for_client(_send_volatile),
            SendPubrel: self._for_client(_send_pubrel),
            SendPubrec: self._for_client(_send_pubrec),
            SessionEnd: self._for_client(_session_ended),
        }
        self.unlogged: dict[type, Callable[[Any], Message | None]] = {Deliver: self._read_deliver}

    def serves(self, client_id: bytes) -> bool:
        """Say whether a client's session is here."""
        return self.leader.leading and not self.leader.broker.state.is_fenced(client_id)

    def forget(self, client_id: bytes, connection: object) -> None:
        """Forget a connection, unless another one has taken its session over."""
        if self.connections.get(client_id) is connection:
            del self.connections[client_id]

    # Into the log.

    def unsettle(self, client_id: bytes) -> Callable[[], None]:
        """Note that something about a client is on its way into the log; call what is returned
        when it is over."""
        busy = self.busy_clients
        busy[client_id] = busy.get(client_id, 0) + 1

        def settled() -> None:
            left = busy[client_id] - 1
            if left:
                busy[client_id] = left
            else:
                del busy[client_id]

        return settled

    def _touch(self) -> None:
        self.leader.tenant.touch(self.leader)

    def publish_once(self, connection: OnceClient, packet_id: int, record: bytes) -> None:
        """Log a QoS 2 publish of a session that outlives its connection."""
        self._once.append(record)
        self._once_from.append((connection, packet_id))
        self._touch()

    def release(self, connection: OnceClient, packet_id: int) -> None:
        """Log the end of such an exchange."""
        self._releases.append((connection.client_id, packet_id))
        self._releases_from.append(connection)
        self._touch()

    def acknowledge(self, client_id: bytes, kind: int, packet_id: int) -> None:
        """Log what a client said of a message that the machine keeps."""
        self._acknowledgements.append((client_id, kind, packet_id))
        self._touch()

    def prepare(self, now_ms: int) -> None:
        """Turn what clients said of their exchanges into commands."""
        if self._acknowledgements:
            acknowledgements, self._acknowledgements = self._acknowledgements, []
            self.leader.submit(encode_command(Acknowledge(now_ms, acknowledgements)))
        if self._releases:
            self._submit_releases(now_ms)
        if self._once:
            self._submit_once(now_ms)

    def _submit_releases(self, now_ms: int) -> None:
        releases, self._releases = self._releases, []
        owners, self._releases_from = self._releases_from, []

        def released(reasons: bytes | None) -> None:
            if reasons is not None:
                for connection, (_, packet_id) in zip(owners, releases, strict=True):
                    connection.send_pubcomp(packet_id)

        self.leader.submit(encode_command(Release(now_ms, releases)), released)

    def _submit_once(self, now_ms: int) -> None:
        records, self._once = self._once, []
        owners, self._once_from = self._once_from, []
        for begin, end in cuts(records):
            chunk = records[begin:end]
            command = encode_command(PublishOnce(now_ms, chunk))
            taken = self.leader.traced(chunk, _once_taken(owners[begin:end]))
            self.leader.submit(command, taken, asks=True)

    def ended(self, why: str) -> None:
        connections, self.connections = self.connections, {}
        self._acknowledgements, self._once, self._once_from = [], [], []
        self._releases, self._releases_from = [], []
        self.busy_clients = {}
        for connection in connections.values():
            connection.partition_moved(why)

    def ring_changed(self) -> None:
        """Send clients away whose sessions moved."""
        state = self.leader.broker.state
        for client_id in [each for each in self.connections if state.is_fenced(each)]:
            self.connections.pop(client_id).partition_moved("the session moved")

    def kick(self, client_id: bytes) -> bool:
        """End a session because an operator wants it; say whether it is served here."""
        leader = self.leader
        if not leader.leading:
            return False
        connection = self.connections.get(client_id)
        known = client_id in leader.broker.state.sessions
        if connection is not None:
            connection.disconnect(ReasonCode.ADMINISTRATIVE_ACTION, "ended by an operator")
        if known:
            leader.propose(encode_command(RemoveSession(leader.now_ms(), client_id)))
        return known or connection is not None

    # Who wants what.

    def is_wanted(self, topic: bytes) -> bool:
        """Say whether anybody wants a topic that this partition owns, as far as is known here.

        A session that ends with its connection does not count any more when that is gone, even
        before the log knows; what another node knows better counts.
        """
        route = self.leader.broker.route(topic)
        if route.is_empty and self.leader.is_open:
            return False
        if route.shares or self.wants(topic):
            return True
        return any(self.home.sessions[number].wants(topic) for number in route.remotes)

    def wants(self, topic: bytes) -> bool:
        """Say whether a session of this partition wants a topic; True if it is led elsewhere."""
        if not self.leader.leading or not self.leader.is_open:
            return True
        route, connections = self.leader.broker.route(topic), self.connections
        return bool(route.kept) or any(each.client_id in connections for each in route.volatile)

    # Messages.

    def _fan_out(self, effect: FanOut) -> None:
        outgoing = Outgoing(effect.message)
        connections = self.connections
        for target in effect.route.volatile:
            connection = connections.get(target.client_id)
            if connection is not None:
                try:
                    connection.deliver_to(target, outgoing)
                except Exception as error:  # noqa: BLE001  # of this client, the others get theirs
                    end_alone(PLACE, connection, error)

    def fan_out(self, message: Message) -> None:
        """Deliver what needs no log to every connection here that wants it."""
        route = self.leader.broker.route(message.topic)
        outgoing = Outgoing(message)
        for target in route.volatile:
            connection = self.connections.get(target.client_id)
            if connection is not None:
                _deliver_to(connection, target, outgoing)
        if message.qos == 0:
            for target in route.kept:
                connection = self.connections.get(target.client_id)
                if connection is not None:
                    _deliver_to(connection, target, outgoing)

    def publish_unlogged(self, message: Message) -> None:
        """Deliver a QoS 0 message of a topic that this partition owns, here and elsewhere."""
        broker = self.leader.broker
        route = broker.route(message.topic)
        self.fan_out(message)
        for number in route.remotes:
            self.home.deliver_unlogged(self.leader.number, number, message)
        for group in route.shares:
            member = group.pick_unlogged(share_key(broker.state, message))
            if member is not None:
                self.home.deliver_to_member(member, message)

    def deliver_to_member(
        self, client_id: bytes, epoch: int, identifier: int, message: Message
    ) -> None:
        """Deliver a QoS 0 message to a member of a shared subscription, if it is still the same."""
        connection = self.connections.get(client_id)
        if connection is not None and connection.epoch == epoch:
            connection.deliver(Outgoing(message), 0, 0, (identifier,) if identifier else ())

    def _read_deliver(self, item: Deliver) -> Message | None:
        """Return the message of an item that only connections want."""
        try:
            message, _ = decode_record(item.record)
        except ValueError:
            return None  # the log counts it, and every replica skips it
        return None if self.leader.broker.route(message.topic).kept else message

    # What the machine has for one client.

    def _for_client(self, carry_out: Callable[[AttachedClient, Any], None]) -> _CarryOut:
        """Carry effects out for their clients that are here; an error ends that client alone."""

        def carried_out(effect: Any) -> None:
            connection = self.connections.get(effect.client_id)
            if connection is not None:
                try:
                    carry_out(connection, effect)
                except Exception as error:  # noqa: BLE001  # of this client, not of the partition
                    end_alone(PLACE, connection, error)

        return carried_out


def _send(connection: AttachedClient, effect: Send) -> None:
    connection.send_kept(effect.delivery, again=effect.again)


def _send_volatile(connection: AttachedClient, effect: SendVolatile) -> None:
    outgoing = Outgoing(effect.message)
    connection.deliver(outgoing, effect.qos, effect.retain, effect.identifiers)


def _send_pubrel(connection: AttachedClient, effect: SendPubrel) -> None:
    connection.send_pubrel(effect.packet_id)


def _send_pubrec(connection: AttachedClient, effect: SendPubrec) -> None:
    connection.answer_pubrec(effect.packet_id, None)


def _session_ended(connection: AttachedClient, effect: SessionEnd) -> None:
    connection.session_ended(effect.epoch, effect.reason)


def _deliver_to(connection: AttachedClient, target: RouteTarget, outgoing: Outgoing) -> None:
    """Deliver to one client; its error ends its connection, and the others get theirs."""
    try:
        connection.deliver_to(target, outgoing)
    except Exception as error:  # noqa: BLE001
        end_alone(PLACE, connection, error)


def _once_taken(owners: list[tuple[OnceClient, int]]) -> Completion:
    def taken(reply: bytes | None) -> None:
        for number, reason in (decode_refusals(reply) or ()) if reply else ():
            connection, packet_id = owners[number]
            connection.answer_pubrec(packet_id, RefusalReason.of(reason))

    return taken
