"""Enhanced authentication (MQTT 5, 4.12): a port for methods, and the talk over AUTH packets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from quantum.protocols.mqtt.codec import Auth, Connect, Properties, ProtocolViolation, ReasonCode


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client has to answer this."""

    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class AuthenticationAccepted:
    """The client is who it says; `data` is the method's last word to it."""

    data: bytes | None = None
    identity: str | None = None
    """Who it is, where the method says that; None: who it was before."""
    ends_ms: int | None = None
    """Until when that holds (Unix milliseconds), where it ends."""
    auth_epoch: int | None = None
    """Of which epoch of its tenant the proof is, where it has one."""


@dataclass(frozen=True, slots=True)
class AuthenticationRefused:
    """The client is not let in, or must go, for a reason that CONNACK and DISCONNECT know."""

    reason: ReasonCode = ReasonCode.NOT_AUTHORIZED
    why: str = "not authenticated"
    audit: str = ""
    """What the audit log calls it; nothing: an ordinary refusal."""


@dataclass(frozen=True, slots=True)
class Who:
    """Who a client says it is."""

    tenant: str
    client_id: str


Verdict: TypeAlias = Challenge | AuthenticationAccepted | AuthenticationRefused


class Exchange(Protocol):
    """One run of a method with one client."""

    def step(self, data: bytes | None) -> Verdict:
        """Take what the client said, first what came with CONNECT or with re-authentication."""


class Authenticator(Protocol):
    """A method, registered by its name with the service."""

    def begin(self, connect: Connect | None, who: Who, /) -> Exchange:
        """Begin with a client; None where a client that is connected authenticates again."""


class Talk:
    """The AUTH packets of one connection whose CONNECT named a method."""

    __slots__ = ("_authenticator", "_exchange", "_who", "last_word", "method")

    def __init__(self, method: str, authenticator: Authenticator, who: Who) -> None:
        self.method = method
        self._who = who
        self._authenticator = authenticator
        self._exchange: Exchange | None = None
        self.last_word: bytes | None = None
        """What the method says with its success, for CONNACK or the last AUTH."""

    def begin(self, connect: Connect) -> Verdict:
        """Begin with CONNECT."""
        self._exchange = self._authenticator.begin(connect, self._who)
        return self._step(connect.properties.authentication_data)

    def on_auth(self, packet: Auth) -> Verdict:
        """Go on, or begin again ([MQTT-4.12.1-1]). Raises ProtocolViolation for other methods."""
        properties = packet.properties
        if properties.authentication_method != self.method:
            raise _violation("another authentication method")  # [MQTT-4.12.0-5]
        if packet.reason_code is ReasonCode.RE_AUTHENTICATE:
            if self._exchange is not None:
                raise _violation("authentication is under way")
            self._exchange = self._authenticator.begin(None, self._who)
        return self._step(properties.authentication_data)

    def _step(self, data: bytes | None) -> Verdict:
        if self._exchange is None:
            raise _violation("no authentication is under way")
        verdict = self._exchange.step(data)
        if isinstance(verdict, AuthenticationAccepted):
            self._exchange, self.last_word = None, verdict.data
        return verdict

    def challenge(self, data: bytes | None) -> Auth:
        return Auth(ReasonCode.CONTINUE_AUTHENTICATION, self._words(data))

    def success(self) -> Auth:
        """End a re-authentication."""
        return Auth(ReasonCode.SUCCESS, self._words(self.last_word))

    def _words(self, data: bytes | None) -> Properties:
        return Properties(authentication_method=self.method, authentication_data=data)


def _violation(why: str) -> ProtocolViolation:
    return ProtocolViolation(ReasonCode.PROTOCOL_ERROR, why)
