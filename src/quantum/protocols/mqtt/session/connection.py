"""One MQTT client: its packets become commands, and what is decided becomes its packets.

It lives on the node that leads the partition of the client's session, whatever node the client
reached. It decides what the standard lets a server decide without a log; everything that must
survive goes through its partition. Nothing here is awaited: answers come as calls.

Each part has its own file: `client_wire` what leaves, `session_client` the session's partition,
`handshake` the way to CONNACK, and here what comes in and who may end it. The first two are bases
and not parts, because a part would cost a call for each message.
"""

from __future__ import annotations

from typing import Any, Final

from clustor.runtime.containment import guarded
from quantum.broker import Unsubscribe as UnsubscribeCommand
from quantum.broker import encode_command
from quantum.edge.ports import ConnectionPeer, WirePort
from quantum.mesh.relay import RelayEntry, RelayExit
from quantum.partition.gate import ClientOperation
from quantum.partition.leader import PartitionLeader
from quantum.partition.reasons import RefusalReason
from quantum.protocols.mqtt.codec import (
    Connack,
    PacketReader,
    PacketType,
    PeerFault,
    ProtocolViolation,
    ReasonCode,
)
from quantum.protocols.mqtt.codec.hot import SLOW, UNBOUNDED, Row, scan
from quantum.protocols.mqtt.session.dispatch import PacketDispatch
from quantum.protocols.mqtt.session.handshake import ConnectHandshake
from quantum.protocols.mqtt.session.large_packets import LARGE_BYTES, whole_within_ms
from quantum.protocols.mqtt.session.mqtt_node import MqttNode
from quantum.protocols.mqtt.session.partition_sessions import PartitionSessions
from quantum.protocols.mqtt.session.phase import PLACE, ConnectionPhase
from quantum.protocols.mqtt.session.relay_memory import RelayMemory
from quantum.protocols.mqtt.session.resuming import RESUME_MS_MAX, ResumedWire
from quantum.protocols.mqtt.session.session_client import NEVER_MS, SessionClient
from quantum.protocols.mqtt.session.tenant_sessions import TenantClient
from quantum.tenants.passwords import IDENTITY_PREFIX

_ASKS: Final = {
    PacketType.PUBLISH.value: ClientOperation.PUBLISH,
    PacketType.SUBSCRIBE.value: ClientOperation.SUBSCRIBE,
    PacketType.AUTH.value: ClientOperation.AUTHENTICATE,
}
"""What a packet asks for that may be closed."""


