"""One session of the broker that this node keeps for an AMQP client, whoever leads it.

It speaks MQTT 5 as every client does, so that rules, quotas and rates hold. A connection that
breaks is made again, and finds the session where it was: the log has it. What the user of the
session has to say after that, it says itself (`began`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from quantum.edge.ports import ConnectionPeer
from quantum.node.inner_client import InnerWire
from quantum.protocols.amqp.engine import Condition, ErrorValue
from quantum.protocols.mqtt.codec import (
    PACKET_BYTES_MAX,
    ClientId,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolVersion,
    Publish,
    ReasonCode,
)

if TYPE_CHECKING:
    from quantum.node.service import BrokerService

SEEK_MS_MAX: Final = 30_000
"""A session that finds no leader for so long is given up, as links to queues are."""
_AGAIN_MS: Final = 100
_KEEP_ALIVE_SECONDS: Final = 300
_CONDITIONS: Final = {
    ReasonCode.NOT_AUTHORIZED: Condition.UNAUTHORIZED_ACCESS,
    ReasonCode.BANNED: Condition.UNAUTHORIZED_ACCESS,
    ReasonCode.ADMINISTRATIVE_ACTION: Condition.UNAUTHORIZED_ACCESS,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: Condition.UNAUTHORIZED_ACCESS,
    ReasonCode.QUOTA_EXCEEDED: Condition.RESOURCE_LIMIT_EXCEEDED,
    ReasonCode.PACKET_TOO_LARGE: Condition.MESSAGE_SIZE_EXCEEDED,
    ReasonCode.SESSION_TAKEN_OVER: Condition.STOLEN,
    ReasonCode.TOPIC_NAME_INVALID: Condition.INVALID_FIELD,
    ReasonCode.TOPIC_FILTER_INVALID: Condition.INVALID_FIELD,
    ReasonCode.PAYLOAD_FORMAT_INVALID: Condition.INVALID_FIELD,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: Condition.INVALID_FIELD,
}
_PASSING: Final = frozenset(
    {
        ReasonCode.SERVER_UNAVAILABLE,
        ReasonCode.SERVER_BUSY,
        ReasonCode.SERVER_SHUTTING_DOWN,
        ReasonCode.SERVER_MOVED,
        ReasonCode.USE_ANOTHER_SERVER,
        ReasonCode.CONNECTION_RATE_EXCEEDED,
        ReasonCode.KEEP_ALIVE_TIMEOUT,
        ReasonCode.MAXIMUM_CONNECT_TIME,
        ReasonCode.SUCCESS,
    }
)
"""What is over after a while: the session is looked for again."""
_UNLED: Final = ErrorValue(Condition.DETACH_FORCED, "no leader answered in time")


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """What a session is like."""

    client_id: str
    expiry_seconds: int
    receive_maximum: int
    resumes: bool
    """Whether it may be there already, with what waited in it."""


class SessionUser(Protocol):
    """Whose session it is. All calls come from the loop's own thread."""

    def began(self, connack: Connack) -> None:
        """It is connected; CONNACK says whether the session was there."""

    def heard(self, packet: Packet, size: int) -> None:
        """Something came; who holds a publish says when that is over (`used`)."""

    def failed(self, error: ErrorValue) -> None:
        """It is over."""


def error_of(reason: ReasonCode, why: str | None) -> ErrorValue:
    """Say a refusal of the broker's in AMQP's words."""
    text = why or reason.name.lower().replace("_", " ")
    return ErrorValue(_CONDITIONS.get(reason, Condition.INTERNAL_ERROR), text)


