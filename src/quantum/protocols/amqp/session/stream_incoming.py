"""A link that a client appends to a stream on: each message is answered when a quorum has it."""

from __future__ import annotations

from typing import Final

from quantum.broker.streams import StreamRefusal
from quantum.mesh.topic_views import TopicView
from quantum.model.records import Record
from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpLink,
    AmqpPeerFault,
    Condition,
    DeliveryReceived,
    DeliveryState,
    ErrorValue,
    LinkState,
    OutgoingDelivery,
    RejectedOutcome,
    TransactionalState,
)
from quantum.protocols.amqp.session.client_port import ClientPort
from quantum.protocols.amqp.session.incoming import CREDIT
from quantum.protocols.amqp.session.message_records import record_of
from quantum.protocols.amqp.session.refusal_table import stream_error
from quantum.protocols.amqp.session.stream_feed import GONE

_ACCEPTED: Final = AcceptedOutcome()
_FORMAT: Final = ErrorValue(
    Condition.NOT_IMPLEMENTED, "a stream takes messages of the standard's own format alone"
)
_TRANSACTION: Final = ErrorValue(
    Condition.NOT_IMPLEMENTED, "streams take no part in transactions: send it without one"
)


class StreamIncomingLink:
    """Our end of a link to a stream (`LinkEnd`)."""

    def __init__(
        self, client: ClientPort, link: AmqpLink, topic: TopicView, partition: int | None
    ) -> None:
        self._client = client
        self._link = link
        self._name = topic.name
        self._uuid = topic.uuid
        self._partition = partition
        self._open = 0

    def begin(self) -> None:
        """Let the client send."""
        self._link.grant(CREDIT)

    def on_delivery(self, event: DeliveryReceived) -> None:
        error = self._refuse(event)
        if error is not None:
            self._answer(event, RejectedOutcome(error))
            return
        home = self._client.home
        topic = home.tenant.topics.topic(self._name)
        if topic is None or topic.uuid != self._uuid:
            self._answer(event, RejectedOutcome(GONE))
            self._end(GONE)
            return
        try:
            record = record_of(event.payload, self._client.mark, home.tenant.now_ms())
        except AmqpPeerFault as fault:
            self._link.fail(fault)
            return
        self._append(event, topic, record)

    def _append(self, event: DeliveryReceived, topic: TopicView, record: Record) -> None:
        size = len(event.payload)
        self._open += 1
        self._client.count_pending(size)

        def done(refusal: StreamRefusal | None) -> None:
            self._open -= 1
            self._client.count_pending(-size)
            rejected = None if refusal is None else RejectedOutcome(stream_error(refusal))
            self._answer(event, rejected or _ACCEPTED)

        partition = self._place(topic, record)
        self._client.home.streams.add(topic, partition, record, size, done)

    def _place(self, topic: TopicView, record: Record) -> int:
        """Choose the partition of a record: without a key all of one link go to the same."""
        if self._partition is not None:
            return self._partition
        key = self._link.name.encode() if record.key is None else record.key
        return self._client.home.streams.partition_of(topic, key)

    def _refuse(self, event: DeliveryReceived) -> ErrorValue | None:
        if event.message_format:
            return _FORMAT
        return _TRANSACTION if isinstance(event.state, TransactionalState) else None

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
