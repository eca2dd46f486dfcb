"""From a client's first byte to its CONNACK: is it a CONNECT, may it, where, who, which session.

An handshake lives until the connection is live, relayed or closed; a live connection has none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from quantum.broker import Attached
from quantum.partition.gate import ClientOperation
from quantum.partition.leader import PartitionLeader
from quantum.protocols.mqtt.codec import (
    NO_PROPERTIES,
    Auth,
    Connack,
    Connect,
    Direction,
    PacketType,
    PeerFault,
    Properties,
    ProtocolVersion,
    ProtocolViolation,
    ReasonCode,
    UnsupportedProtocol,
    Will,
    connect_return_code,
    decode_packet,
)
from quantum.protocols.mqtt.codec.primitives import encode_variable
from quantum.protocols.mqtt.session.authentication import (
    AuthenticationAccepted,
    Challenge,
    Talk,
    Verdict,
    Who,
)
from quantum.protocols.mqtt.session.large_packets import LARGE_BYTES
from quantum.protocols.mqtt.session.partition_sessions import PartitionSessions
from quantum.protocols.mqtt.session.phase import ConnectionPhase
from quantum.protocols.mqtt.session.relay_memory import RelayMemory
from quantum.protocols.mqtt.session.session_client import SessionClient
from quantum.protocols.mqtt.session.session_start import SessionStart
from quantum.protocols.mqtt.session.tenant_sessions import TenantClient
from quantum.protocols.mqtt.session.terms import (
    agree,
    is_bridge_state,
    refuse_will,
)
from quantum.protocols.mqtt.session.traces import ConnectTrace
from quantum.tenants.binding import UNDER_TLS
from quantum.tenants.passwords import IDENTITY_PREFIX

_V5: Final = ProtocolVersion.V5
_AUTHENTICATION: Final = frozenset(
    {
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
    }
)
"""Refusals that the audit log tells of."""
_decode_attached = msgspec.msgpack.Decoder(Attached).decode


class ConnectHandshake:
    """The way in of one connection."""

    __slots__ = ("_arrived", "_closed", "_connection", "_early", "connect", "deadline_ms", "trace")

    def __init__(self, connection: SessionClient) -> None:
        self._connection = connection
        self.connect: Connect | None = None
        """The CONNECT that is to be answered, as soon as it is here."""
        self.deadline_ms = 0
        self._early = b""  # the CONNECT packet, for the node that will serve it
        self._arrived = False  # another node sent this connection here
        self._closed = ""  # why it is not let in yet
        self.trace: ConnectTrace | None = None
        """Not None while a CONNECT is to be answered whose client wants a trace of it."""

    def received(self, data: bytes) -> None:
        """Take what the client sends before its CONNACK."""
        connection = self._connection
        if connection.phase is ConnectionPhase.NEW:
            self._receive_first(data)
            return
        connection.reader.receive(data)
        if connection.phase is ConnectionPhase.AUTHENTICATING:
            self._pull_authentication()
        elif connection.reader.buffered_bytes > LARGE_BYTES and not connection.is_held:
            connection.hold()  # the rest of it is left unread

    def arrived(self, client_id: bytes) -> None:
        """Note that another node sent this connection here, with the id that it assigned."""
        self._arrived = True
        self._connection.client_id = client_id

    def check_time(self, now_ms: int) -> bool:
        """Close what waits too long for its CONNECT, or for a leader; say whether that was so."""
        if now_ms < self.deadline_ms:
            return False
        if self.connect is not None and self._closed:
            self.refuse(ReasonCode.SERVER_UNAVAILABLE, self._closed)
        elif self.connect is not None:
            # Without a word: many clients give up for good on a refusal, and come again after none.
            self._connection.drop("no leader in time")
        else:
            fault = ProtocolViolation(ReasonCode.PROTOCOL_ERROR, "no CONNECT in time")
            self._connection.count_fault(fault)
            self._connection.drop(fault.reason)
        return True

    def refuse(self, reason: ReasonCode, why: str) -> None:
        """Answer CONNECT with a refusal ([MQTT-3.2.2-7])."""
        connection = self._connection
        connection.node.meters.refuse("CONNECT", reason)
        if self.trace is not None:
            tenant = "" if connection.tenant is None else connection.tenant.name
            self.trace.finish(tenant, f"0x{reason:02x}")
            self.trace = None
        if reason in _AUTHENTICATION:
            connection.note_refused("ConnectRefused", why)
        if connection.is_v5 or connect_return_code(reason) is not None:
            text = Properties(reason_string=why) if connection.is_v5 else NO_PROPERTIES
            connection.write_now(Connack(reason_code=reason, properties=text))
        connection.drop(why)

    # The first packet.

    def _receive_first(self, data: bytes) -> None:
        """Take bytes of what must be a CONNECT; its first byte alone may tell that it is none."""
        reader = self._connection.reader
        is_begin = not reader.buffered_bytes
        reader.receive(data)
        try:
            if is_begin and data[0] >> 4 != PacketType.CONNECT:
                why = "the first packet is no CONNECT"  # [MQTT-3.1.0-1]
                raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, why)
            taken = reader.next_packet()
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
        connection = self._connection
        connection.count_fault(fault)
        if isinstance(fault, UnsupportedProtocol):
            if fault.protocol_name in (b"MQTT", b"MQIsdp"):
                connection.speak(
                    _V5 if fault.level > ProtocolVersion.V311 else ProtocolVersion.V311
                )
                connection.write_now(Connack(reason_code=fault.reason_code))
        elif fault.version is _V5 and fault.answerable:
            connection.speak(_V5)
            connection.write_now(Connack(reason_code=fault.reason_code))
        connection.drop(fault.reason)

    def _on_connect(self, connect: Connect) -> None:
        connection = self._connection
        if connect.will is not None and is_bridge_state(connect.will.topic):
            connect = replace(connect, will=None)
        self.connect = connect
        if connection.node.traces is not None:
            self.trace = connection.node.traces.begin_connect(connect)
        connection.speak(connect.version)
        connection.accept_terms(agree(connect, connection.limits))
        assert connection.peer is not None
        tenant = connection.node.tenants.get(connection.peer.tenant)
        if tenant is None:
            self.refuse(ReasonCode.NOT_AUTHORIZED, "no such tenant")
            return
        connection.tenant = tenant
        if tenant.tenant.shut:
            self.refuse(ReasonCode.BANNED, tenant.tenant.shut)
        elif self._check_connect(connect):
            if self._has_password(connect):
                self._ask_password(connect)
            elif self._check_rules(connect):
                connection.phase = ConnectionPhase.ROUTING
                self._route()

    def _check_connect(self, connect: Connect) -> bool:
        connection = self._connection
        if connect.client_id:
            connection.client_id = connect.client_id.encode()
        elif connect.version is ProtocolVersion.V31 or (
            connect.version is ProtocolVersion.V311 and not connect.clean_start
        ):
            self.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "no client id")
            return False
        elif not connection.client_id:
            connection.client_id = connection.node.draw_client_id()
        reason = self._refuse_will(connect.will) if connect.will is not None else None
        if reason is not None:
            self.refuse(reason, "the will is not accepted")
            return False
        return self._check_method(connect.properties.authentication_method)

    def _refuse_will(self, will: Will) -> ReasonCode | None:
        return refuse_will(will, self._connection.limits.topic_levels_max)

    def _check_rules(self, connect: Connect) -> bool:
        connection = self._connection
        guard = connection.home.guard
        is_nobody_yet = connection.talk is not None and connection.phase is ConnectionPhase.NEW
        why = connection.disbelief(awaits_token=is_nobody_yet)
        if why is not None:
            guard.note("TENANT_REFUSED", connection.client_id, connection.identity)
            self.refuse(ReasonCode.NOT_AUTHORIZED, why)
            return False
        if not guard.may_connect(connection.identity, connection.client_id):
            guard.note("CONNECT_REFUSED", connection.client_id, connection.identity)
            self.refuse(ReasonCode.NOT_AUTHORIZED, "the rules of the tenant let it not connect")
            return False
        permit = connection.draw_permit()
        will = connect.will
        if will is None or is_nobody_yet or permit.may_publish(will.topic):
            return True
        guard.note("WILL_REFUSED", connection.client_id, connection.identity, will.topic)
        self.refuse(ReasonCode.NOT_AUTHORIZED, "the will's topic is not allowed")
        return False

    # Where the session runs.

    def _route(self) -> None:
        """Go to where the session runs, or wait until somebody runs it."""
        connection = self._connection
        if connection.phase is not ConnectionPhase.ROUTING or connection.wire is None:
            return
        tenant = connection.home.tenant
        sessions = connection.home.of_client(connection.client_id)
        prg = sessions.leader
        node = prg.leader_node
        if sessions.serves(connection.client_id):
            self._closed = self._is_closed(prg)
            if self._closed:
                tenant.when_led(prg.number, self._route)
                return
            connection.join(sessions)
            self._authenticate(sessions)
        elif connection.node.host.draining and not self._arrived:
            self.refuse(ReasonCode.USE_ANOTHER_SERVER, "this node is being drained")
        elif node is not None and connection.node.host.reaches(node) and not self._arrived:
            self._relay_to(prg, node)
        else:
            tenant.when_led(prg.number, self._route)

    def route_again(self, why: str) -> None:
        """Wait for who leads the session's partition next, within the time that is left (C10)."""
        connection = self._connection
        if connection.talk is not None:
            connection.drop(why)  # what it was asked, nobody else can judge
            return
        if self._arrived:
            connection.give_back(why)
            return
        home = connection.home
        connection.leave_partition()
        connection.join(None)
        connection.epoch = 0
        if connection.entered:
            connection.entered = False
            home.guard.leave(connection.node.tick_ms)
        connection.phase = ConnectionPhase.ROUTING
        home.tenant.when_led(home.of_client(connection.client_id).leader.number, self._route)

    def _is_closed(self, prg: PartitionLeader) -> str:
        """Say why the partition may let nobody in like this client now (quantumqtt §10.6)."""
        if not prg.closed:
            return ""
        connect, connection = self.connect, self._connection
        assert connect is not None
        operations = [ClientOperation.START]
        if connection.client_id in prg.broker.state.sessions and not connect.clean_start:
            operations.append(ClientOperation.RESUME)
        if connect.will is not None or connection.home.guard.connects is not None:
            operations.append(ClientOperation.START_WITH_RULES)
        if connection.talk is not None:
            operations.append(ClientOperation.AUTHENTICATE)
        return next((prg.closed[each] for each in operations if each in prg.closed), "")

    def _relay_to(self, prg: PartitionLeader, node: int) -> None:
        assert self.connect is not None
        connection = self._connection
        rest = connection.reader.take_all()
        assigned = b"" if self.connect.client_id else connection.client_id
        memory = None
        if connection.talk is None:  # what was proved to one node, no other takes for granted
            memory = RelayMemory(
                self._early,
                is_v5=connection.is_v5,
                outlives=connection.expiry_seconds > 0,
                packet_bytes_max=connection.limits.packet_bytes_max,
            )
            memory.client_said(rest)
        connection.become_relayed(prg, node, assigned, self._early + rest, memory)

    # Who the client is. The node that serves it asks, before anything of its session is touched.

    def _check_method(self, method: str | None) -> bool:
        connection = self._connection
        if method is None:
            return self._check_named()
        authenticator = connection.node.authenticators.get(method)
        if authenticator is None:
            self.refuse(ReasonCode.BAD_AUTHENTICATION_METHOD, "unknown authentication method")
            return False
        who = Who(connection.home.name, connection.client_id.decode(errors="replace"))
        connection.talk = Talk(method, authenticator, who)
        return True

    def _check_named(self) -> bool:
        """Refuse who shows no certificate, token or password where one is wanted (§9.1).

        Who was sent here by another node was asked there.
        """
        peer, connect = self._connection.peer, self.connect
        assert connect is not None
        if self._arrived or peer is None or peer.identity is not None:
            return True
        if self._has_password(connect):
            return True
        policy = self._connection.node.passwords.policy
        if policy.password == "required":  # noqa: S105
            self.refuse(ReasonCode.NOT_AUTHORIZED, "a user name and a password are wanted")
            return False
        if peer.transport in UNDER_TLS and not policy.allows_nobody:
            self.refuse(ReasonCode.NOT_AUTHORIZED, "neither a certificate, a token nor a password")
            return False
        return True

    def _has_password(self, connect: Connect) -> bool:
        """Say whether the client's user name is to be looked at: nothing else named it."""
        connection = self._connection
        passwords, peer = connection.node.passwords, connection.peer
        if self._arrived or peer is None or peer.identity is not None:
            return False
        if connect.user_name is None or connection.talk is not None:
            return False
        kind = passwords.policy.password
        return kind == "required" or (
            kind == "optional" and passwords.has_users(connection.home.name)
        )

    def _ask_password(self, connect: Connect) -> None:
        """Let the password be checked beside the loop; the client waits within its deadline."""
        connection = self._connection
        connection.phase = ConnectionPhase.ROUTING
        name, password = connect.user_name or "", connect.password or b""
        passwords = connection.node.passwords
        if not passwords.judge(connection.home.name, name, password, self._on_password):
            self.refuse(ReasonCode.SERVER_BUSY, "too many passwords are being checked")

    def _on_password(self, is_right: bool) -> None:
        """Go on as the user that the client is, or refuse it."""
        connection, connect = self._connection, self.connect
        if (
            connection.wire is None
            or connection.phase is not ConnectionPhase.ROUTING
            or connect is None
        ):
            return
        if not is_right:
            connection.home.guard.note("PASSWORD_REFUSED", connection.client_id, connect.user_name)
            self.refuse(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "no such user, or another password")
        elif self._identify(
            AuthenticationAccepted(identity=f"{IDENTITY_PREFIX}{connect.user_name}")
        ):
            self._route()

    def _authenticate(self, sessions: PartitionSessions[TenantClient]) -> None:
        connection, connect = self._connection, self.connect
        assert connect is not None
        talk = connection.talk
        if talk is None:
            SessionStart(self, self._connection).attach(sessions)
            return
        connection.phase = ConnectionPhase.AUTHENTICATING
        self._on_verdict(talk, talk.begin(connect))

    def _pull_authentication(self) -> None:
        """Take AUTH packets, and nothing else before CONNACK ([MQTT-3.1.2-30])."""
        connection = self._connection
        talk = connection.talk
        assert talk is not None
        try:
            while connection.phase is ConnectionPhase.AUTHENTICATING:
                taken = connection.reader.next_packet()
                if taken is None:
                    return
                packet = decode_packet(*taken, connection.version, direction=Direction.TO_SERVER)
                if not isinstance(packet, Auth):
                    why = "only AUTH may come before CONNACK"
                    raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, why)
                self._on_verdict(talk, talk.on_auth(packet))
        except PeerFault as fault:
            connection.count_fault(fault)
            self.refuse(fault.reason_code, fault.reason)

    def _on_verdict(self, talk: Talk, verdict: Verdict) -> None:
        """Do what an authentication method says of a client that is not let in yet."""
        connection = self._connection
        if isinstance(verdict, Challenge):
            connection.write_now(talk.challenge(verdict.data))
        elif isinstance(verdict, AuthenticationAccepted):
            if not self._identify(verdict):
                return
            sessions = connection.sessions
            if sessions is not None and sessions.serves(connection.client_id):
                SessionStart(self, self._connection).attach(sessions)
            else:
                self.route_again("the session's partition moved")
        else:
            if verdict.audit:
                connection.note_refused(verdict.audit, verdict.why)
            self.refuse(verdict.reason, verdict.why)

    def _identify(self, verdict: AuthenticationAccepted) -> bool:
        """Go on as whom a method of authentication says the client is."""
        connection, connect = self._connection, self.connect
        assert connect is not None and connection.peer is not None
        connection.believe(verdict)
        if verdict.identity is not None:
            connection.peer = replace(
                connection.peer,
                identity=verdict.identity,
                named_tenant=connection.peer.named_tenant or connection.home.name,
            )
        return self._check_rules(connect)
