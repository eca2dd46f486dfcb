"""The MQTT clients of one tenant on this node: who is connected, who waits, who must go."""

from __future__ import annotations

from typing import Final, Protocol

from clustor.control.command_gates import CommandGate
from quantum.broker import Message
from quantum.broker.shares import ShareMember
from quantum.mesh import link
from quantum.mesh.tenant import Tenant
from quantum.partition.backpressure import QUEUED_BYTES_MAX, Pausable, WatermarkLevel
from quantum.partition.gate import ClientOperation
from quantum.partition.leader import PartitionLeader
from quantum.protocols.mqtt.codec import PeerFault, ReasonCode
from quantum.protocols.mqtt.session.full_queues import FullQueues
from quantum.protocols.mqtt.session.partition_sessions import AttachedClient, PartitionSessions
from quantum.protocols.mqtt.session.slowing import Publisher, SlowedElsewhere, Slowing

FENCED_MS_MAX: Final = 5_000
"""For how long a client may wait for what is closed before it must go."""
_SLOW_MS_MAX: Final = 5_000
"""For how long slow subscribers may stop a tenant's publishers before the slowest must go."""


class FencedClient(Pausable, Protocol):
    """A client that asks for what may be closed."""

    @property
    def prg(self) -> PartitionLeader | None: ...
    @property
    def is_live(self) -> bool: ...
    def fenced_off(self, why: str) -> None: ...


class TenantClient(AttachedClient, Publisher, Protocol):
    """A connected client, as its tenant knows it."""

    moved_ms: int
    slowing: Slowing | None

    def policy_changed(self) -> None: ...
    def ring_grew(self, fresh: list[PartitionLeader]) -> None: ...
    def sent_away(self, why: str) -> None: ...