class MqttConnection(SessionClient):
    """A handler for the listeners; see the module."""

    __slots__ = (
        "_awaits_suback",
        "_connect_deadline_ms",
        "_dispatch",
        "_handshake",
        "_incomplete",
        "_is_large",
        "_relay",
        "_resumed",
        "passes_full",
    )

    def __init__(self, node: MqttNode) -> None:
        super().__init__(node)
        self._handshake: ConnectHandshake | None = ConnectHandshake(self)
        """Not None exactly until it is live, relayed or closed."""
        self._connect_deadline_ms = 0
        self._relay: RelayEntry | None = None
        self._resumed: ResumedWire | None = None
        """Not None while its session finds another leader: what it says waits."""
        self._dispatch: PacketDispatch | None = None
        self.passes_full = False
        """Whether its next publish goes on although a queue is full: it waited long enough."""
        self._incomplete = (0, 0)
        """How many reads brought whole packets, and since when none did while one is not whole."""
        self._is_large = False  # a large packet is on its way, or waits for that
        self._awaits_suback = False  # a PUBLISH of it waits for the answer to a SUBSCRIBE

    # What the listener calls.

    def opened(self, wire: WirePort, peer: ConnectionPeer) -> None:
        self.wire, self.peer = wire, peer
        self.last_seen_ms = self.node.tick_ms
        assert self._handshake is not None
        self._handshake.deadline_ms = self.last_seen_ms + self.limits.connect_wait_ms
        self._connect_deadline_ms = self._handshake.deadline_ms
        self.node.joined(self)

    @guarded(PLACE)
    def received(self, data: bytes) -> None:
        self.last_seen_ms = self.node.tick_ms
        if self._resumed is not None:
            self._resumed.late += data
        elif self.phase is ConnectionPhase.LIVE:
            self.home.bytes_in += len(data)
            self.reader.receive(data)
            self.pull()
            if self._is_large or self.reader.awaited_bytes > LARGE_BYTES:
                self._note_large()
        elif self._relay is not None:
            self._relay.received(data)
        elif self._handshake is not None:
            self._handshake.received(data)

    @guarded(PLACE)
    def writable_again(self) -> None:
        if self._relay is not None:
            self._relay.report()
        elif self.phase is ConnectionPhase.LIVE and self.outward is not None:
            self.outward.send_more()

    @guarded(PLACE)
    def expelled(self, why: str) -> None:
        """End a client whose certificate is believed no more; its will is not said (§10.3)."""
        self.gracefully = True
        if self._relay is not None:
            self._relay.expelled(why)
        else:
            self._send_away(ReasonCode.NOT_AUTHORIZED, ReasonCode.NOT_AUTHORIZED, why)

    def lost(self) -> None:
        if self._relay is not None:
            self._relay.lost()
            self._relay = None
        self.wire = None
        self.close_session()

    # What the handshake decides.

    def arrived(self, client_id: bytes) -> None:
        """Note that another node sent this connection here, with the id that it assigned."""
        assert self._handshake is not None
        self._handshake.arrived(client_id)

    def attach_to(self, sessions: PartitionSessions[TenantClient]) -> None:
        sessions.connections[self.client_id] = self

    def become_relayed(
        self,
        prg: PartitionLeader,
        node: int,
        assigned: bytes,
        data: bytes,
        memory: RelayMemory | None,
    ) -> None:
        assert self.wire is not None and self.peer is not None
        self.phase = ConnectionPhase.RELAYED
        self._handshake = self._permit = None
        if self._holds:
            self._holds, self._is_paused = 0, False
            self.wire.resume_reading()
        deadline_ms = self._connect_deadline_ms
        self._relay = self.node.host.open_relay(self.wire, self.peer, prg, node, assigned, data)
        self._relay.route_again = lambda early: self._route_again(early, deadline_ms)
        self._relay.memory = memory
        if memory is not None:
            self._relay.resume = lambda: self._resume(memory)

    def _route_again(self, early: bytes, deadline_ms: int) -> None:
        """Find the session's partition anew: the node that was asked gave no answer."""
        self._relay = None
        if self.wire is None or self.phase is ConnectionPhase.CLOSED:
            return
        self.phase = ConnectionPhase.NEW
        self._handshake = ConnectHandshake(self)
        self._handshake.deadline_ms = deadline_ms
        self._handshake.received(early)

    def _resume(self, memory: RelayMemory) -> None:
        """Wait unread for the session's next leader, which is told what the last one was."""
        self._relay = None
        wire = self.wire
        if wire is None or self.phase is ConnectionPhase.CLOSED:
            return
        if isinstance(wire, ResumedWire):
            wire = wire.wire
        self.wire = self._resumed = ResumedWire(wire, memory, self._on_resumed)
        patience_ms = min(self._keep_alive_ms or RESUME_MS_MAX, RESUME_MS_MAX)
        self._connect_deadline_ms = self.node.tick_ms + patience_ms
        self.reader = PacketReader(self.limits.packet_bytes_max, self.limits.connect_bytes_max)
        self.phase = ConnectionPhase.NEW
        self.node.resume_later(self)

    def is_led(self, now_ms: int) -> bool:
        """Say whether one that is to be resumed has somebody to ask, or no time to wait for it."""
        sessions = self.home.of_client(self.client_id)
        node = sessions.leader.leader_node
        has_way = node is not None and self.node.host.reaches(node)
        return has_way or sessions.serves(self.client_id) or now_ms >= self._connect_deadline_ms

    def resume(self) -> None:
        """Ask for the session where it is led now."""
        if self._resumed is not None:
            self._route_again(self._resumed.connect_again(), self._connect_deadline_ms)

    def _on_resumed(self) -> None:
        """Say what had no answer, when whoever answered has let the client in."""
        self.node.soon(self._say_again)

    @guarded(PLACE)
    def _say_again(self) -> None:
        resumed, self._resumed = self._resumed, None
        if resumed is not None and self.phase is not ConnectionPhase.CLOSED:
            self.node.meters.resumed += 1
            said = resumed.go_on()
            if said:
                self.received(said)

    def become_live(self, connack: Connack) -> None:
        handshake, self._handshake = self._handshake, None
        if handshake is not None and handshake.trace is not None:
            handshake.trace.finish(self.home.name)
        self.phase = ConnectionPhase.LIVE
        self.note_audit("ClientConnected", "Resumed" if connack.session_present else "Done")
        self.send(connack)
        self._end_forbidden()
        if self._holds:
            self.let_go()
        elif self.reader.buffered_bytes and self.phase is ConnectionPhase.LIVE:
            self.pull()

    # What comes in.

    @guarded(PLACE)
    def pull(self) -> None:
        reader, share = self.reader, self.home.share
        try:
            while self.phase is ConnectionPhase.LIVE and not self._holds:
                window = reader.window()
                if window is None or self.permit.must_wait():
                    return
                buffer, start = window
                part = UNBOUNDED if share is None else share.part
                limit = reader.packet_bytes_max
                behind = self._subacks_due > 0
                rows, end, cost = scan(buffer, start, limit, self.is_v5, part, behind)
                if not rows:
                    self._await_suback()
                    return
                if self.prg is not None and self.prg.closed:
                    rows, end = self._open_rows(self.prg, buffer, rows, end)
                if self.home.full.is_any:
                    rows, end = self.home.full.open_rows(self, buffer, rows, end)
                reader.consume(end)
                if self.node.traces is not None:
                    rows = self.node.traces.choose(buffer, rows)
                if self.permit.gate is None:
                    self._talk_on().on_rows(buffer, rows)
                else:
                    self._talk_on().on_counted_rows(buffer, rows)
                if share is not None:
                    share.bring(cost)
                    if cost >= part and reader.buffered_bytes:
                        share.hold_behind(self)
        except PeerFault as fault:
            self.count_fault(fault)
            self.disconnect(fault.reason_code, fault.reason)

    def _await_suback(self) -> None:
        """Leave a PUBLISH unread until what was subscribed to before it has taken effect."""
        self._awaits_suback = True
        self.hold()

    def suback_left(self) -> None:
        super().suback_left()
        if self._awaits_suback and not self._subacks_due:
            self._awaits_suback = False
            self.node.soon(self.let_go)

    def _open_rows(
        self, prg: PartitionLeader, buffer: bytes, rows: list[Row], end: int
    ) -> tuple[list[Row], int]:
        """Cut off what is closed now, with all behind it: it waits unread until it is open."""
        for number, row in enumerate(rows):
            first_byte = buffer[row[2]] if row[0] == SLOW else row[0]
            operation = _ASKS.get(first_byte >> 4)
            if operation is not None and operation in prg.closed:
                self.home.fence(self, operation)
                return rows[:number], row[2]
        return rows, end

    def _talk_on(self) -> PacketDispatch:
        if self._dispatch is None:
            self._dispatch = PacketDispatch(self)
        return self._dispatch

    def _note_large(self) -> None:
        """Be counted while a large packet comes; there may be no room for it now."""
        size, large = self.reader.awaited_bytes, self.node.large
        if self.phase is ConnectionPhase.LIVE and size > LARGE_BYTES:
            self._is_large = True
            large.begin(self, size, self.node.tick_ms)
        elif self._is_large:
            self._is_large = False
            large.end(self, self.node.tick_ms)

    @property
    def block_ms_max(self) -> int | None:
        """How long it may be left unread for a full queue (C24); None: for as long as it takes."""
        if self.is_v5:
            return self.limits.block_ms_max
        return self._keep_alive_ms or None

    # Answers to its publishes.

    @property
    def unanswered(self) -> int:
        """How many of its publishes have no answer yet."""
        return 0 if self._dispatch is None else self._dispatch.inbound.unanswered

    @guarded(PLACE)
    def batch_finished(self) -> None:
        if self._dispatch is not None and self.phase is ConnectionPhase.LIVE:
            self._dispatch.inbound.release_answers()

    def answer_pubrec(self, packet_id: int, refusal: RefusalReason | None) -> None:
        if self.phase is ConnectionPhase.LIVE:
            self._talk_on().inbound.on_pubrec(packet_id, refusal)

    def full_queue(self, sessions: PartitionSessions[Any], session: bytes) -> None:
        """Tell people that this client waits for a session's queue."""
        self.node.host.tell_full(sessions.leader, session)

    # Under which rules.

    @guarded(PLACE)
    def policy_changed(self) -> None:
        """Go on under other rules of the tenant; what they forbid ends."""
        why = self.disbelief()
        if why is not None:
            self.note_refused("ConnectRefused", why)
            self.expelled(why)
            return
        if not self.home.guard.may_connect(self.identity, self.client_id):
            self.sent_away("the rules of the tenant let it not connect any more")
            return
        self.draw_permit()
        self._end_forbidden()

    @guarded(PLACE)
    def ring_grew(self, fresh: list[PartitionLeader]) -> None:
        """Topics may have other owners from now on, these partitions too."""
        if self._permit is not None:
            self._permit.owners.clear()
        if self._dispatch is not None:
            self._dispatch.inbound.ring_grew(fresh)

    def _end_forbidden(self) -> None:
        prg = self.prg
        session = None if prg is None else prg.broker.state.sessions.get(self.client_id)
        if prg is None or session is None or not self.epoch:
            return
        forbidden = self.permit.forbidden(list(session.subscriptions))
        if forbidden:
            guard = self.home.guard
            for topic_filter in forbidden:
                guard.note("SUBSCRIPTION_ENDED", self.client_id, self.identity, topic_filter)
            command = UnsubscribeCommand(prg.now_ms(), self.client_id, self.epoch, forbidden)
            self.command(encode_command(command), lambda _reply: None)

    # Ends.

    @guarded(PLACE)
    def check_time(self, now_ms: int) -> None:
        """Close what was silent too long, or waits too long for a leader."""
        if self._behind is not None:
            self.check_behind()
        if self._handshake is not None and self._handshake.check_time(now_ms):
            return
        if self._ends_ms != NEVER_MS and self.now_ms() >= self._ends_ms:
            self.expelled("its token has ended")
        elif self._auth_epoch is not None and self._auth_epoch < self.home.tenant.auth_epoch:
            self.note_refused("TOKEN_EPOCH_OLD", "the tenant asks for newer tokens")
            self.expelled("the tenant asks for newer tokens")
        elif (self.identity or "").startswith(IDENTITY_PREFIX) and not self._is_user():
            self.expelled("its user was removed")
        elif (
            0 < self._keep_alive_ms < now_ms - self.last_seen_ms
            and self._relay is None
            and not self._holds
        ):
            self.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT, "keep alive timeout")
        elif self.slowing is not None and self.slowing.is_stuck(now_ms):
            self.disconnect(ReasonCode.QUOTA_EXCEEDED, "it took nothing while publishers waited")
        elif self.reader.buffered_bytes and self.phase is ConnectionPhase.LIVE:
            self._check_whole(now_ms)

    def _is_user(self) -> bool:
        """Say whether the user that a password named is still one, as this node knows."""
        passwords = self.node.passwords
        return passwords.words is None or passwords.is_user(self.home.name, self.identity or "")

    def _check_whole(self, now_ms: int) -> None:
        """End a client whose packet drips: slower than any network, or never whole."""
        reads, since_ms = self._incomplete
        if reads != self.reader.reads or self._holds:
            self._incomplete = (self.reader.reads, now_ms)
        elif now_ms - since_ms > whole_within_ms(self.reader.awaited_bytes):
            why = "a packet is not whole in time"
            fault = ProtocolViolation(ReasonCode.QUOTA_EXCEEDED, why)
            self.count_fault(fault)
            self.disconnect(fault.reason_code, fault.reason)

    def taken_over(self) -> None:
        """Another connection has the client's id ([MQTT-3.1.4-3]): that decides on the will."""
        self.by_us = True
        self.disconnect(ReasonCode.SESSION_TAKEN_OVER, "session taken over")

    @guarded(PLACE)
    def sent_away(self, why: str) -> None:
        """An operator does not want this client any more; no will then (§10.3)."""
        self.gracefully = True
        self.note_refused("ClientSentAway", why)
        self._send_away(ReasonCode.BANNED, ReasonCode.ADMINISTRATIVE_ACTION, why)

    @guarded(PLACE)
    def fenced_off(self, why: str) -> None:
        """End because the way stays closed; no will then (§10.3)."""
        self.gracefully = True
        self.note_refused("PERMANENT_DURABILITY", why)
        self.disconnect(ReasonCode.SERVER_BUSY, why)

    @guarded(PLACE)
    def partition_moved(self, why: str) -> None:
        """The partition is led elsewhere: the client finds its session there (C10)."""
        prg, self.epoch = self.prg, 0
        self.join(None)
        if self._handshake is not None and self._handshake.connect is not None:
            self.operations = 0  # what was on its way into that log is not heard of any more
            self._handshake.route_again(why)
            return
        if isinstance(self.wire, RelayExit) and self.phase is ConnectionPhase.LIVE:
            self.flush()
            self.give_back(why)  # the node that the client reached goes on with the next leader
            return
        reference = None
        if prg is not None and self.peer is not None:
            reference = self.node.host.reference(prg.leader_node, self.peer.transport)
        self.disconnect(ReasonCode.SERVER_MOVED, why, reference)

    def give_back(self, why: str) -> None:
        self.node.host.note_end(self.client_id, why)
        wire, self.wire = self.wire, None
        if isinstance(wire, RelayExit):
            wire.give_back()
        elif wire is not None:
            wire.close()
        self.close_session()

    def _send_away(
        self, refused: ReasonCode, ended: ReasonCode, why: str, reference: str | None = None
    ) -> None:
        """Answer a CONNECT that waits with the one reason, or end with the other."""
        if self._handshake is not None and self._handshake.connect is not None:
            self._handshake.refuse(refused, why)
        else:
            self.disconnect(ended, why, reference)

    def close_session(self) -> None:
        if self.phase is ConnectionPhase.CLOSED:
            return
        if self.phase is ConnectionPhase.LIVE:
            left = "Goodbye" if self.gracefully else "BrokenByUs" if self.by_us else "Lost"
            self.note_audit("ClientDisconnected", left)
        self.phase = ConnectionPhase.CLOSED
        self._handshake = None
        self.node.left(self)
        if self._is_large:
            self._note_large()
        if self.tenant is not None:
            self.note_queued(0)
            if self.entered:
                self.tenant.guard.leave(self.node.tick_ms)
        self.end_session()
