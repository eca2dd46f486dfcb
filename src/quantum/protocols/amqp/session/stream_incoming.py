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
    DeliveryReceived,
    RejectedOutcome,
)
from quantum.protocols.amqp.session.client_port import ClientPort
from quantum.protocols.amqp.session.incoming_end import IncomingEnd
from quantum.protocols.amqp.session.message_records import record_of
from quantum.protocols.amqp.session.refusal_table import stream_error
from quantum.protocols.amqp.session.stream_feed import GONE

_ACCEPTED: Final = AcceptedOutcome()


class StreamIncomingLink(IncomingEnd):
    """Our end of a link to a stream (`LinkEnd`)."""

    def __init__(
        self, client: ClientPort, link: AmqpLink, topic: TopicView, partition: int | None
    ) -> None:
        super().__init__(client, link)
        self._name = topic.name
        self._uuid = topic.uuid
        self._partition = partition

    def on_delivery(self, event: DeliveryReceived) -> None:
        error = self._refuse(event, "streams")
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
