"""The link that controls transactions: the engine tells of declares and discharges."""

from __future__ import annotations

from typing import Final

from quantum.protocols.amqp.engine import (
    AmqpLink,
    DeliveryReceived,
    DeliveryState,
    LinkState,
    OutgoingDelivery,
)

_CREDIT: Final = 100


class CoordinatorLink:
    """Our end of one."""

    def __init__(self, link: AmqpLink) -> None:
        self._link = link

    def begin(self) -> None:
        self._link.grant(_CREDIT)

    def on_tick(self) -> None:
        """Let the client go on declaring."""
        if self._link.state is LinkState.ATTACHED and self._link.credit < _CREDIT // 2:
            self._link.grant(_CREDIT)

    def on_delivery(self, event: DeliveryReceived) -> None:
        """Declares and discharges are events of their own."""

    def on_disposition(
        self, deliveries: list[OutgoingDelivery], state: DeliveryState | None, *, settled: bool
    ) -> None:
        """Nothing is sent on this link."""

    def on_flow(self) -> None:
        """What is available at the client changes nothing."""

    def pump(self) -> None:
        """Nothing is sent on this link."""

    def closed(self, *, failed: bool) -> None:
        """Transactions that are open are rolled back in time."""
