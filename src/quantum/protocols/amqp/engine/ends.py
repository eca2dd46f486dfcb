"""A session and a link as whoever drives the engine has them; `session` and `link` make them work.

Events and deliveries name these two, and nothing here knows events or frames.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from quantum.protocols.amqp.engine.composites import (
    AttachFrame,
    BeginFrame,
    Coordinator,
    DeliveryState,
    ErrorValue,
    SourceTerminus,
    TargetTerminus,
)
from quantum.protocols.amqp.engine.errors import AmqpPeerFault, FaultScope, ProtocolFault
from quantum.protocols.amqp.engine.phases import LinkState, SessionState
from quantum.protocols.amqp.engine.types import LinkRole, ReceiverSettleMode, SenderSettleMode


@dataclass(slots=True)
class OutgoingDelivery:
    """A delivery of ours; `delivery_id` is -1 until its first frame leaves.

    It is numbered then and not before: numbers must have no gaps, and what waits may be dropped.
    """

    link: AmqpLink
    delivery_id: int
    tag: bytes


class AmqpSession(ABC):
    """An end of a session. Whoever pulls a BeginReceived has it from there."""

    remote: BeginFrame
    remote_channel: int
    channel: int
    state: SessionState
    next_incoming_id: int
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    remote_incoming_window: int
    remote_outgoing_window: int
    incoming: dict[int, tuple[AmqpLink, bytes, bool]]
    outgoing: dict[int, OutgoingDelivery]
    initial_counts: dict[int, int]
    next_delivery_id: int

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether a transfer would leave at once: what waits for credit is in nobody's way."""

    @property
    @abstractmethod
    def links(self) -> list[AmqpLink]:
        """The links whose handle the peer has in use."""

    @abstractmethod
    def begin(self, properties: dict[object, object] | None = None) -> None:
        """Answer a begin."""

    @abstractmethod
    def end(self, error: ErrorValue | None = None) -> None:
        """End the session, or answer the peer's end."""

    @abstractmethod
    def settle(
        self, delivery_ids: list[int], state: DeliveryState | None, *, settled: bool = True
    ) -> None:
        """Tell the sender the state of deliveries. Raises AmqpMisuse if one is not waiting."""

    @abstractmethod
    def settle_sent(self, delivery_ids: list[int], state: DeliveryState | None) -> None:
        """Settle deliveries that we sent, as a receiver of mode second waits for."""

    @abstractmethod
    def abort(self, delivery: OutgoingDelivery) -> bool:
        """Give up a delivery that has not left whole; False where it has (§2.6.14)."""

    @abstractmethod
    def send_flow(self, link: AmqpLink | None = None, *, echo: bool = False) -> None:
        """Tell the peer our windows, and the state of a link."""

    # What a link asks for.

    @abstractmethod
    def transmit(  # noqa: PLR0917  # hot: positional
        self,
        link: AmqpLink,
        tag: bytes,
        payload: bytes,
        settled: bool,
        message_format: int,
        state: DeliveryState | None,
        resume: bool,
    ) -> OutgoingDelivery:
        """Send a delivery as far as the windows allow; the rest waits its turn."""

    @abstractmethod
    def forget(self, link: AmqpLink) -> None:
        """Forget the deliveries of a link that is closed or failed."""

    @abstractmethod
    def drop_pending(self, link: AmqpLink) -> None:
        """Give up what has not left of a link that is being detached, begun or not."""

    @abstractmethod
    def release_handle(self, link: AmqpLink) -> None:
        """Let another link have its handle."""

    @abstractmethod
    def reattach_to_close(self, link: AmqpLink) -> None:
        """Attach and close what the peer closed while we only detached (§2.6.6)."""


class AmqpLink(ABC):
    """An end of a link; `role` is ours. Whoever pulls an AttachReceived has it from there."""

    __slots__ = (
        "available",
        "credit",
        "delivery_count",
        "drain",
        "handle",
        "incomplete_received",
        "message_bytes_max",
        "name",
        "peer_message_bytes_max",
        "rcv_settle_mode",
        "remote",
        "role",
        "session",
        "snd_settle_mode",
        "source",
        "state",
        "target",
        "unsettled",
        "waiting",
    )

    session: AmqpSession
    name: str
    remote: AttachFrame
    role: LinkRole
    handle: int
    state: LinkState
    source: SourceTerminus | None
    target: TargetTerminus | Coordinator | None
    snd_settle_mode: SenderSettleMode
    rcv_settle_mode: ReceiverSettleMode
    delivery_count: int
    credit: int
    waiting: int
    drain: bool
    available: int
    message_bytes_max: int
    peer_message_bytes_max: int
    unsettled: dict[bytes, DeliveryState | None]
    incomplete_received: bool

    @property
    def is_coordinator(self) -> bool:
        return isinstance(self.target, Coordinator)

    @property
    def is_sendable(self) -> bool:
        """Whether a delivery may be sent and would leave at once."""
        return (
            self.state is LinkState.ATTACHED
            and self.role is LinkRole.SENDER
            and self.credit > self.waiting
            and self.session.has_room
        )

    @abstractmethod
    def attach(
        self,
        *,
        source: SourceTerminus | None = None,
        target: TargetTerminus | Coordinator | None = None,
        snd_settle_mode: SenderSettleMode | None = None,
        rcv_settle_mode: ReceiverSettleMode | None = None,
        initial_delivery_count: int = 0,
        message_bytes_max: int | None = None,
        unsettled: dict[bytes, DeliveryState | None] | None = None,
        incomplete_unsettled: bool = False,
        offered_capabilities: tuple[str, ...] = (),
        properties: dict[object, object] | None = None,
    ) -> None:
        """Answer an attach: with the termini as they are, which may differ from what was asked."""

    @abstractmethod
    def refuse(self, error: ErrorValue) -> None:
        """Answer an attach with no terminus of ours, and detach it at once (§2.6.3)."""

    @abstractmethod
    def detach(self, *, closed: bool = True, error: ErrorValue | None = None) -> None:
        """Detach the link, or answer the peer's detach; `closed` destroys the terminus."""

    @abstractmethod
    def grant(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """Let the peer send `credit` deliveries from now on; with `drain`, use it up or lose it."""

    @abstractmethod
    def drained(self) -> None:
        """Say that there is nothing left to send: the credit is used up (§2.6.7)."""

    @abstractmethod
    def offer(self, available: int, *, echo: bool = False) -> None:
        """Tell the receiver how many messages wait for its credit."""

    @abstractmethod
    def send(
        self,
        tag: bytes,
        payload: bytes,
        *,
        settled: bool = False,
        message_format: int = 0,
        state: DeliveryState | None = None,
        resume: bool = False,
    ) -> OutgoingDelivery:
        """Queue one delivery; it costs one credit, and has a number once its first frame leaves."""

    @abstractmethod
    def fail(self, fault: AmqpPeerFault) -> None:
        """Detach with the fault's condition; the endpoint is destroyed (§2.6.5)."""

    def fault(self, condition: str, reason: str, **facts: object) -> AmqpPeerFault:
        """Make the fault that ends this link alone."""
        found = ProtocolFault(condition, reason, FaultScope.LINK, **facts)
        found.facts["link"] = self.name
        return found

    def spend_credit(self) -> None:
        """Count one outgoing delivery, now that its first frame leaves."""
        self.delivery_count = (self.delivery_count + 1) & 0xFFFFFFFF
        self.credit -= 1
