"""What the suites ask of every stock client, in one set of words.

Each library keeps its own protocol engine, sockets and defaults; a shim translates only names.
What a library cannot say is not asked of it: see `Library.can`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Flag, auto

from quantum.edge.tls_development import ClientFiles

DEADLINE_SECONDS = 180.0


class Can(Flag):
    """What not every library can say or show."""

    SESSION_PRESENT = auto()  # shows the flag of CONNACK
    REASONS = auto()  # shows the reason code of an acknowledgement
    GRANTED = auto()  # shows what SUBACK granted
    ASSIGNED_ID = auto()  # takes and shows an id that the server assigns
    MANUAL_ACK = auto()  # lets the application acknowledge when it likes
    SEND_ALIAS = auto()
    TAKE_ALIAS = auto()
    WEBSOCKET = auto()
    VERSION_31 = auto()
    SAYS_WHY = auto()  # shows the reason code of a DISCONNECT from the server
    NOTICES_REFUSAL = auto()  # does not wait on for CONNACK when the server closes
    EXPIRY_AT_END = auto()  # changes the session expiry with DISCONNECT


@dataclass(frozen=True)
class Will:
    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    delay: int = 0


@dataclass(frozen=True)
class Opening:
    """How to connect. `clean` is clean start in MQTT 5 and clean session before."""

    client_id: str
    port: int
    version: int = 5
    clean: bool = True
    expiry: int = 0
    keep_alive: int = 60
    will: Will | None = None
    receive_maximum: int | None = None
    alias_maximum: int | None = None
    packet_maximum: int | None = None
    websocket: bool = False
    identity: ClientFiles | None = None
    manual_ack: bool = False


@dataclass(frozen=True)
class Extras:
    """The properties of a message that travel with it (MQTT 5)."""

    user: tuple[tuple[str, str], ...] = ()
    content_type: str | None = None
    response_topic: str | None = None
    correlation: bytes | None = None
    expiry: int | None = None
    is_text: bool | None = None
    alias: int | None = None


NO_EXTRAS = Extras()


@dataclass(frozen=True)
class Wish:
    """A subscription."""

    filter: str
    qos: int = 0
    no_local: bool = False
    as_published: bool = False
    retain_handling: int = 0
    identifier: int | None = None


@dataclass(frozen=True)
class Got:
    """A message as the application saw it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    extras: Extras = NO_EXTRAS
    identifiers: tuple[int, ...] = ()
    handle: int = 0  # what `acknowledge` wants


@dataclass
class StockClient(ABC):
    """One connection of one library."""

    session_present: bool | None = None
    assigned_id: str | None = None
    end_reason: int | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _inbox: asyncio.Queue[Got] = field(default_factory=asyncio.Queue)

    @abstractmethod
    async def subscribe(self, wish: Wish) -> int | None:
        """Return what was granted, if the library shows it."""

    @abstractmethod
    async def unsubscribe(self, topic_filter: str) -> None: ...

    @abstractmethod
    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        *,
        retain: bool = False,
        extras: Extras = NO_EXTRAS,
    ) -> int | None:
        """Return when it is acknowledged, with the reason code if the library shows it."""

    @abstractmethod
    def drop(self) -> None:
        """Lose the connection without a word."""

    @abstractmethod
    async def close(self, *, expiry: int | None = None) -> None:
        """Say goodbye."""

    def acknowledge(self, got: Got) -> None:
        raise NotImplementedError(got)

    async def take(self, count: int = 1) -> list[Got]:
        """Wait for messages."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            return [await self._inbox.get() for _ in range(count)]

    async def take_until(self, payload: bytes) -> list[Got]:
        """Wait for a marker, and return what came before it."""
        found: list[Got] = []
        while (got := (await self.take())[0]).payload != payload:
            found.append(got)
        return found

    async def wait_ended(self) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self.ended.wait()


class Library(ABC):
    """A client library, and how to open a connection with it."""

    name: str
    can: Can

    @abstractmethod
    async def open(self, opening: Opening) -> StockClient:
        """Connect. Raises `Refused`."""

    async def shut(self) -> None:
        """End what the connections of a test shared."""
        return


class Refused(Exception):
    """The broker did not let the client in."""
