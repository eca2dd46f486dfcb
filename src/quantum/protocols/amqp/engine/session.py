"""One session: windows, handles, and the deliveries that are not settled (§2.5).

Both windows count transfer frames. Ours is opened again as the driver pulls: frames that were
turned into events are room for new ones, so a driver that does not pull stops its peer.
"""

from __future__ import annotations

from typing import Final

from quantum.protocols.amqp.engine import hot
from quantum.protocols.amqp.engine.composites import (
    AttachFrame,
    BeginFrame,
    DeliveryState,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    ErrorValue,
    FlowFrame,
)
from quantum.protocols.amqp.engine.ends import AmqpLink, AmqpSession, OutgoingDelivery
from quantum.protocols.amqp.engine.errors import (
    AmqpMisuse,
    AmqpPeerFault,
    Condition,
    FaultScope,
    FramingFault,
    ProtocolFault,
)
from quantum.protocols.amqp.engine.events import (
    AttachReceived,
    DispositionReceived,
    EndReceived,
    SenderDispositionReceived,
    SessionFailed,
    WindowOpened,
)
from quantum.protocols.amqp.engine.fields import encode_state
from quantum.protocols.amqp.engine.link import EngineLink
from quantum.protocols.amqp.engine.phases import LinkState, SessionState
from quantum.protocols.amqp.engine.receiving import take_transfer
from quantum.protocols.amqp.engine.sending import (
    HEAD_BYTES,
    PendingDelivery,
    next_frame,
    next_sendable,
)
from quantum.protocols.amqp.engine.settings import WINDOW_MAX
from quantum.protocols.amqp.engine.terminus import check_attach
from quantum.protocols.amqp.engine.types import (
    LinkRole,
    numbers_in_range,
    serial_add,
    serial_distance,
)
from quantum.protocols.amqp.engine.wire import FrameWriter, error_of

ATTACH_BYTES: Final = 128
"""What an attach without termini has at most beside its name."""


