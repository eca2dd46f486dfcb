"""The last step of a handshake: the client's session is found or made, and CONNACK is sent."""

from __future__ import annotations

from typing import Protocol

import msgspec

from quantum.broker import Attach, Attached, encode_command
from quantum.protocols.mqtt.codec import NO_PROPERTIES, Connack, Connect, Properties, ReasonCode
from quantum.protocols.mqtt.session.partition_sessions import PartitionSessions
from quantum.protocols.mqtt.session.phase import ConnectionPhase
from quantum.protocols.mqtt.session.session_client import SessionClient
from quantum.protocols.mqtt.session.tenant_sessions import TenantClient
from quantum.protocols.mqtt.session.terms import announce, will_spec
from quantum.tenancy import QuotaVerdict as TenantVerdict
from quantum.tenancy import Rate
from quantum.tenants.policy import identity_digest

_decode_attached = msgspec.msgpack.Decoder(Attached).decode


class HandshakeSteps(Protocol):
    """What led up to here, and what to do when it goes no further."""

    connect: Connect | None

    def refuse(self, reason: ReasonCode, why: str) -> None: ...
    def route_again(self, why: str) -> None: ...


class SessionStart:
    """Of one connection, whose client is who it says it is."""

    __slots__ = ("_connection", "_handshake")

    def __init__(self, handshake: HandshakeSteps, connection: SessionClient) -> None:
        self._handshake = handshake
        self._connection = connection

    def attach(self, sessions: PartitionSessions[TenantClient]) -> None:
        connection, connect = self._connection, self._handshake.connect
        assert connect is not None
        client_id = connection.client_id
        shut, prg = connection.home.tenant.shut, sessions.leader
        if shut:
            self._handshake.refuse(ReasonCode.BANNED, shut)
            return
        connection.phase = ConnectionPhase.ATTACHING
        older = sessions.connections.get(client_id)
        if older is not None and older.identity not in (None, connection.identity):
            self._refuse_binding()
            return
        if older is not None:
            older.taken_over()
        if not self._enter():
            return
        connection.attach_to(sessions)
        known = client_id in prg.broker.state.sessions or client_id in sessions.busy_clients
        if not known and connection.expiry_seconds == 0 and connect.will is None:
            self._begin(present=False)
            return
        command = Attach(
            prg.now_ms(),
            client_id,
            connect.clean_start,
            connection.expiry_seconds,
            connection.window,
            will_spec(connect.will, client_id, connection.agreed.keep_alive_seconds),
            identity_digest(connection.identity),
            takes_over=older is not None,
            standard_wills=connection.home.guard.has_standard_wills,
        )
        connection.command(encode_command(command), self._attached)

    def _enter(self) -> bool:
        """Be counted among the tenant's connections, or be refused."""
        connection = self._connection
        guard, now_ms = connection.home.guard, connection.node.tick_ms
        pace = guard.ask(Rate.CONNECTS, 1, now_ms)
        if pace.verdict in (TenantVerdict.REJECT, TenantVerdict.DISCONNECT):
            connection.note_refused("QuotaExceeded", "the rate of connections")
            self._handshake.refuse(
                ReasonCode.CONNECTION_RATE_EXCEEDED, "too many connections in a while"
            )
            return False
        connection.entered = guard.enter(now_ms)
        if not connection.entered:
            guard.note("CONNECTION_OVER_QUOTA", connection.client_id, connection.identity)
            connection.note_refused("QuotaExceeded", "the number of connections")
            self._handshake.refuse(ReasonCode.QUOTA_EXCEEDED, "the tenant has too many connections")
        return connection.entered

    def _refuse_binding(self) -> None:
        """The client id is another identity's (quantumqtt §10.1.1)."""
        connection = self._connection
        guard = connection.home.guard
        guard.note("IDENTITY_MISMATCH", connection.client_id, connection.identity)
        self._handshake.refuse(
            ReasonCode.NOT_AUTHORIZED, "the client id belongs to another identity"
        )

    def _attached(self, reply: bytes | None) -> None:
        connection = self._connection
        if reply is None:
            if connection.phase is ConnectionPhase.ATTACHING:
                self._handshake.route_again("the session's partition has no leader")
            return
        attached = _decode_attached(reply)
        is_awaited = connection.phase is ConnectionPhase.ATTACHING
        if attached.is_moved:
            if is_awaited:
                self._handshake.route_again("the session moved")
        elif attached.refused:
            if is_awaited:
                guard = connection.home.guard
                guard.note("SESSION_OVER_QUOTA", connection.client_id, connection.identity)
                self._handshake.refuse(
                    ReasonCode.QUOTA_EXCEEDED, "the tenant has too many sessions"
                )
        elif attached.is_bound:
            if is_awaited:
                self._refuse_binding()
        else:
            connection.epoch, connection.attachment = attached.epoch, attached.attachment
            if is_awaited:
                self._begin(present=attached.present)

    def _begin(self, *, present: bool) -> None:
        """Say that the session is there, and go on with what the client already sent."""
        assert self._handshake.connect is not None
        self._note_expiry(self._handshake.connect)
        announced = self._announce(self._handshake.connect)
        self._connection.become_live(Connack(present, ReasonCode.SUCCESS, announced))

    def _note_expiry(self, connect: Connect) -> None:
        """Say where a session is kept for another time than its client may think.

        CONNACK tells clients of MQTT 5; older ones cannot be told, so the audit log is.
        """
        connection = self._connection
        given = connection.expiry_seconds
        asked = connect.properties.session_expiry_interval or 0
        is_cut = asked > given if connection.is_v5 else given > 0
        if is_cut:
            setting = "max" if connection.is_v5 else "default"
            why = f"kept for {given} s (session_expiry_seconds_{setting})"
            connection.home.guard.note_expiry(connection.client_id, why)

    def _announce(self, connect: Connect) -> Properties:
        connection = self._connection
        if not connection.is_v5:
            return NO_PROPERTIES
        announced = announce(connect, connection.agreed, connection.limits, connection.client_id)
        if connection.talk is not None:
            announced.authentication_method = connection.talk.method
            announced.authentication_data = connection.talk.last_word
        return announced
