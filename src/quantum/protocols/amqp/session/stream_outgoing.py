"""A link that a client reads a stream on: nothing is taken, each receiver has its own place."""

from __future__ import annotations

from typing import Final

from quantum.broker.queues import QueueEntry
from quantum.protocols.amqp.engine import (
    AmqpLink,
    Condition,
    DeliveryReceived,
    DeliveryState,
    ErrorValue,
    LinkState,
    OutgoingDelivery,
    SenderSettleMode,
    SessionState,
    TransactionalState,
)
from quantum.protocols.amqp.selectors import MessageFacts, Selector
from quantum.protocols.amqp.session.client_port import ClientPort
from quantum.protocols.amqp.session.outgoing import is_outcome
from quantum.protocols.amqp.session.stream_feed import StreamFeed, StreamMessage
from quantum.protocols.amqp.session.stream_filters import StreamStart

UNSETTLED_MAX: Final = 20_000
"""What a receiver may hold and say nothing of, before it is given no more."""
_LOOK_MS: Final = 1_000
"""How often is looked whether the stream is there and has more partitions."""
_SEEK_MS: Final = 100
"""How often is looked again where something could not be read."""
_SEEK_MS_MAX: Final = 30_000
"""For so long a node that has just begun may not know a stream."""


class StreamOutgoingLink:
    """Our end of a link from a stream (`LinkEnd`)."""

    def __init__(self, client: ClientPort, link: AmqpLink, selector: Selector | None) -> None:
        home = client.home
        self._client = client
        self._link = link
        self._selector = selector
        self._feed = StreamFeed(home.tenant.topics, home.readers, home.tenant.soon, self.pump)
        self._settles = link.snd_settle_mode is SenderSettleMode.SETTLED
        self._unsettled = 0
        self._began_ms = self._looked_ms = home.clock_ms()

    def begin(self, name: str, partition: int | None, start: StreamStart) -> None:
        """Let the receiver begin there."""
        self._feed.begin(name, partition, start)
        self.pump()

    def pump(self) -> None:
        """Send what there is, as far as credit, window and wire allow."""
        link, feed = self._link, self._feed
        while link.is_sendable and self._client.writable and self._unsettled < UNSETTLED_MAX:
            message = feed.take()
            if message is None:
                break
            if self._is_wanted(message):
                self._send(message)
        if link.drain and link.credit > 0 and feed.is_at_end and not link.waiting:
            link.drained()
        if feed.failure is not None:
            self._end(feed.failure)
        self._client.touch()

    def _is_wanted(self, message: StreamMessage) -> bool:
        if self._selector is None:
            return True
        entry = QueueEntry(message.offset, len(message.payload), 0)
        return self._selector.accepts(MessageFacts(entry, message.payload))

    def _send(self, message: StreamMessage) -> None:
        link, payload = self._link, message.payload
        limit = link.peer_message_bytes_max
        if limit and len(payload) > limit:
            why = f"the message at offset {message.offset} is larger than its receiver takes"
            self._end(ErrorValue(Condition.MESSAGE_SIZE_EXCEEDED, why))
            return
        tag = message.partition.to_bytes(4, "big") + message.offset.to_bytes(8, "big")
        link.send(tag, payload, settled=self._settles)
        if not self._settles:
            self._unsettled += 1

    def _end(self, error: ErrorValue) -> None:
        self._feed.close()
        if self._link.state is LinkState.ATTACHED:
            self._link.detach(error=error)

    # What the client says.

    def on_flow(self) -> None:
        self.pump()

    def on_disposition(
        self, deliveries: list[OutgoingDelivery], state: DeliveryState | None, *, settled: bool
    ) -> None:
        """Count what is settled: whatever is said of a message, the stream keeps it."""
        session = self._link.session
        if settled:
            self._unsettled -= len(deliveries)
        elif _is_said(state) and session.state is SessionState.MAPPED:
            open_ids = [each.delivery_id for each in deliveries]
            open_ids = [each for each in open_ids if each in session.outgoing]
            session.settle_sent(open_ids, state)
            self._unsettled -= len(open_ids)
        self.pump()

    def on_delivery(self, event: DeliveryReceived) -> None:
        """Nothing is received on this link."""

    # Time.

    def on_tick(self) -> None:
        """Look again now and then: soon where something could not be read."""
        now_ms, feed = self._client.home.clock_ms(), self._feed
        wait_ms = _LOOK_MS if feed.is_at_end else _SEEK_MS
        if now_ms - self._looked_ms < wait_ms:
            return
        self._looked_ms = now_ms
        if self._link.is_sendable or not feed.is_found:
            feed.again()
        if not feed.is_found and now_ms - self._began_ms > _SEEK_MS_MAX:
            why = "this node does not know yet which streams there are"
            self._end(ErrorValue(Condition.DETACH_FORCED, why))
        if feed.failure is not None:
            self.pump()

    def closed(self, *, failed: bool) -> None:  # noqa: ARG002  # nobody holds anything
        self._feed.close()


def _is_said(state: DeliveryState | None) -> bool:
    """Say whether a client is done with a delivery, and waits for us to settle it."""
    return is_outcome(state) or isinstance(state, TransactionalState)
