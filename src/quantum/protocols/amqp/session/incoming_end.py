"""What every link that a client publishes or appends on does: credit, answers, and its end."""

from __future__ import annotations

from quantum.protocols.amqp.engine import (
    AmqpLink,
    Condition,
    DeliveryReceived,
    DeliveryState,
    ErrorValue,
    LinkState,
    OutgoingDelivery,
    TransactionalState,
)
from quantum.protocols.amqp.session.client_port import ClientPort
from quantum.protocols.amqp.session.incoming import CREDIT


class IncomingEnd:
    """Our end of a link to something that is no queue."""

    def __init__(self, client: ClientPort, link: AmqpLink) -> None:
        self._client = client
        self._link = link
        self._open = 0
        """What is on its way to the log."""

    def begin(self) -> None:
        """Let the client send."""
        self._link.grant(CREDIT)

    def _refuse(self, event: DeliveryReceived, whose: str) -> ErrorValue | None:
        """Say why a delivery cannot be taken, whatever is in it."""
        if event.message_format:
            why = f"{whose} take messages of the standard's own format alone"
            return ErrorValue(Condition.NOT_IMPLEMENTED, why)
        if isinstance(event.state, TransactionalState):
            why = f"{whose} take no part in transactions: send it without one"
            return ErrorValue(Condition.NOT_IMPLEMENTED, why)
        return None

    def _answer(self, event: DeliveryReceived, state: DeliveryState) -> None:
        if not event.settled:
            self._client.settle_later(self._link.session, event.delivery_id, state)
        link = self._link
        if link.state is LinkState.ATTACHED and link.credit + self._open <= CREDIT // 2:
            link.grant(CREDIT - self._open)
            self._client.touch()

    def _end(self, error: ErrorValue) -> None:
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
