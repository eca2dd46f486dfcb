"""A link that a client sends on: each message is answered when a quorum has it on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from quantum.broker.queues import NewMessage, QueueRefusal
from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpLink,
    AmqpPeerFault,
    DeliveryReceived,
    DeliveryState,
    ErrorValue,
    LinkState,
    OutgoingDelivery,
    RejectedOutcome,
    TransactionalState,
)
from quantum.protocols.amqp.session.addresses import NodeKind, read_address
from quantum.protocols.amqp.session.client_port import ClientPort
from quantum.protocols.amqp.session.message_head import address_in, read_message
from quantum.protocols.amqp.session.refusal_table import refusal_error, rejected

Done = Callable[[QueueRefusal], None]
Ensure = Callable[[bytes, Callable[[ErrorValue | None], None]], None]

CREDIT: Final = 1_000
"""What a sender may have on its way to the log."""
_ACCEPTED: Final = AcceptedOutcome()


@dataclass(frozen=True, slots=True)
class DurableSender:
    """The durable end of a sender's link, in this life of it."""

    link: bytes
    epoch: bytes


class IncomingLink:
    """Our end of a link to a queue; without a name each message names its own (`to`)."""

    def __init__(
        self,
        client: ClientPort,
        link: AmqpLink,
        queue: bytes | None,
        ensure: Ensure | None = None,
        durable: DurableSender | None = None,
    ) -> None:
        self._client = client
        self._link = link
        self._queue = queue
        self._ensure = ensure
        """How a queue that a message names is made; None: it is there."""
        self._open = 0
        self._durable = durable

    def begin(self) -> None:
        """Let the client send."""
        self._link.grant(CREDIT)

    def on_delivery(self, event: DeliveryReceived) -> None:
        if event.resume and event.tag in self._link.unsettled:
            self._answer(event, _ACCEPTED)  # the log has it
            return
        try:
            queue = self._queue if self._queue is not None else self._named(event)
            message = read_message(event.payload, event.message_format)
            message.sender = self._client.mark
        except AmqpPeerFault as fault:
            self._link.fail(fault)
            return
        if queue is None:
            self._answer(event, rejected(QueueRefusal.NO_QUEUE))
            return
        size = len(event.payload)
        self._open += 1
        self._client.count_pending(size)

        def done(refusal: QueueRefusal) -> None:
            self._open -= 1
            self._client.count_pending(-size)
            if refusal is QueueRefusal.FENCED:
                self.refuse(refusal_error(refusal))
                return
            self._answer(event, rejected(refusal) if refusal else _ACCEPTED)

        state = event.state
        if isinstance(state, TransactionalState):
            transactions = self._client.transactions
            transactions.post(state.txn_id, queue, message, self._ensure, done)
        elif self._durable is not None:
            message.link, message.epoch = self._durable.link, self._durable.epoch
            message.tag = event.tag
            self._client.home.enqueue(queue, message, done)
        elif self._ensure is None:
            self._client.home.enqueue(queue, message, done)
        else:
            self._enqueue_named(queue, message, done)

    def _enqueue_named(self, queue: bytes, message: NewMessage, done: Done) -> None:
        """Make the queue where there is none; messages to one queue keep their order."""
        assert self._ensure is not None
        home = self._client.home

        def ready(error: ErrorValue | None) -> None:
            if error is None:
                home.enqueue(queue, message, done)
            else:
                done(QueueRefusal.NO_QUEUE)

        self._ensure(queue, ready)

    def _named(self, event: DeliveryReceived) -> bytes | None:
        """Return the queue that a message names, if its sender may send there."""
        to = address_in(event.payload)
        address = None if to is None else read_address(to)
        if address is None or address.kind is not NodeKind.QUEUE or address.is_dead:
            return None
        name = address.name.encode()
        return name if self._client.may_send(name) else None

    def _answer(self, event: DeliveryReceived, state: DeliveryState) -> None:
        if not event.settled:
            if isinstance(event.state, TransactionalState) and not isinstance(
                state, RejectedOutcome
            ):
                state = TransactionalState(event.state.txn_id, _ACCEPTED)
            self._client.settle_later(self._link.session, event.delivery_id, state)
        self._top_up()

    def _top_up(self) -> None:
        """Grant anew when half is used and as much of it is in the log."""
        link = self._link
        if link.state is LinkState.ATTACHED and link.credit + self._open <= CREDIT // 2:
            link.grant(CREDIT - self._open)
            self._client.touch()

    def refuse(self, error: ErrorValue) -> None:
        if self._link.state is LinkState.ATTACHED:
            self._link.detach(error=error)
            self._client.touch()

    # A sender hears nothing of these.

    def on_disposition(
        self, deliveries: list[OutgoingDelivery], state: DeliveryState | None, *, settled: bool
    ) -> None:
        """Nothing is sent on this link."""

    def on_flow(self) -> None:
        """What is available at the sender changes nothing."""

    def pump(self) -> None:
        """Nothing is sent on this link."""

    def on_tick(self) -> None:
        """Nothing is due."""

    def closed(self, *, failed: bool) -> None:
        """What was sent before counts all the same."""