class TopicSession:
    """The connection of one session, made again whenever it breaks."""

    def __init__(
        self, service: BrokerService, peer: ConnectionPeer, terms: SessionTerms, user: SessionUser
    ) -> None:
        self._service = service
        self._peer = peer
        self._terms = terms
        self._user = user
        self._wire: InnerWire | None = None
        self.is_up = False
        self.life = 0
        """Counts the connections that it had."""
        self._is_known = terms.resumes
        """Whether the session was begun: it is not begun anew any more."""
        self._is_over = False
        self._ends_in: int | None = None
        """How long the session stays when it is left; None: it is not left yet."""
        self._down_ms = self._tried_ms = service.clock_ms()
        self._pinged_ms = 0
        self._ping_ms = 1000 * _KEEP_ALIVE_SECONDS // 2
        self._pings: deque[bool] = deque()
        """Of each PINGREQ without an answer: whether the user asked for it."""
        self._said: list[Packet] = []
        self._is_due = False
        self._connect()

    @property
    def is_over(self) -> bool:
        return self._is_over

    def say(self, *packets: Packet) -> None:
        """Say something, when this call is over; nothing while it is not connected."""
        if self.is_up:
            self._said += packets
            self._soon()

    def used(self, size: int, life: int) -> None:
        """Note that a publish that was heard in this life of the connection is held no more."""
        wire = self._wire
        if wire is None or life != self.life:
            return
        if wire.writable:
            wire.held_bytes -= size
        else:
            self._service.soon(lambda: wire.used(size))  # the handler may be the one that speaks

    def ping(self) -> None:
        """Ask for a sign of life; its answer is heard."""
        if self.is_up:
            self._ping(is_asked=True)

    def _ping(self, *, is_asked: bool) -> None:
        self._pinged_ms = self._service.clock_ms()
        self._pings.append(is_asked)
        self.say(Pingreq())

    def leave(self, expiry_seconds: int) -> None:
        """Leave the session for so long; one that cannot be reached now is ended later."""
        if self._is_over or self._ends_in is not None:
            return
        self._ends_in = expiry_seconds
        if self.is_up:
            self._soon()

    def on_tick(self, now_ms: int) -> None:
        """Connect again where it broke, and give up after a while."""
        if self._is_over:
            return
        if self.is_up:
            self._down_ms = now_ms
            if now_ms - self._pinged_ms > self._ping_ms:
                self._ping(is_asked=False)
        elif now_ms - self._down_ms > SEEK_MS_MAX:
            self.fail(_UNLED)
        elif self._wire is None and now_ms - self._tried_ms > _AGAIN_MS:
            self._tried_ms = now_ms
            self._connect()

    # The connection.

    def _connect(self) -> None:
        terms = self._terms
        self._wire = wire = InnerWire(self._service, self._peer, self._heard, self._broke)
        wire.on_resumed = self._soon
        self.life += 1
        properties = Properties(
            # Longer than a new leader takes, however short it is wanted: see `leave`.
            session_expiry_interval=terms.expiry_seconds,
            receive_maximum=terms.receive_maximum,
            maximum_packet_size=PACKET_BYTES_MAX,
        )
        self._said = []
        self._pings.clear()
        wire.say(
            Connect(
                ProtocolVersion.V5,
                ClientId(terms.client_id),
                not self._is_known,
                _KEEP_ALIVE_SECONDS,
                properties=properties,
            )
        )

    def _heard(self, packet: Packet, size: int) -> None:
        if self._wire is not None and not isinstance(packet, Publish):
            self._wire.held_bytes -= size
        if isinstance(packet, Connack):
            self._on_connack(packet)
        elif isinstance(packet, Disconnect):
            self._on_refused(packet.reason_code, packet.properties.reason_string)
        elif not isinstance(packet, Pingresp) or (self._pings and self._pings.popleft()):
            self._user.heard(packet, size)

    def _on_connack(self, packet: Connack) -> None:
        if packet.reason_code.is_failure:
            self._on_refused(packet.reason_code, packet.properties.reason_string)
            return
        self.is_up = self._is_known = True
        self._pinged_ms = self._service.clock_ms()
        keep_alive = packet.properties.server_keep_alive or _KEEP_ALIVE_SECONDS
        self._ping_ms = 1000 * keep_alive // 2
        if self._ends_in is not None:
            self._soon()
        else:
            self._user.began(packet)

    def _on_refused(self, reason: ReasonCode, why: str | None) -> None:
        if reason in _PASSING:
            self._drop()
        else:
            self.fail(error_of(reason, why))

    def _broke(self) -> None:
        self._drop()

    def _drop(self) -> None:
        """Let go of the connection; it is made again with the next ticks."""
        wire, self._wire = self._wire, None
        self.is_up = False
        self._down_ms = self._tried_ms = self._service.clock_ms()
        if wire is not None:
            wire.is_closed = True
            self._service.soon(lambda: wire.leave(None))

    def fail(self, error: ErrorValue) -> None:
        """Be over, and say why."""
        if not self._is_over:
            self._is_over = True
            self._drop()
            if self._ends_in is None:
                self._user.failed(error)

    # What is said, behind the call that says it: the handler may be the one that speaks.

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._service.soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        wire = self._wire
        if wire is None or not self.is_up:
            return
        if self._said and not wire.is_paused:
            said, self._said = self._said, []
            wire.say(*said)
        if self._ends_in is not None and self.is_up:
            self._is_over = True
            self.is_up, self._wire = False, None
            goodbye = Disconnect(properties=Properties(session_expiry_interval=self._ends_in))
            wire.leave(goodbye)