class TenantSessions:
    """MQTT's side of a tenant. What is counted is this node's."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.name = tenant.name
        self.guard = tenant.guard
        self.share = tenant.share
        self.sessions: list[PartitionSessions[TenantClient]] = []
        """Those of each partition that is hosted here, by its number."""
        self.full = FullQueues(self)
        """Lasting sessions without room, and who waits for them."""
        self.slowed = SlowedElsewhere(tenant.soon)
        """Publishers here that subscribers on other nodes slow."""
        self.queued = WatermarkLevel(QUEUED_BYTES_MAX, tenant.soon)
        """What the connections here hold for subscribers that do not keep up."""
        self._slow_since_ms: int | None = None
        self._fenced: dict[FencedClient, tuple[int, ClientOperation]] = {}
        """Connections that ask for what is closed, since when, and for what."""
        self.dropped = 0
        self.bytes_in = self.bytes_out = 0
        """Of clients that are let in, as MQTT: without TLS and WebSocket around it."""
        self.deliveries = 0
        self.faults: dict[str, int] = {}

    def of_client(self, client_id: bytes) -> PartitionSessions[TenantClient]:
        """Return the sessions of the partition that a client's session lives in."""
        return self.sessions[self.tenant.session_prg(client_id).number]

    def connected(self) -> list[TenantClient]:
        """Return the connections of the sessions that are served here."""
        return [each for sessions in self.sessions for each in sessions.connections.values()]

    @property
    def connections(self) -> int:
        """How many of its clients are connected here."""
        return self.guard.connections

    @property
    def uptime_seconds(self) -> int:
        return self.tenant.uptime_seconds

    def count_fault(self, fault: PeerFault) -> None:
        self.faults[fault.reason] = self.faults.get(fault.reason, 0) + 1

    # What its tenant says.

    def judge_again(self) -> None:
        for connection in self.connected():
            connection.policy_changed()

    def send_away(self, why: str) -> int:
        clients = self.connected()
        for connection in clients:
            connection.sent_away(why)
        return len(clients)

    def ring_grew(self, fresh: list[PartitionLeader]) -> None:
        for connection in self.connected():
            connection.ring_grew(fresh)

    def link_anew(self, peer: int) -> None:
        self.slowed.begin_anew(peer)
        for connection in self.connected():
            if connection.slowing is not None:
                connection.slowing.begin_anew(peer)

    # What the control plane's copy closes.

    def fence(self, connection: FencedClient, operation: ClientOperation) -> None:
        """Leave a connection unread that asks for what is closed now (C11)."""
        if connection not in self._fenced:
            self._fenced[connection] = (self.tenant.tick_ms, operation)
            connection.hold()

    def fenced_for(self, connection: FencedClient) -> str:
        """Return why a connection is fenced; empty: it is not."""
        _, operation = self._fenced.get(connection, (0, None))
        prg = connection.prg
        return "" if operation is None or prg is None else prg.closed.get(operation, "")

    def review(self) -> None:
        """Read on where the way is open again; end what waited too long."""
        for connection, (since_ms, operation) in list(self._fenced.items()):
            prg = connection.prg
            why = prg.closed.get(operation) if prg is not None else None
            if connection.is_live and why is not None:
                if self.tenant.tick_ms - since_ms < FENCED_MS_MAX:
                    continue
                connection.fenced_off(why)
            del self._fenced[connection]
            connection.let_go()

    # Time.

    def on_tick(self, now_ms: int) -> None:
        """Send the slowest subscriber away if all wait for it."""
        self.full.on_tick(now_ms)
        if not self.queued.is_high:
            self._slow_since_ms = None
            return
        if self._slow_since_ms is None:
            self._slow_since_ms = now_ms
        if now_ms - self._slow_since_ms > _SLOW_MS_MAX:
            self._end_stuck(now_ms)

    def _end_stuck(self, now_ms: int) -> None:
        """End the one that holds most of it and takes nothing; who takes something is waited for.

        Publishers that are faster than their subscribers are no reason to end a subscriber.
        """
        stuck = [
            each
            for each in self.connected()
            if each.queued_bytes and now_ms - each.moved_ms > _SLOW_MS_MAX
        ]
        worst = max(stuck, key=lambda each: each.queued_bytes, default=None)
        if worst is not None:
            worst.disconnect(ReasonCode.QUOTA_EXCEEDED, "it took nothing while publishers waited")

    def say_slow(
        self, node: int, prg: int, publisher: bytes, subscriber: bytes, *, slow: bool
    ) -> None:
        """Tell another node that a publisher there is too fast for a subscriber here, or is not."""
        said = link.SlowDown(self.tenant.life, prg, publisher, subscriber, slow)
        size = len(publisher) + len(subscriber) + 32
        self.tenant.say_if_known(node, CommandGate.SLOW_DOWN, said, size)

    # Messages of QoS 0, wherever they are wanted. They may be lost.

    def publish_unlogged(self, message: Message) -> None:
        """Let a message go to everyone who is there."""
        prg = self.tenant.owner(message.topic)
        if prg.leading:
            self.sessions[prg.number].publish_unlogged(message)
        else:
            said = link.Unlogged(self.tenant.life, prg.number, [message.record])
            self.tenant.say_to_leader(prg, said, len(message.record) + 32)

    def deliver_unlogged(self, origin: int, number: int, message: Message) -> None:
        """Deliver a message to the sessions of a partition."""
        prg = self.tenant.prgs[number]
        if prg.leading:
            prg.carry_out_behind(origin, message)
        else:
            said = link.UnloggedDeliver(self.tenant.life, origin, number, [message.record])
            self.tenant.say_to_leader(prg, said, len(message.record) + 32)

    def deliver_to_member(self, member: ShareMember, message: Message) -> None:
        """Deliver a message to one member of a shared subscription."""
        prg = self.tenant.prgs[member.prg]
        if prg.leading:
            self.sessions[member.prg].deliver_to_member(
                member.client_id, member.epoch, member.identifier, message
            )
            return
        said = link.UnloggedMember(
            self.tenant.life,
            member.prg,
            member.client_id,
            member.epoch,
            member.identifier,
            message.record,
        )
        self.tenant.say_to_leader(prg, said, len(message.record) + 64)