class EngineSession(AmqpSession):
    """The machine of one session."""

    def __init__(
        self, wire: FrameWriter, begin: BeginFrame, remote_channel: int, channel: int
    ) -> None:
        self.wire = wire
        self.remote = begin
        self.remote_channel = remote_channel
        self.channel = channel
        """The number that we call it by."""
        self.state = SessionState.BEGIN_RECEIVED
        self.next_incoming_id = begin.next_outgoing_id
        self.incoming_window = 0
        """Nothing may be transferred before our begin says how much."""
        self.next_outgoing_id = 0
        self.outgoing_window = WINDOW_MAX
        self.remote_incoming_window = begin.incoming_window
        self.remote_outgoing_window = begin.outgoing_window
        self.next_delivery_id = 0
        self.incoming: dict[int, tuple[AmqpLink, bytes, bool]] = {}
        """Received and unsettled: link, tag, and whether the sender settles first."""
        self.outgoing: dict[int, OutgoingDelivery] = {}
        self.initial_counts: dict[int, int] = {}
        """The delivery-count that each sender of ours began with, by our handle."""
        self._by_handle: dict[int, EngineLink] = {}
        self._handles: set[int] = set()
        self._closing: dict[tuple[str, LinkRole], EngineLink] = {}
        self._pending: list[PendingDelivery] = []
        """What has not left whole, first come first; short, if the driver asks `is_sendable`."""
        self._window_low = wire.settings.incoming_window // 2

    @property
    def has_room(self) -> bool:
        """Whether a transfer would leave at once: what waits for credit is in nobody's way."""
        return self.remote_incoming_window > 0 and next_sendable(self._pending) is None

    @property
    def is_deaf(self) -> bool:
        """Whether all but the peer's end is discarded (§2.5.5)."""
        return self.state in (SessionState.END_SENT, SessionState.DISCARDING)

    @property
    def links(self) -> list[AmqpLink]:
        """The links whose handle the peer has in use."""
        return list(self._by_handle.values())

    # What the driver does.

    def begin(self, properties: dict[object, object] | None = None) -> None:
        """Answer a begin."""
        if self.state is not SessionState.BEGIN_RECEIVED:
            raise AmqpMisuse("a session is begun once", state=self.state.value)
        self._send_begin(properties)
        self.state = SessionState.MAPPED

    def end(self, error: ErrorValue | None = None) -> None:
        """End the session, or answer the peer's end."""
        if self.state in (SessionState.END_SENT, SessionState.DISCARDING, SessionState.UNMAPPED):
            raise AmqpMisuse("a session is ended once", state=self.state.value)
        self._begin_if_unbegun()
        is_answer = self.state is SessionState.END_RECEIVED
        self.wire.send(self.channel, EndFrame(error))
        self._drop_links()
        if is_answer:
            self.state = SessionState.UNMAPPED
        else:
            self.state = SessionState.DISCARDING if error else SessionState.END_SENT

    def settle(
        self, delivery_ids: list[int], state: DeliveryState | None, *, settled: bool = True
    ) -> None:
        """Tell the sender the state of deliveries, in one frame for each run of numbers.

        Those of which the sender settles first (rcv-settle-mode second) are told unsettled, and
        wait for its disposition. Raises AmqpMisuse, and tells nothing, if one is not waiting.
        """
        self._check_mapped()
        raw = encode_state(state)
        first: list[int] = []
        second: list[int] = []
        for each in delivery_ids:
            found = self.incoming.get(each)
            if found is None:
                raise AmqpMisuse("no delivery of this number is waiting", id=each)
            (second if found[2] or not settled else first).append(each)
        for each in first:
            del self.incoming[each]
        out, receiver = self.wire.out, LinkRole.RECEIVER
        out.append(hot.encode_dispositions(self.channel, receiver, first, True, raw))  # noqa: FBT003
        out.append(hot.encode_dispositions(self.channel, receiver, second, False, raw))  # noqa: FBT003

    def settle_sent(self, delivery_ids: list[int], state: DeliveryState | None) -> None:
        """Settle deliveries that we sent, as a receiver of mode second waits for."""
        self._check_mapped()
        for each in delivery_ids:
            if each not in self.outgoing:
                raise AmqpMisuse("no delivery of this number is unsettled", id=each)
        for each in delivery_ids:
            del self.outgoing[each]
        raw = encode_state(state)
        self.wire.out.append(
            hot.encode_dispositions(self.channel, LinkRole.SENDER, delivery_ids, True, raw)  # noqa: FBT003
        )

    def abort(self, delivery: OutgoingDelivery) -> bool:
        """Give up a delivery that has not left whole; False where it has (§2.6.14)."""
        for pending in self._pending:
            if pending.delivery is delivery:
                self.outgoing.pop(delivery.delivery_id, None)
                pending.is_aborted = True
                if not pending.is_begun:
                    self._drop(pending)
                self._flush()
                return True
        return False

    def send_flow(self, link: AmqpLink | None = None, *, echo: bool = False) -> None:
        """Tell the peer our windows, and the state of a link."""
        flow = FlowFrame(
            self.next_incoming_id,
            self.incoming_window,
            self.next_outgoing_id,
            self.outgoing_window,
            echo=True if echo else None,
        )
        if link is not None:
            flow.handle = link.handle
            flow.delivery_count = link.delivery_count
            flow.link_credit = link.credit
            flow.drain = True if link.drain else None
            if link.role is LinkRole.SENDER:
                flow.available = link.available
        self.wire.send(self.channel, flow)

    # What a link asks for.

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
        delivery = OutgoingDelivery(link, -1, tag)
        raw = encode_state(state)
        flags = (hot.SETTLED if settled else 0) | (hot.RESUME if resume else 0)
        wire = self.wire
        size = len(payload) + HEAD_BYTES + len(tag) + len(raw)
        is_next = not self._pending or (link.waiting == 0 and next_sendable(self._pending) is None)
        if self.remote_incoming_window > 0 and is_next and size <= wire.peer_frame_bytes_max:
            number = self._number(delivery, settled)
            head = hot.transfer_head(
                self.channel, link.handle, number, tag, message_format, flags, raw, len(payload)
            )
            wire.out.append(head)
            wire.out.append(payload)
            self._count_outgoing()
            return delivery
        self._pending.append(PendingDelivery(delivery, message_format, flags, raw, payload))
        link.waiting += 1
        self._flush()
        return delivery

    def forget(self, link: AmqpLink) -> None:
        """Forget the deliveries of a link that is closed or failed."""
        for number in [each for each, found in self.incoming.items() if found[0] is link]:
            del self.incoming[number]
        for number in [each for each, sent in self.outgoing.items() if sent.link is link]:
            del self.outgoing[number]

    def drop_pending(self, link: AmqpLink) -> None:
        """Give up what has not left of a link that is being detached, begun or not."""
        self._pending = [each for each in self._pending if each.delivery.link is not link]
        link.waiting = 0

    def release_handle(self, link: AmqpLink) -> None:
        self._handles.discard(link.handle)
        self.initial_counts.pop(link.handle, None)

    def reattach_to_close(self, link: AmqpLink) -> None:
        """Attach and close what the peer closed while we only detached (§2.6.6)."""
        again = EngineLink(self.wire, self, link.remote, self._free_handle())
        self._closing[link.name, link.role] = again
        again.reattach_and_close()

    # What the connection passes on.

    def on_transfer(self, row: hot.Row, buffer: bytes) -> None:
        self.next_incoming_id = (self.next_incoming_id + 1) & 0xFFFFFFFF
        self.incoming_window -= 1
        if self.incoming_window < 0:
            raise ProtocolFault(
                Condition.WINDOW_VIOLATION, "more transfers than the window has", FaultScope.SESSION
            )
        if self.remote_outgoing_window > 0:
            self.remote_outgoing_window -= 1
        if self.incoming_window <= self._window_low:
            self.incoming_window = self.wire.settings.incoming_window
            self.send_flow()
        link = self._by_handle.get(row[2])
        if link is None:
            raise _unattached(row[2])
        try:
            if link.takes_transfer():
                take_transfer(link, row, buffer)
        except AmqpPeerFault as fault:
            self._contain(link, fault)

    def on_disposition(
        self, role: int, first: int, last: int, settled: bool, state: DeliveryState | None
    ) -> None:
        """Take a disposition; `role` is that of the link end that speaks."""
        width = serial_distance(last, first) + 1
        if width < 1:
            raise ProtocolFault(
                Condition.INVALID_FIELD, "a disposition ends before it begins", FaultScope.SESSION
            )
        if role == LinkRole.RECEIVER:
            numbers = numbers_in_range(self.outgoing, first, width)
            deliveries = [self.outgoing[each] for each in numbers]
            if settled:
                for each in numbers:
                    del self.outgoing[each]
            if deliveries:
                self.wire.events.append(DispositionReceived(self, deliveries, state, settled))
            return
        numbers = numbers_in_range(self.incoming, first, width)
        if settled:
            for each in numbers:
                del self.incoming[each]
        if numbers:
            self.wire.events.append(SenderDispositionReceived(self, numbers, state, settled))

    def on_disposition_frame(self, body: DispositionFrame) -> None:
        last = body.first if body.last is None else body.last
        self.on_disposition(body.role, body.first, last, bool(body.settled), body.state)

    def on_flow(self, flow: FlowFrame) -> None:
        """Take the peer's windows, then its state of a link (§2.5.6)."""
        self._check_flow(flow)
        had_room = self.has_room
        # Unset, it has not heard our begin: what it knows is where that begins (§2.5.6).
        known = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        room = serial_distance(serial_add(known, flow.incoming_window), self.next_outgoing_id)
        self.remote_incoming_window = max(0, room)
        self.next_incoming_id = flow.next_outgoing_id
        self.remote_outgoing_window = flow.outgoing_window
        if flow.handle is not None:
            self._on_link_flow(flow, flow.handle)
        elif flow.echo:
            self.send_flow()
        self._flush()
        if not had_room and self.has_room:
            self.wire.events.append(WindowOpened(self))

    def _on_link_flow(self, flow: FlowFrame, handle: int) -> None:
        link = self._by_handle.get(handle)
        if link is None:
            raise _unattached(handle)
        try:
            link.on_flow(flow)
        except AmqpPeerFault as fault:
            self._contain(link, fault)

    def _check_flow(self, flow: FlowFrame) -> None:
        alone = (flow.delivery_count, flow.link_credit, flow.available, flow.drain)
        if flow.handle is None and any(each is not None for each in alone):
            raise ProtocolFault(
                Condition.INVALID_FIELD,
                "a flow has a link's state and no handle",
                FaultScope.SESSION,
            )

    def on_attach(self, attach: AttachFrame) -> None:
        if attach.handle > self.wire.settings.handle_max:
            raise FramingFault("a handle is out of range", handle=attach.handle)
        if attach.handle in self._by_handle:
            raise ProtocolFault(
                Condition.HANDLE_IN_USE, "a handle is attached already", handle=attach.handle
            )
        if len(attach.name.encode()) + ATTACH_BYTES > self.wire.peer_frame_bytes_max:
            raise ProtocolFault(
                Condition.FRAME_SIZE_TOO_SMALL,
                "a link's name fits no frame back",
                FaultScope.SESSION,
            )
        role = LinkRole.RECEIVER if attach.role is LinkRole.SENDER else LinkRole.SENDER
        closing = self._closing.pop((attach.name, role), None)
        if closing is not None and attach.unsettled is None:
            self._by_handle[attach.handle] = closing
            return
        link = EngineLink(self.wire, self, attach, self._free_handle())
        self._by_handle[attach.handle] = link
        self._steal(link)
        self.wire.links[link.name, link.role] = link
        try:
            check_attach(link, attach)
        except AmqpPeerFault as fault:
            self._contain(link, fault)
            return
        self.wire.events.append(AttachReceived(link, attach))

    def on_detach(self, detach: DetachFrame) -> None:
        link = self._by_handle.pop(detach.handle, None)
        if link is None:
            raise _unattached(detach.handle)
        link.on_detach(detach)

    def on_end(self, end: EndFrame) -> None:
        """Take the peer's end: its links are gone, whatever state they were in."""
        self._drop_links()
        if self.state in (SessionState.END_SENT, SessionState.DISCARDING):
            self.state = SessionState.UNMAPPED
        else:
            self._begin_if_unbegun()
            self.state = SessionState.END_RECEIVED
        self.wire.events.append(EndReceived(self, end.error))

    def drop(self) -> None:
        """Be gone with the connection."""
        self._drop_links()
        self.state = SessionState.UNMAPPED

    def fail(self, fault: AmqpPeerFault) -> None:
        """End the session with the fault's condition, and discard what follows (§2.5.4)."""
        self._begin_if_unbegun()
        self.wire.send(self.channel, EndFrame(error_of(fault)))
        self._drop_links()
        self.state = SessionState.DISCARDING
        self.wire.events.append(SessionFailed(self, fault))

    # Inside.

    def _send_begin(self, properties: dict[object, object] | None = None) -> None:
        settings = self.wire.settings
        self.wire.send(
            self.channel,
            BeginFrame(
                self.remote_channel,
                self.next_outgoing_id,
                settings.incoming_window,
                self.outgoing_window,
                settings.handle_max,
                properties=properties,
            ),
        )
        self.incoming_window = settings.incoming_window

    def _begin_if_unbegun(self) -> None:
        if self.state is SessionState.BEGIN_RECEIVED:
            self._send_begin()
            self.state = SessionState.MAPPED

    def _check_mapped(self) -> None:
        if self.state is not SessionState.MAPPED:
            raise AmqpMisuse("the session is not mapped", state=self.state.value)

    def _contain(self, link: AmqpLink, fault: AmqpPeerFault) -> None:
        if fault.scope is not FaultScope.LINK:
            raise fault
        link.fail(fault)

    def _steal(self, link: AmqpLink) -> None:
        """Detach the link of the same name that is attached: the newer one has it (§2.6.1)."""
        older = self.wire.links.get((link.name, link.role))
        if older is not None and older.state in (LinkState.ATTACHED, LinkState.ATTACH_RECEIVED):
            older.fail(older.fault(Condition.STOLEN, "the link was attached anew"))

    def _free_handle(self) -> int:
        handle = 0
        while handle in self._handles:
            handle += 1
        if handle > self.remote.handle_max:
            raise ProtocolFault(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                "more links than the peer's handles",
                FaultScope.SESSION,
            )
        self._handles.add(handle)
        return handle

    def _drop_links(self) -> None:
        for link in self._by_handle.values():
            link.end()
        self._by_handle.clear()
        self._handles.clear()
        self._closing.clear()
        self._pending.clear()
        self.incoming.clear()
        self.outgoing.clear()

    def _count_outgoing(self) -> None:
        self.next_outgoing_id = (self.next_outgoing_id + 1) & 0xFFFFFFFF
        self.remote_incoming_window -= 1

    def _flush(self) -> None:
        """Send what waits, first come first, as far as the peer's window and credit go."""
        while self.remote_incoming_window > 0:
            pending = next_sendable(self._pending)
            if pending is None:
                return
            if not pending.is_begun:
                self._number(pending.delivery, bool(pending.flags & hot.SETTLED))
                pending.delivery.link.waiting -= 1
            self.wire.out += next_frame(pending, self.channel, self.wire.peer_frame_bytes_max)
            self._count_outgoing()
            if pending.is_done:
                self._pending.remove(pending)

    def _number(self, delivery: OutgoingDelivery, settled: bool) -> int:
        delivery.delivery_id = number = self.next_delivery_id
        self.next_delivery_id = (number + 1) & 0xFFFFFFFF
        delivery.link.spend_credit()
        if not settled:
            self.outgoing[number] = delivery
        return number

    def _drop(self, pending: PendingDelivery) -> None:
        self._pending.remove(pending)
        pending.delivery.link.waiting -= 1


def _unattached(handle: int) -> AmqpPeerFault:
    return ProtocolFault(
        Condition.UNATTACHED_HANDLE, "a handle is not attached", FaultScope.SESSION, handle=handle
    )
