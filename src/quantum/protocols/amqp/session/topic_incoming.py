"""A link that a client publishes to a topic on: each message is answered when a quorum has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpLink,
    AmqpPeerFault,
    DeliveryReceived,
    ErrorValue,
    RejectedOutcome,
)
from quantum.protocols.amqp.session.client_port import ClientPort
from quantum.protocols.amqp.session.incoming_end import IncomingEnd
from quantum.protocols.amqp.session.topic_messages import publish_from
from quantum.protocols.amqp.session.topic_port import FATE_UNKNOWN, TopicPublisher

_ACCEPTED: Final = AcceptedOutcome()


class TopicIncomingLink(IncomingEnd):
    """Our end of a link to a topic (`LinkEnd`)."""

    def __init__(
        self,
        client: ClientPort,
        link: AmqpLink,
        topic: bytes,
        publisher: Callable[[], TopicPublisher],
    ) -> None:
        super().__init__(client, link)
        self._topic = topic
        self._publisher = publisher
        """Gives the connection's way to topics, which its links share."""

    def on_delivery(self, event: DeliveryReceived) -> None:
        error = self._refuse(event, "topics")
        if error is not None:
            self._answer(event, RejectedOutcome(error))
            return
        client = self._client
        try:
            now_ms = client.home.tenant.now_ms()
            message = publish_from(event.payload, client.mark, self._topic, now_ms)
        except AmqpPeerFault as fault:
            self._link.fail(fault)
            return
        size = len(event.payload)
        self._open += 1
        client.count_pending(size)

        def done(error: ErrorValue | None) -> None:
            self._open -= 1
            client.count_pending(-size)
            if error is FATE_UNKNOWN:
                self._end(error)  # it stays unsettled: nobody may say what is not known
            else:
                self._answer(event, _ACCEPTED if error is None else RejectedOutcome(error))

        self._publisher().publish(message, done)
