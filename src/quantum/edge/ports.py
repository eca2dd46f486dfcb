"""What a listener and a protocol owe each other.

A listener makes one handler per connection and calls it in this order: `opened` once, when the
peer's first bytes are there (and, under TLS, its certificate is believed); `received` and
`writable_again` any number of times; `lost` once. A connection that never says anything never
gets a handler. All calls come from the loop's own thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

Transport: TypeAlias = Literal["tcp", "tls", "ws", "wss"]


@dataclass(frozen=True, slots=True)
class ConnectionPeer:
    """Who is at the other end, as far as the connection itself can tell."""

    transport: Transport
    address: str
    tenant: str
    identity: str | None = None
    """Whom the client's certificate names: its URI, else its DNS name, else its common name."""
    server_name: str | None = None
    """The name that the client asked for (SNI)."""
    not_after_ms: int | None = None
    """The end of the certificate's time, in Unix milliseconds."""
    named_tenant: str | None = None
    """Whose client it is by what it has shown: its certificate names the tenant, or is of the
    tenant's own authority, or it was let in by a token; None: nothing says so."""


class WirePort(Protocol):
    """What a listener gives to the protocol's handler.

    The handler's first `write` ends the time that a new client has for its first packet; a
    protocol that lets a client in must therefore answer it, as every protocol here does.
    """

    def write(self, data: bytes) -> None:
        """Send bytes. They are buffered without bound: a handler that is polite looks at
        `writable` first, and stops until `writable_again`. Nothing is sent after a close."""

    @property
    def writable(self) -> bool:
        """False while more waits in the buffer than the high-water mark allows."""
        ...

    def close(self) -> None:
        """End the connection after what was written has left, or has had its time to leave."""

    def abort(self) -> None:
        """End the connection at once."""

    def pause_reading(self) -> None:
        """Take nothing more from the peer; what is already here may still be `received`."""

    def resume_reading(self) -> None:
        """Take from the peer again."""


class Handler(Protocol):
    """What the protocol gives to a listener, one per connection."""

    def opened(self, wire: WirePort, peer: ConnectionPeer) -> None:
        """Begin; the first bytes follow at once."""

    def received(self, data: bytes) -> None:
        """Take bytes of the peer, in order, cut anywhere."""

    def writable_again(self) -> None:
        """Go on: the buffer has drained."""

    def lost(self) -> None:
        """Forget the connection: it is gone, whoever ended it."""


@runtime_checkable
class Expelling(Handler, Protocol):
    """A handler that has something to say to a client whose certificate is believed no more."""

    def expelled(self, why: str) -> None:
        """Say why and close. Nothing more is received; the wire ends soon, whatever is done."""


NewHandler: TypeAlias = Callable[[], Handler]


class EarlyWire(WirePort, Protocol):
    """A wire for a layer between listener and handler, which speaks before the handler does."""

    def write_early(self, data: bytes) -> None:
        """Send bytes that do not yet let the client in: its deadline stays."""

    def expect_end(self) -> None:
        """Give the peer a little time to end the connection itself."""
