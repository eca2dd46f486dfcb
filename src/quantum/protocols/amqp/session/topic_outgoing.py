"""A link that a client receives from topics on: a session of the broker is behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quantum.broker.queues import DELIVERIES_MAX, QueueEntry
from quantum.protocols.amqp.engine import (
    AmqpLink,
    Condition,
    DeliveryReceived,
    DeliveryState,
    ErrorValue,
    LinkState,
    ModifiedOutcome,
    OutgoingDelivery,
    ReleasedOutcome,
    SenderSettleMode,
    SessionState,
    TransactionalState,
)
from quantum.protocols.amqp.selectors import MessageFacts, Selector
from quantum.protocols.amqp.session.client_port import ClientPort
from quantum.protocols.amqp.session.message_records import sender_in
from quantum.protocols.amqp.session.outgoing import is_outcome
from quantum.protocols.amqp.session.topic_messages import message_for
from quantum.protocols.amqp.session.topic_port import TopicDelivery, TopicSubscription

_TAG_BYTES: Final = 8
_SENT_AT_ONCE: Final = 200


class TopicOutgoingLink:
    """Our end of a link from topics (`LinkEnd`, `TopicReceiver`)."""

    def __init__(
        self,
        client: ClientPort,
        link: AmqpLink,
        selector: Selector | None,
        not_from: bytes,
        attach: Callable[[], None],
    ) -> None:
        self._client = client
        self._link = link
        self._selector = selector
        self._not_from = not_from
        """Whose messages are left out; empty: nobody's."""
        self._attach = attach
        """Answers the attach, when the broker has the subscription."""
        self._settles = link.snd_settle_mode is SenderSettleMode.SETTLED
        self.subscription: TopicSubscription | None = None
        self._held: dict[int, TopicDelivery] = {}
        self._is_probing = False
        self._is_due = False

    # What the session says.

    def ready(self) -> None:
        if self._link.state is LinkState.ATTACH_RECEIVED and self._client.is_live:
            self._attach()
            self._client.touch()

    def arrived(self) -> None:
        """Send it when this call is over, with what else came."""
        if not self._is_due:
            self._is_due = True
            self._client.home.tenant.soon(self._send_due)

    def _send_due(self) -> None:
        self._is_due = False
        self.pump()

    def failed(self, error: ErrorValue) -> None:
        if not self._client.is_live:
            return
        if self._link.state is LinkState.ATTACH_RECEIVED:
            self._link.refuse(error)
        elif self._link.state is LinkState.ATTACHED:
            self._link.detach(error=error, closed=error.condition != Condition.DETACH_FORCED)
        self._client.touch()

    # Sending.

    def on_flow(self) -> None:
        self.pump()

    def pump(self) -> None:
        """Send what there is, as far as credit, window and wire allow."""
        link, subscription = self._link, self.subscription
        if subscription is None:
            return
        for _ in range(_SENT_AT_ONCE):
            is_possible = link.is_sendable and self._client.writable
            delivery = subscription.take() if is_possible else None
            if delivery is None:
                break
            self._send(subscription, delivery)
        else:
            self.arrived()  # others are served before the rest
        if link.state is LinkState.ATTACHED and link.drain and link.credit > 0:
            self._drain(subscription)
        else:
            self._is_probing = False
        self._client.touch()

    def _drain(self, subscription: TopicSubscription) -> None:
        """Give credit back when nothing is on its way: the broker is asked first."""
        link = self._link
        if link.waiting or not link.session.has_room or not self._client.writable:
            return
        if self._is_probing and subscription.is_drained:
            self._is_probing = False
            link.drained()
        else:
            self._is_probing = True
            subscription.probe()

    def _send(self, subscription: TopicSubscription, delivery: TopicDelivery) -> None:
        link, payload = self._link, message_for(delivery)
        limit = link.peer_message_bytes_max
        is_too_large = bool(limit) and len(payload) > limit
        if is_too_large or not self._is_wanted(delivery, payload):
            subscription.settle(delivery.number)
            return
        tag = delivery.number.to_bytes(_TAG_BYTES, "big")
        link.send(tag, payload, settled=self._settles)
        if self._settles:
            subscription.settle(delivery.number)
        else:
            self._held[delivery.number] = delivery

    def _is_wanted(self, delivery: TopicDelivery, payload: bytes) -> bool:
        if self._not_from and sender_in(delivery.record) == self._not_from:
            return False
        if self._selector is None:
            return True
        entry = QueueEntry(delivery.number, len(payload), 0)
        return self._selector.accepts(MessageFacts(entry, payload))

    # What the client says.

    def on_disposition(
        self, deliveries: list[OutgoingDelivery], state: DeliveryState | None, *, settled: bool
    ) -> None:
        if not settled and not (is_outcome(state) or isinstance(state, TransactionalState)):
            return
        outcome = state.outcome if isinstance(state, TransactionalState) else state
        again = []
        for each in deliveries:
            found = self._held.pop(int.from_bytes(each.tag, "big"), None)
            if found is None or self.subscription is None:
                continue
            if self._is_wanted_again(found, outcome):
                again.append(found)
            else:
                self.subscription.settle(found.number)
        if self.subscription is not None:
            for found in reversed(again):
                self.subscription.give_back(found)
        session = self._link.session
        if not settled and session.state is SessionState.MAPPED:
            open_ids = [each.delivery_id for each in deliveries]
            session.settle_sent([each for each in open_ids if each in session.outgoing], state)
        self.pump()

    def _is_wanted_again(self, delivery: TopicDelivery, state: DeliveryState | None) -> bool:
        """Say whether a receiver is given a message again: nobody else waits for it."""
        if isinstance(state, ModifiedOutcome):
            delivery.failures += 1 if state.delivery_failed else 0
            return not state.undeliverable_here and delivery.failures < DELIVERIES_MAX
        return isinstance(state, ReleasedOutcome)

    def on_delivery(self, event: DeliveryReceived) -> None:
        """Nothing is received on this link."""

    def on_tick(self) -> None:
        """Ask again whether something is on its way, where no answer came."""
        if self._is_probing:
            self.pump()

    def closed(self, *, failed: bool) -> None:
        """Who made it lets go of its session: it knows whether that is wanted any more."""
