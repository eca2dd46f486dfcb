"""What a link asks of the connection that it is of."""

from __future__ import annotations

from typing import Protocol

from quantum.edge.ports import ConnectionPeer
from quantum.protocols.amqp.engine import (
    AmqpLink,
    AmqpSession,
    DeliveryReceived,
    DeliveryState,
    OutgoingDelivery,
)
from quantum.protocols.amqp.session.tenant_queues import TenantQueues
from quantum.protocols.amqp.session.transactions import Transactions
from quantum.tenancy import Operation, ResourceKind


class ClientPort(Protocol):
    """A connection, as its links know it."""

    @property
    def home(self) -> TenantQueues: ...
    @property
    def mark(self) -> bytes:
        """What its messages are known by (`sender_mark`)."""
        ...

    @property
    def is_live(self) -> bool: ...
    @property
    def writable(self) -> bool: ...

    def settle_later(self, session: AmqpSession, number: int, state: DeliveryState) -> None:
        """Tell the sender of a delivery what became of it, with this turn."""

    def touch(self) -> None:
        """Let what is staged be written with this turn."""

    def count_pending(self, size: int) -> None:
        """Count bytes that wait for the log; negative: they do not wait any more."""

    @property
    def transactions(self) -> Transactions: ...

    def may_send(self, queue: bytes) -> bool: ...


class AttachingClient(ClientPort, Protocol):
    """A connection, as who makes its links knows it."""

    links: dict[AmqpLink, LinkEnd]
    identity: str | None
    container: str
    peer: ConnectionPeer | None

    def may(self, operation: Operation, kind: ResourceKind, name: bytes) -> bool: ...
    def draw(self, count: int) -> bytes:
        """Return bytes that nobody can guess."""
        ...


class LinkEnd(Protocol):
    """Our end of one link."""

    def on_delivery(self, event: DeliveryReceived) -> None: ...
    def on_disposition(
        self, deliveries: list[OutgoingDelivery], state: DeliveryState | None, *, settled: bool
    ) -> None: ...
    def on_flow(self) -> None: ...
    def pump(self) -> None:
        """Send what can be sent now."""

    def on_tick(self) -> None: ...
    def closed(self, *, failed: bool) -> None:
        """The link is gone; `failed`: with its connection, and nobody said so."""
