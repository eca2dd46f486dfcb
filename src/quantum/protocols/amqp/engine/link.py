"""One link: attach and detach in both roles, credit, and the states between them (§2.6).

`LinkState.FAILED` is a link that we detached with an error: it is destroyed, and whatever comes
for it but a detach ends the session (§2.6.5). A link that the driver detached discards instead:
the peer could not know yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quantum.protocols.amqp.engine.composites import (
    AttachFrame,
    Coordinator,
    DeliveryState,
    DetachFrame,
    ErrorValue,
    FlowFrame,
    ReceivedState,
    SourceTerminus,
    TargetTerminus,
)
from quantum.protocols.amqp.engine.ends import AmqpLink, AmqpSession, OutgoingDelivery
from quantum.protocols.amqp.engine.errors import (
    AmqpMisuse,
    AmqpPeerFault,
    Condition,
    FaultScope,
    ProtocolFault,
)
from quantum.protocols.amqp.engine.events import DetachReceived, FlowReceived, LinkFailed
from quantum.protocols.amqp.engine.phases import LinkState
from quantum.protocols.amqp.engine.settings import TAG_BYTES_MAX
from quantum.protocols.amqp.engine.types import (
    LinkRole,
    ReceiverSettleMode,
    SenderSettleMode,
    serial_add,
    serial_distance,
)
from quantum.protocols.amqp.engine.wire import FrameWriter, error_of


@dataclass(slots=True)
class PartialDelivery:
    """A delivery whose last transfer has not come."""

    delivery_id: int
    tag: bytes
    message_format: int
    settled: bool
    second: bool
    state: DeliveryState | None
    resume: bool
    ignored: bool
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0


class EngineLink(AmqpLink):
    """The machine of one link."""

    __slots__ = (
        "_is_attach_sent",
        "_limit",
        "incomplete_sent",
        "is_rare",
        "partial",
        "sent_closed",
        "wire",
    )

    def __init__(
        self, wire: FrameWriter, session: AmqpSession, attach: AttachFrame, handle: int
    ) -> None:
        self.wire = wire
        self.session = session
        self.name = attach.name
        self.remote = attach
        self.role = LinkRole.RECEIVER if attach.role is LinkRole.SENDER else LinkRole.SENDER
        self.handle = handle
        """The number that we call it by; the peer's own is `remote.handle`."""
        self.state = LinkState.ATTACH_RECEIVED
        self._is_attach_sent = False
        self.sent_closed = False
        self.source: SourceTerminus | None = attach.source
        self.target: TargetTerminus | Coordinator | None = attach.target
        self.snd_settle_mode = attach.snd_settle_mode
        self.rcv_settle_mode = attach.rcv_settle_mode
        self.delivery_count = attach.initial_delivery_count or 0
        self.credit = 0
        """What may still be sent: by us as sender, by the peer as we granted it."""
        self._limit = self.delivery_count
        """The furthest delivery-count ever granted: credit that was taken back may be in use."""
        self.waiting = 0
        """Deliveries that were sent and of which no frame has left: each will take a credit."""
        self.drain = False
        self.available = 0
        self.message_bytes_max = wire.settings.message_bytes_max
        self.peer_message_bytes_max = attach.max_message_size or 0
        self.partial: PartialDelivery | None = None
        self.unsettled: dict[bytes, DeliveryState | None] = {}
        """Our unsettled map as it was attached: what may be resumed, by tag (§2.6.13)."""
        self.incomplete_sent = False
        self.is_rare = self.is_coordinator
        """Whether a delivery is more than to be passed on: a command, or a map that is partial."""
        self.incomplete_received = attach.incomplete_unsettled

    # What the driver does.

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
        """Answer an attach: with the termini as they are, which may differ from what was asked.

        Where `source` or `target` is None it is that of the peer. `unsettled` is our map where
        the link is resumed: what it does not hold the peer must not resume.
        """
        if self.state is not LinkState.ATTACH_RECEIVED:
            raise AmqpMisuse("a link is attached once", state=self.state.value)
        self.source = source if source is not None else self.source
        self.target = target if target is not None else self.target
        self._check_dynamic()
        if snd_settle_mode is not None:
            self.snd_settle_mode = snd_settle_mode
        if rcv_settle_mode is not None:
            self.rcv_settle_mode = rcv_settle_mode
        if message_bytes_max is not None:
            self.message_bytes_max = message_bytes_max
        self.unsettled = dict(unsettled or {})
        self.incomplete_sent = incomplete_unsettled
        self.is_rare = incomplete_unsettled or self.is_coordinator
        if self.role is LinkRole.SENDER:
            self.delivery_count = self._limit = initial_delivery_count
        self._send_attach(self.source, self.target, unsettled, offered_capabilities, properties)
        self.state = LinkState.ATTACHED

    def refuse(self, error: ErrorValue) -> None:
        """Answer an attach with no terminus of ours, and detach it at once (§2.6.3)."""
        if self.state is not LinkState.ATTACH_RECEIVED:
            raise AmqpMisuse("a link is refused before it is attached", state=self.state.value)
        self._attach_without_terminus()
        self.state = LinkState.ATTACHED
        self.detach(error=error)

    def detach(self, *, closed: bool = True, error: ErrorValue | None = None) -> None:
        """Detach the link, or answer the peer's detach; `closed` destroys the terminus."""
        if self.state in (LinkState.DETACH_SENT, LinkState.FAILED, LinkState.DETACHED):
            raise AmqpMisuse("a link is detached once", state=self.state.value)
        if not self._is_attach_sent:
            self._attach_without_terminus()
        is_answer = self.state is LinkState.DETACH_RECEIVED
        self._send_detach(closed=closed, error=error)
        self.state = LinkState.DETACHED if is_answer else LinkState.DETACH_SENT

    def grant(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """Let the peer send `credit` deliveries from now on; with `drain`, use it up or lose it."""
        if self.role is not LinkRole.RECEIVER or self.state is not LinkState.ATTACHED:
            raise AmqpMisuse("credit is granted by an attached receiver", state=self.state.value)
        self.credit = credit
        self.drain = drain
        limit = serial_add(self.delivery_count, credit)
        if serial_distance(limit, self._limit) > 0:
            self._limit = limit
        self._send_flow(echo=echo)

    def drained(self) -> None:
        """Say that there is nothing left to send: the credit is used up (§2.6.7)."""
        if self.role is not LinkRole.SENDER or self.state is not LinkState.ATTACHED:
            raise AmqpMisuse("an attached sender is drained", state=self.state.value)
        if self.waiting:
            raise AmqpMisuse("deliveries wait for the session's window: wait for WindowOpened")
        self.delivery_count = serial_add(self.delivery_count, self.credit)
        self.credit = 0
        self._send_flow()

    def offer(self, available: int, *, echo: bool = False) -> None:
        """Tell the receiver how many messages wait for its credit."""
        if self.role is not LinkRole.SENDER or self.state is not LinkState.ATTACHED:
            raise AmqpMisuse("an attached sender offers", state=self.state.value)
        self.available = available
        self._send_flow(echo=echo)

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
        """Queue one delivery; it costs one credit, and has a number once its first frame leaves.

        What the session's window has no room for waits here, in order. Raises AmqpMisuse where
        the standard forbids it: without credit, a tag too long, against the settle mode, resumed
        without being in our unsettled map, or new while the peer's map is incomplete.
        """
        self._check_send(tag, payload, settled=settled, resume=resume)
        if isinstance(state, ReceivedState) and not resume:
            raise AmqpMisuse("a sender says Received of a resumed delivery only")
        if self.available:
            self.available -= 1
        return self.session.transmit(self, tag, payload, settled, message_format, state, resume)

    def _check_send(self, tag: bytes, payload: bytes, *, settled: bool, resume: bool) -> None:
        if self.role is not LinkRole.SENDER or self.state is not LinkState.ATTACHED:
            raise AmqpMisuse("an attached sender sends", state=self.state.value)
        if self.credit <= self.waiting:
            raise AmqpMisuse("a link has no credit: wait for FlowReceived")
        if not tag or len(tag) > TAG_BYTES_MAX:
            raise AmqpMisuse("a delivery tag has 1 to 32 bytes", size=len(tag))
        if settled and self.snd_settle_mode is SenderSettleMode.UNSETTLED:
            raise AmqpMisuse("this link's deliveries are sent unsettled")
        if not settled and self.snd_settle_mode is SenderSettleMode.SETTLED:
            raise AmqpMisuse("this link's deliveries are sent settled")
        if resume and tag not in self.unsettled:
            raise AmqpMisuse("a delivery is resumed that is not in the unsettled map")
        if not resume and self.incomplete_received:
            raise AmqpMisuse("the peer's unsettled map is incomplete: resume, send nothing new")
        if self.peer_message_bytes_max and len(payload) > self.peer_message_bytes_max:
            raise AmqpMisuse("a message is larger than the peer accepts", size=len(payload))

    # What the session passes on.

    def takes_transfer(self) -> bool:
        """Judge a transfer frame, which the session has counted; False: it is discarded."""
        if self.state is not LinkState.ATTACHED:
            if self.state is LinkState.FAILED:
                raise ProtocolFault(
                    Condition.ERRANT_LINK, "a transfer for a link that failed", FaultScope.SESSION
                )
            if self.state is LinkState.ATTACH_RECEIVED:
                raise self.fault(Condition.TRANSFER_LIMIT_EXCEEDED, "a transfer without credit")
            return False
        if self.role is not LinkRole.RECEIVER:
            raise self.fault(Condition.NOT_ALLOWED, "a transfer from the receiver of a link")
        return True

    def take_credit(self) -> None:
        """Count one incoming delivery; more than was ever granted is the peer's fault."""
        self.delivery_count = count = (self.delivery_count + 1) & 0xFFFFFFFF
        if self.credit > 0:
            self.credit -= 1
        elif serial_distance(count, self._limit) > 0:
            raise self.fault(Condition.TRANSFER_LIMIT_EXCEEDED, "a transfer without credit")
        if self.available:
            self.available -= 1

    def on_flow(self, flow: FlowFrame) -> None:
        if self.state is LinkState.FAILED:
            raise ProtocolFault(
                Condition.ERRANT_LINK, "a flow for a link that failed", FaultScope.SESSION
            )
        if self.state is not LinkState.ATTACHED:
            return
        if self.role is LinkRole.SENDER:
            self._on_receivers_flow(flow)
        else:
            self._on_senders_flow(flow)
        self.wire.events.append(FlowReceived(self))
        if flow.echo:
            self._send_flow()

    def _on_receivers_flow(self, flow: FlowFrame) -> None:
        """Compute the credit anew from what the receiver knew (§2.6.7)."""
        known = flow.delivery_count
        if known is None:
            known = self.session.initial_counts.get(self.handle, 0)
        if flow.link_credit is not None:
            limit = serial_add(known, flow.link_credit)
            self.credit = max(0, serial_distance(limit, self.delivery_count))
        self.drain = bool(flow.drain)  # what is not said is false (§2.7.4)

    def _on_senders_flow(self, flow: FlowFrame) -> None:
        if flow.delivery_count is None:
            raise self.fault(Condition.INVALID_FIELD, "a sender's flow has no delivery-count")
        moved = serial_distance(flow.delivery_count, self.delivery_count)
        if moved > 0:
            if serial_distance(flow.delivery_count, self._limit) > 0:
                raise self.fault(
                    Condition.TRANSFER_LIMIT_EXCEEDED, "a delivery-count beyond all credit"
                )
            self.delivery_count = flow.delivery_count
            self.credit = max(0, self.credit - moved)
        if flow.available is not None:
            self.available = flow.available
        if self.drain and self.credit == 0:
            self.drain = False
            self._limit = self.delivery_count

    def on_detach(self, detach: DetachFrame) -> None:
        closed = bool(detach.closed)
        if closed or detach.error is not None:
            self.session.forget(self)
        self._drop_partial()
        if self.state in (LinkState.ATTACH_RECEIVED, LinkState.ATTACHED):
            self.state = LinkState.DETACH_RECEIVED
        else:
            must_close = closed and self.state is LinkState.DETACH_SENT and not self.sent_closed
            self.state = LinkState.DETACHED
            if must_close:
                self.session.reattach_to_close(self)
        self.wire.events.append(DetachReceived(self, closed, detach.error))

    def fail(self, fault: AmqpPeerFault) -> None:
        """Detach with the fault's condition; the endpoint is destroyed (§2.6.5)."""
        if self.state in (LinkState.FAILED, LinkState.DETACHED, LinkState.DETACH_SENT):
            return
        if not self._is_attach_sent:
            self._attach_without_terminus()
        was_detached = self.state is LinkState.DETACH_RECEIVED
        self._send_detach(closed=True, error=error_of(fault))
        self.state = LinkState.DETACHED if was_detached else LinkState.FAILED
        self.session.forget(self)
        self.wire.events.append(LinkFailed(self, fault))

    def end(self) -> None:
        """Be gone with the session."""
        self.state = LinkState.DETACHED
        self._drop_partial()
        self._release_name()

    def reattach_and_close(self) -> None:
        """Say once more that the link is, and that it is closed (§2.6.6)."""
        self._attach_without_terminus()
        self._send_detach(closed=True, error=None)
        self.state = LinkState.DETACH_SENT

    # What is sent.

    def _attach_without_terminus(self) -> None:
        """Neither terminus is there; that of the peer may not fit its frames."""
        self._send_attach(None, None, None, (), None)

    def _send_attach(
        self,
        source: SourceTerminus | None,
        target: TargetTerminus | Coordinator | None,
        unsettled: dict[bytes, DeliveryState | None] | None,
        offered_capabilities: tuple[str, ...],
        properties: dict[object, object] | None,
    ) -> None:
        is_sender = self.role is LinkRole.SENDER
        if is_sender:
            self.session.initial_counts[self.handle] = self.delivery_count
        self.wire.send(
            self.session.channel,
            AttachFrame(
                self.name,
                self.handle,
                self.role,
                self.snd_settle_mode,
                self.rcv_settle_mode,
                source,
                target,
                None if unsettled is None else dict(unsettled),
                self.incomplete_sent,
                self.delivery_count if is_sender else None,
                self.message_bytes_max or None,
                offered_capabilities,
                (),
                properties,
            ),
        )
        self._is_attach_sent = True

    def _send_detach(self, *, closed: bool, error: ErrorValue | None) -> None:
        self.sent_closed = closed
        self.session.drop_pending(self)
        self.wire.send(self.session.channel, DetachFrame(self.handle, closed or None, error))
        self.session.release_handle(self)
        self._drop_partial()
        self._release_name()
        if closed:
            self.session.forget(self)

    def _send_flow(self, *, echo: bool = False) -> None:
        self.session.send_flow(self, echo=echo)

    def _check_dynamic(self) -> None:
        terminus = self.source if self.role is LinkRole.SENDER else self.target
        if (
            isinstance(terminus, SourceTerminus | TargetTerminus)
            and terminus.dynamic
            and not terminus.address
        ):
            raise AmqpMisuse("a dynamic terminus is attached with the address of its node")

    def _drop_partial(self) -> None:
        if self.partial is not None:
            self.wire.partial_bytes -= self.partial.size
            self.partial = None

    def _release_name(self) -> None:
        key = (self.name, self.role)
        if self.wire.links.get(key) is self:
            del self.wire.links[key]
