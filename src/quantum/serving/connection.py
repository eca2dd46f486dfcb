"""One MQTT client: its packets become commands, and what is decided becomes its packets.

It lives on the node that leads the partition of the client's session, whatever node the client
reached. It decides what the standard lets a server decide without a log; everything that must
survive goes through its partition. Nothing here is awaited: answers come as calls.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from quantum.broker import (
    PUBREC,
    Attach,
    Attached,
    Delivery,
    Detach,
    Subscribed,
    Target,
    encode_command,
)
from quantum.broker import Unsubscribe as UnsubscribeCommand
from quantum.broker.types import NEVER_EXPIRES
from quantum.edge.ports import Peer, Wire
from quantum.mqtt import (
    NO_PROPERTIES,
    Auth,
    Connack,
    Connect,
    Direction,
    Disconnect,
    Packet,
    PacketReader,
    PacketType,
    PeerFault,
    Properties,
    ProtocolVersion,
    ProtocolViolation,
    ReasonCode,
    UnsupportedProtocol,
    connect_return_code,
    decode_packet,
    encode_packet,
)
from quantum.mqtt.hot import PUBCOMP as PUBCOMP_BYTE
from quantum.mqtt.hot import PUBREL as PUBREL_BYTE
from quantum.mqtt.hot import SLOW, Row, encode_ack, scan
from quantum.mqtt.primitives import encode_variable
from quantum.serving.authentication import Accepted, Challenge, Talk, Verdict, Who
from quantum.serving.conversation import Conversation
from quantum.serving.delivery import Outgoing
from quantum.serving.large_packets import LARGE_BYTES
from quantum.serving.outward import Outward, answer_stray_pubrec
from quantum.serving.permit import Permit
from quantum.serving.policy import identity_digest
from quantum.serving.standing import Operation
from quantum.serving.terms import Terms, agree, announce, refuse_will, will_spec
from quantum.tenancy import Rate
from quantum.tenancy import Verdict as TenantVerdict
from quantum.tenancy.credits import WHOLE

if TYPE_CHECKING:
    from quantum.serving.limits import MqttLimits
    from quantum.serving.prg import Completion, Prg
    from quantum.serving.relay import RelayEntry
    from quantum.serving.service import BrokerService
    from quantum.serving.tenant import Tenant

_V5: Final = ProtocolVersion.V5
_UNDER_TLS: Final = frozenset({"tls", "wss"})
_GRACE: Final = 1.5
_NEVER_MS: Final = 1 << 62
_AUTHENTICATION: Final = frozenset(
    {
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
    }
)
"""Refusals that the audit log tells of."""
_ASKS: Final = {
    PacketType.PUBLISH.value: Operation.PUBLISH,
    PacketType.SUBSCRIBE.value: Operation.SUBSCRIBE,
    PacketType.AUTH.value: Operation.AUTHENTICATE,
}
"""What a packet asks for that may be closed."""
_decode_attached = msgspec.msgpack.Decoder(Attached).decode


class Phase(IntEnum):
    """Where a connection is."""

    NEW = 0  # no CONNECT yet
    ROUTING = 1  # CONNECT is here; who serves it is not known yet
    RELAYED = 2  # another node serves it
    AUTHENTICATING = 3  # it proves over AUTH packets who it is
    ATTACHING = 4  # its session is being looked up
    LIVE = 5
    CLOSED = 6


class Connection:
    """A handler for the listeners; see the module."""

    __slots__ = (
        "_arrived",
        "_attachment",
        "_auth_epoch",
        "_closed",
        "_connect",
        "_conversation",
        "_deadline_ms",
        "_early",
        "_ended",
        "_ends_ms",
        "_entered",
        "_expiry_seconds",
        "_gracefully",
        "_holds",
        "_is_large",
        "_is_paused",
        "_keep_alive_ms",
        "_new_expiry_seconds",
        "_out",
        "_peer",
        "_permit",
        "_reader",
        "_relay",
        "_talk",
        "_tenant",
        "_terms",
        "_wire",
        "client_id",
        "epoch",
        "is_v5",
        "last_seen_ms",
        "operations",
        "outward",
        "phase",
        "prg",
        "queued_bytes",
        "service",
        "version",
    )

    def __init__(self, service: BrokerService) -> None:
        self.service = service
        self.phase = Phase.NEW
        limits = service.limits
        self._reader = PacketReader(limits.packet_bytes_max, limits.connect_bytes_max)
        self._wire: Wire | None = None
        self._peer: Peer | None = None
        self._relay: RelayEntry | None = None
        self._tenant: Tenant | None = None
        self.prg: Prg | None = None
        self._connect: Connect | None = None
        self.version = ProtocolVersion.V311
        self.is_v5 = False
        self.client_id: bytes = b""
        self.epoch = 0
        """The epoch of the session in the log; 0 while only this connection knows it."""
        self._attachment = 0
        self._terms: Terms | None = None
        self._talk: Talk | None = None
        self._expiry_seconds = 0
        self._new_expiry_seconds: int | None = None  # what DISCONNECT made of it
        self._keep_alive_ms = 0
        self.last_seen_ms = 0
        self._deadline_ms = _NEVER_MS
        self._ends_ms = _NEVER_MS
        self._auth_epoch: int | None = None  # of the token it came by (quantumqtt §10.4)
        """When the client's authentication ends, in Unix milliseconds."""
        self._early = b""  # the CONNECT packet, for the node that will serve it
        self._out: list[bytes] = []
        self._conversation: Conversation | None = None
        self.outward: Outward | None = None
        self.operations = 0  # commands about this session that are on their way
        self._arrived = False  # another node sent this connection here
        self._ended = False
        self._gracefully = False  # its will is not wanted
        self._closed = ""  # why it is not let in yet
        self._permit: Permit | None = None
        self._entered = False  # it is counted among its tenant's connections
        self._is_large = False  # a large packet is on its way, or waits for that
        self._holds = 0  # for how many reasons it is not read
        self._is_paused = False
        self.queued_bytes = 0
        """What waits here for a client that does not keep up."""

    # What the listener calls.

    def opened(self, wire: Wire, peer: Peer) -> None:
        self._wire, self._peer = wire, peer
        self.last_seen_ms = self.service.tick_ms
        self._deadline_ms = self.last_seen_ms + self.limits.connect_wait_ms
        self.service.joined(self)

    def received(self, data: bytes) -> None:
        self.last_seen_ms = self.service.tick_ms
        if self.phase is Phase.LIVE:
            self._reader.receive(data)
            self._pull()
            if self._is_large or self._reader.awaited_bytes > LARGE_BYTES:
                self._note_large()
        elif self._relay is not None:
            self._relay.received(data)
        elif self.phase is Phase.NEW:
            self._receive_first(data)
        elif self.phase is Phase.AUTHENTICATING:
            self._reader.receive(data)
            self._pull_authentication()
        elif self.phase is not Phase.CLOSED:
            self._hold(data)

    def _note_large(self) -> None:
        """Be counted while a large packet comes; there may be no room for it now."""
        size, large = self._reader.awaited_bytes, self.service.large
        if self.phase is Phase.LIVE and size > LARGE_BYTES:
            self._is_large = True
            large.begin(self, size, self.service.tick_ms)
        elif self._is_large:
            self._is_large = False
            large.end(self, self.service.tick_ms)

    def _hold(self, data: bytes) -> None:
        """Keep what a client sends before its CONNACK, and leave the rest of it unread."""
        self._reader.receive(data)
        if self._reader.buffered_bytes > LARGE_BYTES and not self._holds:
            self.hold()

    def hold(self) -> None:
        """Stop reading; each call needs its `let_go`."""
        self._holds += 1
        if not self._is_paused and self._wire is not None:
            self._is_paused = True
            self._wire.pause_reading()

    def let_go(self) -> None:
        """Read again, once nothing else holds it."""
        self._holds -= 1
        if self._holds or self.phase is not Phase.LIVE:
            return
        self.last_seen_ms = self.service.tick_ms  # its silence was ours
        if self._reader.buffered_bytes:
            self._pull()
        if not self._holds and self._wire is not None:
            self._is_paused = False
            self._wire.resume_reading()

    def note_queued(self, queued_bytes: int) -> None:
        """Say how much waits here for the client."""
        if queued_bytes != self.queued_bytes:
            self.home.queued.add(queued_bytes - self.queued_bytes)
            self.queued_bytes = queued_bytes

    def writable_again(self) -> None:
        if self._relay is not None:
            self._relay.report()
        elif self.phase is Phase.LIVE and self.outward is not None:
            self.outward.send_more()

    def expelled(self, why: str) -> None:
        """End a client whose certificate is believed no more; its will is not said (§10.3)."""
        self._gracefully = True
        if self._relay is not None:
            self._relay.expelled(why)
        elif self._connect is not None:
            self._refuse(ReasonCode.NOT_AUTHORIZED, why)
        else:
            self.disconnect(ReasonCode.NOT_AUTHORIZED, why)

    def lost(self) -> None:
        if self._relay is not None:
            self._relay.lost()
            self._relay = None
        self._wire = None
        self._close_session()

    # The first packet.

    def _receive_first(self, data: bytes) -> None:
        """Take bytes of what must be a CONNECT; its first byte alone may tell that it is none."""
        is_begin = not self._reader.buffered_bytes
        self._reader.receive(data)
        try:
            if is_begin and data[0] >> 4 != PacketType.CONNECT:
                why = "the first packet is no CONNECT"  # [MQTT-3.1.0-1]
                raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, why)
            taken = self._reader.next_packet()
            if taken is None:
                return
            first_byte, body = taken
            packet = decode_packet(
                first_byte, body, ProtocolVersion.V311, direction=Direction.TO_SERVER
            )
        except PeerFault as fault:
            self._on_bad_connect(fault)
            return
        assert isinstance(packet, Connect)
        self._early = bytes((first_byte,)) + encode_variable(len(body)) + body
        self._on_connect(packet)

    def _on_bad_connect(self, fault: PeerFault) -> None:
        """Say why where the client can hear it ([MQTT-3.1.4-1], 4.13.1)."""
        self.service.count_fault(fault)
        if isinstance(fault, UnsupportedProtocol):
            if fault.protocol_name in (b"MQTT", b"MQIsdp"):
                self._use(_V5 if fault.level > ProtocolVersion.V311 else ProtocolVersion.V311)
                self._write_now(Connack(reason_code=fault.reason_code))
        elif fault.version is _V5 and fault.answerable:
            self._use(_V5)
            self._write_now(Connack(reason_code=fault.reason_code))
        self._drop(fault.reason)

    def _use(self, version: ProtocolVersion) -> None:
        self.version, self.is_v5 = version, version is _V5

    def _on_connect(self, connect: Connect) -> None:
        self._connect = connect
        self._use(connect.version)
        self._accept_terms(agree(connect, self.limits))
        assert self._peer is not None
        tenant = self.service.tenants.get(self._peer.tenant)
        if tenant is None:
            self._refuse(ReasonCode.NOT_AUTHORIZED, "no such tenant")
            return
        self._tenant = tenant
        if tenant.shut:
            self._refuse(ReasonCode.BANNED, tenant.shut)
        elif self._check_connect(connect) and self._check_rules(connect):
            self.phase = Phase.ROUTING
            self._route()

    def _check_connect(self, connect: Connect) -> bool:
        if connect.client_id:
            self.client_id = connect.client_id.encode()
        elif connect.version is ProtocolVersion.V31 or (
            connect.version is ProtocolVersion.V311 and not connect.clean_start
        ):
            self._refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "no client id")
            return False
        elif not self.client_id:
            self.client_id = self.service.draw_client_id()
        reason = refuse_will(connect.will) if connect.will is not None else None
        if reason is not None:
            self._refuse(reason, "the will is not accepted")
            return False
        return self._check_method(connect.properties.authentication_method)

    def _check_rules(self, connect: Connect) -> bool:
        if not self.home.guard.may_connect(self.identity, self.client_id):
            self.home.guard.note("CONNECT_REFUSED", self.client_id, self.identity)
            self._refuse(ReasonCode.NOT_AUTHORIZED, "the rules of the tenant let it not connect")
            return False
        self._permit = Permit(self, self.home)
        will = connect.will
        is_nobody_yet = self._talk is not None and self.phase is Phase.NEW
        if will is None or is_nobody_yet or self._permit.may_publish(will.topic):
            return True
        self.home.guard.note("WILL_REFUSED", self.client_id, self.identity, will.topic)
        self._refuse(ReasonCode.NOT_AUTHORIZED, "the will's topic is not allowed")
        return False

    @property
    def permit(self) -> Permit:
        """What the client may do."""
        assert self._permit is not None
        return self._permit

    def policy_changed(self) -> None:
        """Go on under other rules of the tenant; what they forbid ends."""
        if not self.home.guard.may_connect(self.identity, self.client_id):
            self.sent_away("the rules of the tenant let it not connect any more")
            return
        self._permit = Permit(self, self.home)
        self._end_forbidden()

    def ring_grew(self, fresh: list[Prg]) -> None:
        """Topics may have other owners from now on, these partitions too."""
        if self._permit is not None:
            self._permit.owners.clear()
        if self._conversation is not None:
            self._conversation.inbound.ring_grew(fresh)

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

    @property
    def identity(self) -> str | None:
        """Whom the client's certificate names."""
        return None if self._peer is None else self._peer.identity

    def _check_method(self, method: str | None) -> bool:
        if method is None:
            return self._check_named()
        authenticator = self.service.authenticators.get(method)
        if authenticator is None:
            self._refuse(ReasonCode.BAD_AUTHENTICATION_METHOD, "unknown authentication method")
            return False
        who = Who(self.home.name, self.client_id.decode(errors="replace"))
        self._talk = Talk(method, authenticator, who)
        return True

    def _check_named(self) -> bool:
        """Refuse who shows neither a certificate nor a token where one is wanted (§9.1)."""
        peer = self._peer
        if peer is None or peer.identity is not None or peer.transport not in _UNDER_TLS:
            return True
        self._refuse(ReasonCode.NOT_AUTHORIZED, "neither a certificate nor a token")
        return False

    def _identify(self, verdict: Accepted) -> bool:
        """Go on as whom a method of authentication says the client is."""
        self._ends_ms = _NEVER_MS if verdict.ends_ms is None else verdict.ends_ms
        self._auth_epoch = verdict.auth_epoch
        if self.phase is Phase.LIVE:
            if verdict.identity in (None, self.identity):
                return True
            self.note_refused("IdentityChanged", "it authenticated again as somebody else")
            self.expelled("it authenticated again as somebody else")
            return False
        connect = self._connect
        assert connect is not None and self._peer is not None
        if verdict.identity is not None:
            self._peer = replace(self._peer, identity=verdict.identity)
        return self._check_rules(connect)

    def _accept_terms(self, terms: Terms) -> None:
        self._terms = terms
        self._expiry_seconds = terms.expiry_seconds
        self._keep_alive_ms = int(terms.keep_alive_seconds * 1000 * _GRACE)

    def _route(self) -> None:
        """Go to where the session runs, or wait until somebody runs it."""
        if self.phase is not Phase.ROUTING or self._wire is None:
            return
        prg = self.home.session_prg(self.client_id)
        node = prg.leader_node
        if prg.serves(self.client_id):
            self._closed = self._is_closed(prg)
            if self._closed:
                self.home.when_led(prg.number, self._route)
                return
            self.prg = prg
            self._authenticate(prg)
        elif node is not None and self.service.reaches(node) and not self._arrived:
            self._relay_to(prg, node)
        else:
            self.home.when_led(prg.number, self._route)

    def _is_closed(self, prg: Prg) -> str:
        """Say why the partition may let nobody in like this client now (quantumqtt §10.6)."""
        if not prg.closed:
            return ""
        connect = self._connect
        assert connect is not None
        operations = [Operation.START]
        if self.client_id in prg.broker.state.sessions and not connect.clean_start:
            operations.append(Operation.RESUME)
        if connect.will is not None or self.home.guard.connects is not None:
            operations.append(Operation.START_WITH_RULES)
        if self._talk is not None:
            operations.append(Operation.AUTHENTICATE)
        return next((prg.closed[each] for each in operations if each in prg.closed), "")

    def arrived(self, client_id: bytes) -> None:
        """Note that another node sent this connection here, with the id that it assigned."""
        self._arrived = True
        self.client_id = client_id

    def _relay_to(self, prg: Prg, node: int) -> None:
        assert self._wire is not None and self._peer is not None and self._connect is not None
        self.phase = Phase.RELAYED
        data = self._early + self._reader.take_all()
        assigned = b"" if self._connect.client_id else self.client_id
        self._early, self._connect, self._deadline_ms = b"", None, _NEVER_MS
        self._permit = None
        if self._holds:
            self._holds, self._is_paused = 0, False
            self._wire.resume_reading()
        self._relay = self.service.open_relay(self._wire, self._peer, prg, node, assigned, data)

    # Who the client is. The node that serves it asks, before anything of its session is touched.

    def _authenticate(self, prg: Prg) -> None:
        connect = self._connect
        assert connect is not None
        if self._talk is None:
            self._attach(prg)
            return
        self.phase = Phase.AUTHENTICATING
        self._on_verdict(self._talk, self._talk.begin(connect))

    def _pull_authentication(self) -> None:
        """Take AUTH packets, and nothing else before CONNACK ([MQTT-3.1.2-30])."""
        talk = self._talk
        assert talk is not None
        try:
            while self.phase is Phase.AUTHENTICATING:
                taken = self._reader.next_packet()
                if taken is None:
                    return
                packet = decode_packet(*taken, self.version, direction=Direction.TO_SERVER)
                if not isinstance(packet, Auth):
                    why = "only AUTH may come before CONNACK"
                    raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, why)
                self._on_verdict(talk, talk.on_auth(packet))
        except PeerFault as fault:
            self.service.count_fault(fault)
            self._refuse(fault.reason_code, fault.reason)

    def _on_verdict(self, talk: Talk, verdict: Verdict) -> None:
        """Do what an authentication method says."""
        is_live = self.phase is Phase.LIVE
        if isinstance(verdict, Challenge):
            self._write_now(talk.challenge(verdict.data))
        elif isinstance(verdict, Accepted):
            if not self._identify(verdict):
                return
            if is_live:
                self.send(talk.success())
            elif self.prg is not None and self.prg.serves(self.client_id):
                self._attach(self.prg)
            else:
                self._refuse(ReasonCode.SERVER_UNAVAILABLE, "the session's partition moved")
        else:
            if verdict.audit:
                self.note_refused(verdict.audit, verdict.why)
            if is_live:
                self._gracefully = True  # no will after that (§10.4)
                is_shut = verdict.reason is ReasonCode.SERVER_UNAVAILABLE
                reason = ReasonCode.SERVER_BUSY if is_shut else verdict.reason  # C11
                self.disconnect(reason, verdict.why)  # [MQTT-4.12.1-2]
            else:
                self._refuse(verdict.reason, verdict.why)

    # The session.

    def _attach(self, prg: Prg) -> None:
        connect = self._connect
        assert connect is not None
        self._early = b""
        if self.home.shut:
            self._refuse(ReasonCode.BANNED, self.home.shut)
            return
        self.phase = Phase.ATTACHING
        older = prg.connections.get(self.client_id)
        if older is not None and older.identity not in (None, self.identity):
            self._refuse_binding()
            return
        if older is not None:
            older.taken_over()
        if not self._enter():
            return
        prg.connections[self.client_id] = self
        known = self.client_id in prg.broker.state.sessions or self.client_id in prg.busy_clients
        if not known and self._expiry_seconds == 0 and connect.will is None:
            self._begin(present=False)
            return
        command = Attach(
            prg.now_ms(),
            self.client_id,
            connect.clean_start,
            self._expiry_seconds,
            self.window,
            will_spec(connect.will, self.client_id),
            identity_digest(self.identity),
        )
        self.command(encode_command(command), self._attached)

    def _enter(self) -> bool:
        """Be counted among the tenant's connections, or be refused."""
        guard, now_ms = self.home.guard, self.service.tick_ms
        pace = guard.ask(Rate.CONNECTS, 1, now_ms)
        if pace.verdict in (TenantVerdict.REJECT, TenantVerdict.DISCONNECT):
            self.note_refused("QuotaExceeded", "the rate of connections")
            self._refuse(ReasonCode.CONNECTION_RATE_EXCEEDED, "too many connections in a while")
            return False
        self._entered = guard.enter(now_ms)
        if not self._entered:
            guard.note("CONNECTION_OVER_QUOTA", self.client_id, self.identity)
            self.note_refused("QuotaExceeded", "the number of connections")
            self._refuse(ReasonCode.QUOTA_EXCEEDED, "the tenant has too many connections")
        return self._entered

    def _refuse_binding(self) -> None:
        """The client id is another identity's (quantumqtt §10.1.1)."""
        self.home.guard.note("IDENTITY_MISMATCH", self.client_id, self.identity)
        self._refuse(ReasonCode.NOT_AUTHORIZED, "the client id belongs to another identity")

    def _attached(self, reply: bytes | None) -> None:
        if reply is None:
            self._refuse(ReasonCode.SERVER_UNAVAILABLE, "the session's partition has no leader")
            return
        attached = _decode_attached(reply)
        if attached.is_moved:
            if self.phase is Phase.ATTACHING:
                self._refuse(ReasonCode.SERVER_UNAVAILABLE, "the session moved")
            return
        if attached.refused:
            if self.phase is Phase.ATTACHING:
                self.home.guard.note("SESSION_OVER_QUOTA", self.client_id, self.identity)
                self._refuse(ReasonCode.QUOTA_EXCEEDED, "the tenant has too many sessions")
            return
        if attached.is_bound:
            if self.phase is Phase.ATTACHING:
                self._refuse_binding()
            return
        self.epoch, self._attachment = attached.epoch, attached.attachment
        if self.phase is Phase.ATTACHING:
            self._begin(present=attached.present)

    def _begin(self, *, present: bool) -> None:
        """Say that the session is there, and go on with what the client already sent."""
        connect = self._connect
        assert connect is not None
        self._connect = None
        self.phase = Phase.LIVE
        self._deadline_ms = _NEVER_MS
        self.send(Connack(present, ReasonCode.SUCCESS, self._announce(connect)))
        self._end_forbidden()
        if self._holds:
            self.let_go()
        elif self._reader.buffered_bytes:
            self._pull()

    def _announce(self, connect: Connect) -> Properties:
        if not self.is_v5:
            return NO_PROPERTIES
        announced = announce(connect, self._agreed, self.limits, self.client_id)
        if self._talk is not None:
            announced.authentication_method = self._talk.method
            announced.authentication_data = self._talk.last_word
        return announced

    @property
    def _agreed(self) -> Terms:
        assert self._terms is not None
        return self._terms

    @property
    def window(self) -> int:
        """How many messages the machine may have in flight; `Outward` decides how many leave."""
        return min(self._agreed.receive_maximum, self.limits.in_flight_max)

    @property
    def limits(self) -> MqttLimits:
        return self.service.limits

    @property
    def home(self) -> Tenant:
        """The client's tenant."""
        assert self._tenant is not None
        return self._tenant

    @property
    def is_live(self) -> bool:
        return self.phase is Phase.LIVE

    @property
    def outlives(self) -> bool:
        """Whether the session is in the log and outlives this connection."""
        return self._expiry_seconds > 0 and self.epoch > 0

    def now_ms(self) -> int:
        return self.service.now_ms()

    def count_dropped(self) -> None:
        self.service.dropped += 1
        self.home.dropped += 1

    def command(self, command: bytes, completion: Completion) -> None:
        """Log something about this session; the partition knows that it is not settled."""
        prg = self.prg
        assert prg is not None
        self.operations += 1
        settled = prg.unsettle(self.client_id)

        def completed(reply: bytes | None) -> None:
            self.operations -= 1
            settled()
            completion(reply)
            if self._ended and self.operations == 0:
                self._detach()

        prg.propose(command, completed)

    def taken_over(self) -> None:
        """Another connection has the client's id ([MQTT-3.1.4-3]); no will then (§10.3)."""
        self._gracefully = True
        self.disconnect(ReasonCode.SESSION_TAKEN_OVER, "session taken over")

    def sent_away(self, why: str) -> None:
        """An operator does not want this client any more; no will then (§10.3)."""
        self._gracefully = True
        self.note_refused("ClientSentAway", why)
        if self._connect is not None:
            self._refuse(ReasonCode.BANNED, why)
        else:
            self.disconnect(ReasonCode.ADMINISTRATIVE_ACTION, why)

    def partition_moved(self, why: str) -> None:
        """The partition is led elsewhere: the client finds its session there (C10)."""
        prg, self.epoch, self.prg = self.prg, 0, None
        if self._connect is not None:
            self._refuse(ReasonCode.SERVER_UNAVAILABLE, why)
            return
        reference = None
        if prg is not None and self._peer is not None:
            reference = self.service.reference(prg.leader_node, self._peer.transport)
        self.disconnect(ReasonCode.SERVER_MOVED, why, reference)

    def session_ended(self, epoch: int, reason: str) -> None:
        """The session of this connection is no more."""
        if self.epoch == epoch and self.phase is Phase.LIVE:
            self.disconnect(ReasonCode.ADMINISTRATIVE_ACTION, reason)

    # Ends.

    def end_soon(self, reason: ReasonCode, why: str) -> None:
        """Disconnect when the call that noticed it is over."""
        self.service.soon(lambda: self.disconnect(reason, why))

    def disconnect(self, reason: ReasonCode, why: str, reference: str | None = None) -> None:
        """Say why, where the protocol has words for it, and close."""
        if self.phase is Phase.CLOSED:
            return
        self.service.meters.disconnects[reason] += 1
        if self.is_v5 and self.phase is Phase.LIVE:
            said = Properties(server_reference=reference)
            said.reason_string = why if self._agreed.wants_reasons else None
            self.send(Disconnect(reason, said))
        self.flush()
        self._drop(why)

    def _drop(self, why: str) -> None:
        """Close without a word."""
        self.service.note_end(self.client_id, why)
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        self._close_session()

    def _refuse(self, reason: ReasonCode, why: str) -> None:
        """Answer CONNECT with a refusal ([MQTT-3.2.2-7])."""
        self.service.meters.refuse("CONNECT", reason)
        if reason in _AUTHENTICATION:
            self.note_refused("ConnectRefused", why)
        if self.is_v5 or connect_return_code(reason) is not None:
            text = Properties(reason_string=why) if self.is_v5 else NO_PROPERTIES
            self._write_now(Connack(reason_code=reason, properties=text))
        self._drop(why)

    def note_refused(self, what: str, why: str, about: bytes = b"") -> None:
        """Tell the audit log what this client may not."""
        client = self.client_id.decode(errors="replace")
        who = f"{self.identity or '-'} {client}"
        tenant = self._tenant.name if self._tenant is not None else ""
        target = about.decode(errors="replace")
        self.service.note_refused(what, who=who, why=why, target=target, tenant=tenant)

    def _close_session(self) -> None:
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        self.service.left(self)
        if self._is_large:
            self._note_large()
        if self._tenant is not None:
            self.note_queued(0)
            if self._entered:
                self._tenant.guard.leave(self.service.tick_ms)
        prg = self.prg
        if prg is not None and prg.connections.get(self.client_id) is self:
            del prg.connections[self.client_id]
        self._ended = True
        if self.operations == 0:
            self._detach()

    def _detach(self) -> None:
        """Let the log know that the connection is gone, if it knows the session."""
        prg, epoch = self.prg, self.epoch
        self.epoch = 0
        if prg is None or not epoch or not prg.leading:
            return
        command = Detach(
            prg.now_ms(),
            self.client_id,
            epoch,
            self._gracefully,
            self._new_expiry_seconds,
            self._attachment,
            self.outward.unsent_from() if self.outward is not None else 0,
        )
        settled = prg.unsettle(self.client_id)
        prg.propose(encode_command(command), lambda _reply: settled())

    @property
    def unanswered(self) -> int:
        """How many of its publishes have no answer yet."""
        return 0 if self._conversation is None else self._conversation.inbound.unanswered

    @property
    def is_held(self) -> bool:
        """Whether it is left unread, for whatever reason."""
        return self._holds > 0

    def check_time(self, now_ms: int) -> None:
        """Close what was silent too long, or waits too long for a leader."""
        if now_ms >= self._deadline_ms:
            self._deadline_ms = _NEVER_MS
            if self._connect is not None:
                self._refuse(ReasonCode.SERVER_UNAVAILABLE, self._closed or "no leader in time")
            else:
                self._drop("no CONNECT in time")
        elif self._ends_ms != _NEVER_MS and self.now_ms() >= self._ends_ms:
            self.expelled("its token has ended")
        elif self._auth_epoch is not None and self._auth_epoch < self.home.auth_epoch:
            self.note_refused("TOKEN_EPOCH_OLD", "the tenant asks for newer tokens")
            self.expelled("the tenant asks for newer tokens")
        elif (
            0 < self._keep_alive_ms < now_ms - self.last_seen_ms
            and self._relay is None
            and not self._holds
        ):
            self.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT, "keep alive timeout")

    # Packets.

    def _pull(self) -> None:
        """Take every whole packet that is here."""
        reader = self._reader
        try:
            while self.phase is Phase.LIVE and not self._holds:
                window = reader.window()
                if window is None or self.permit.must_wait():
                    return
                buffer, start = window
                rows, end = scan(buffer, start, reader.packet_bytes_max, self.is_v5)
                if self.prg is not None and self.prg.closed:
                    rows, end = self._open_rows(self.prg, buffer, rows, end)
                reader.consume(end)
                if self.permit.gate is None:
                    self._talk_on().on_rows(buffer, rows)
                else:
                    self.permit.on_rows(self._talk_on(), buffer, rows)
                if self.home.share is not None:
                    self.home.share.bring(end - start)
        except PeerFault as fault:
            self.service.count_fault(fault)
            self.home.count_fault(fault)
            self.disconnect(fault.reason_code, fault.reason)

    def _open_rows(
        self, prg: Prg, buffer: bytes, rows: list[Row], end: int
    ) -> tuple[list[Row], int]:
        """Cut off what is closed now, with all behind it: it waits unread until it is open."""
        for number, row in enumerate(rows):
            first_byte = buffer[row[2]] if row[0] == SLOW else row[0]
            operation = _ASKS.get(first_byte >> 4)
            if operation is not None and operation in prg.closed:
                self.home.fence(self, operation)
                return rows[:number], row[2]
        return rows, end

    def fenced_off(self, why: str) -> None:
        """End because the way stays closed; no will then (§10.3)."""
        self._gracefully = True
        self.note_refused("PERMANENT_DURABILITY", why)
        self.disconnect(ReasonCode.SERVER_BUSY, why)

    def on_auth(self, packet: Auth) -> None:
        if self._talk is None:  # [MQTT-4.12.0-6]
            why = "AUTH without an authentication method"
            raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, why)
        self._on_verdict(self._talk, self._talk.on_auth(packet))

    def on_disconnect(self, packet: Disconnect) -> None:
        expiry = packet.properties.session_expiry_interval
        if expiry is not None:
            if expiry and not self._expiry_seconds:
                raise ProtocolViolation(
                    ReasonCode.PROTOCOL_ERROR, "the session expiry interval was zero"
                )
            if expiry != NEVER_EXPIRES:
                expiry = min(expiry, self.limits.session_expiry_seconds_max)
            self._new_expiry_seconds = expiry
        self._gracefully = packet.reason_code is ReasonCode.SUCCESS  # [MQTT-3.14.4-3]
        self._drop("disconnected by the client")

    # Publishes and their answers.

    def release_answers(self) -> None:
        """Let the answers to publishes leave whose turn it is."""
        if self._conversation is not None and self.phase is Phase.LIVE:
            self._conversation.inbound.release_answers()

    def answer_pubrec(self, packet_id: int, reason: int) -> None:
        """A QoS 2 publish of a session in the log is where it belongs, or was refused."""
        if self.phase is Phase.LIVE:
            self._talk_on().inbound.on_pubrec(packet_id, reason)

    def _talk_on(self) -> Conversation:
        if self._conversation is None:
            self._conversation = Conversation(self)
        return self._conversation

    def send_pubcomp(self, packet_id: int) -> None:
        if self.phase is Phase.LIVE:
            self.stage(encode_ack(PUBCOMP_BYTE, packet_id))

    def learn_session(self, found: Subscribed) -> None:
        """A first subscription made a session of what only this connection knew."""
        if not self.epoch and found.epoch:
            self.epoch, self._attachment = found.epoch, found.attachment

    def kept_utilization(self) -> int:
        """How full the queue is that the machine keeps for this client, in thousandths."""
        if self.prg is None:
            return 0
        state = self.prg.broker.state
        session = state.sessions.get(self.client_id)
        if session is None:
            return 0
        return WHOLE * len(session.outbound) // state.settings.queue_messages_max

    def acknowledge(self, kind: int, packet_id: int) -> None:
        """Log what the client said of a message that the machine keeps."""
        if self.prg is not None and self.epoch:
            self.prg.acknowledge(self.client_id, kind, packet_id)
        elif kind == PUBREC:
            answer_stray_pubrec(self, packet_id)

    # Towards the client.

    def deliver_to(self, target: Target, outgoing: Outgoing) -> None:
        """Deliver a message that a subscription of this client wants."""
        message = outgoing.message
        if target.no_local and message.client_id == self.client_id:
            rest = target.for_publisher()
            if rest is None:
                return
            target = rest
        qos = message.qos if message.qos < target.qos else target.qos
        retain = 1 if message.retain and target.retain_as_published else 0
        self.deliver(outgoing, qos, retain, target.identifiers)

    def deliver(
        self, outgoing: Outgoing, qos: int, retain: int, identifiers: tuple[int, ...]
    ) -> None:
        """Deliver a message that only this connection keeps."""
        if self.phase is Phase.LIVE:
            self._sender().deliver(outgoing, qos, retain, identifiers)

    def send_kept(self, delivery: Delivery, *, again: bool) -> None:
        """Send a message that the machine keeps for this client."""
        if self.phase is Phase.LIVE:
            self._sender().send_kept(delivery, again=again)

    def _sender(self) -> Outward:
        if self.outward is None:
            self.outward = Outward(self, self._agreed)
        return self.outward

    def send_pubrel(self, packet_id: int) -> None:
        if self.phase is Phase.LIVE:
            self.stage(encode_ack(PUBREL_BYTE, packet_id))

    @property
    def writable(self) -> bool:
        """Whether the client reads what is sent to it."""
        return self._wire is not None and self._wire.writable

    def send_live(self, packet: Packet) -> None:
        if self.phase is Phase.LIVE:
            self.send(packet)

    def send(self, packet: Packet) -> None:
        """Send a packet, shorter if the client asks for that, or end ([MQTT-3.1.2-24])."""
        data = encode_packet(packet, self.version)
        limit = self._terms.packet_bytes_max if self._terms is not None else 0
        if limit and len(data) > limit:
            if isinstance(packet, Disconnect | Connack) and packet.reason_code.is_failure:
                data = encode_packet(type(packet)(reason_code=packet.reason_code), self.version)
            if len(data) > limit:
                self.service.soon(lambda: self._drop("an answer is larger than the client takes"))
                return
        self.stage(data)

    def _write_now(self, packet: Packet) -> None:
        self.send(packet)
        self.flush()

    def stage(self, data: bytes) -> None:
        """Let bytes leave at the end of this turn."""
        self.pieces().append(data)

    def pieces(self) -> list[bytes]:
        """Return the list of what leaves at the end of this turn, to append to."""
        if not self._out:
            self.service.dirty(self)
        return self._out

    def flush(self) -> None:
        """Write all that this turn brought, at once."""
        if self._out:
            out, self._out = self._out, []
            if self._wire is not None:
                self._wire.write(b"".join(out))
