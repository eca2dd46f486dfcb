"""What AMQP clients send to topics, published by sessions of the broker at QoS 2.

A connection has one session for each partition that it sends to, in that very partition: a publish
is one entry of its log, with the memory that it was taken (`PublishOnce`). After a break, what had
no answer is said again under its packet id, and counts once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from quantum.node.topic_session import SessionTerms, TopicSession, error_of
from quantum.protocols.amqp.engine import Condition, ErrorValue
from quantum.protocols.amqp.session.topic_port import (
    FATE_UNKNOWN,
    PublishDone,
    TopicPerson,
    TopicPublish,
)
from quantum.protocols.mqtt.codec import (
    PACKET_ID_MAX,
    Connack,
    MqttError,
    Packet,
    PacketId,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
)
from quantum.protocols.mqtt.codec.neutral_publishes import publish_of
from quantum.protocols.mqtt.session.delivery import forwardable

if TYPE_CHECKING:
    from quantum.node.service import BrokerService

_EXPIRY_SECONDS: Final = 300
"""What stays of a connection whose node is gone, and for how long."""
_WINDOW: Final = 256
_FULL_MS_MAX: Final = 10_000
"""For so long a publish waits for a subscriber whose queue is full, before it is refused."""
_FULL_AGAIN_MS: Final = 50


@dataclass(slots=True)
class _Exchange:
    publish: Publish
    done: PublishDone
    is_taken: bool = False
    """Whether the log has it, and only its packet id is still in use."""
    refused_ms: int = -1
    """When it was first refused for want of room; below 0: it was not."""


class PublishingSession:
    """The publishes of one connection to the topics of one partition (`SessionUser`)."""

    def __init__(self, service: BrokerService, person: TopicPerson, client_id: str) -> None:
        self._service = service
        self._waiting: deque[_Exchange] = deque()
        self._open: dict[int, _Exchange] = {}
        self._again: list[_Exchange] = []
        """What was refused for want of room, in order: nothing new leaves before it."""
        self._again_ms = 0
        self._last_id = 0
        self._window = _WINDOW
        self._was_up = False
        terms = SessionTerms(client_id, _EXPIRY_SECONDS, 1, resumes=False)
        self.session = TopicSession(service, person.peer, terms, self)

    def publish(self, message: Publish, done: PublishDone) -> None:
        """Publish in turn; `done` is called when the log has it, or has not."""
        self._waiting.append(_Exchange(message, done))
        self._send_more()

    def _send_more(self) -> None:
        if self._again:
            return
        while self._waiting and self.session.is_up and len(self._open) < self._window:
            exchange = self._waiting.popleft()
            packet_id = self._next_id()
            exchange.publish.packet_id = PacketId(packet_id)
            self._open[packet_id] = exchange
            self.session.say(exchange.publish)

    def on_tick(self, now_ms: int) -> None:
        """Try again what was refused for want of room, when all before it is answered."""
        self.session.on_tick(now_ms)
        is_open = any(not each.is_taken for each in self._open.values())
        if not self._again or is_open or now_ms < self._again_ms:
            return
        again, self._again = self._again, []
        self._waiting.extendleft(reversed(again))
        self._send_more()

    def _next_id(self) -> int:
        while True:
            self._last_id = self._last_id % PACKET_ID_MAX + 1
            if self._last_id not in self._open:
                return self._last_id

    @property
    def is_over(self) -> bool:
        return self.session.is_over

    # What the session says.

    def began(self, connack: Connack) -> None:
        limit = connack.properties.receive_maximum
        self._window = min(_WINDOW, limit or _WINDOW)
        if self._was_up and not connack.session_present:
            exchanges, self._open = self._open, {}
            for exchange in exchanges.values():
                if not exchange.is_taken:
                    exchange.done(FATE_UNKNOWN)
        self._was_up = True
        for packet_id, exchange in self._open.items():
            if exchange.is_taken:
                self.session.say(Pubrel(PacketId(packet_id)))
            else:
                self.session.say(replace(exchange.publish, dup=True))
        self._send_more()

    def heard(self, packet: Packet, size: int) -> None:  # noqa: ARG002  # nothing is held
        if isinstance(packet, Pubrec):
            self._on_pubrec(packet)
        elif isinstance(packet, Pubcomp):
            self._open.pop(packet.packet_id, None)
            self._send_more()

    def _on_pubrec(self, packet: Pubrec) -> None:
        exchange = self._open.get(packet.packet_id)
        if exchange is None:
            return
        if packet.reason_code.is_failure:
            del self._open[packet.packet_id]
            self._on_refused(exchange, packet)
            return
        self.session.say(Pubrel(packet.packet_id))
        if not exchange.is_taken:
            exchange.is_taken = True
            exchange.done(None)

    def _on_refused(self, exchange: _Exchange, packet: Pubrec) -> None:
        now_ms = self._service.clock_ms()
        if exchange.refused_ms < 0:
            exchange.refused_ms = now_ms
        is_full = packet.reason_code is ReasonCode.QUOTA_EXCEEDED
        if is_full and now_ms - exchange.refused_ms < _FULL_MS_MAX:
            self._again.append(exchange)
            self._again_ms = now_ms + _FULL_AGAIN_MS
        else:
            exchange.done(error_of(packet.reason_code, packet.properties.reason_string))
            self._send_more()

    def failed(self, error: ErrorValue) -> None:
        exchanges, self._open = self._open, {}
        waiting, self._waiting = [*self._again, *self._waiting], deque()
        self._again = []
        for exchange in exchanges.values():
            if not exchange.is_taken:
                exchange.done(FATE_UNKNOWN)
        for exchange in waiting:
            exchange.done(error)


class ConnectionPublisher:
    """The way of one connection to all topics (`TopicPublisher`)."""

    def __init__(
        self,
        service: BrokerService,
        person: TopicPerson,
        draw: Callable[[TopicPerson, int], str],
        adopt: Callable[[PublishingSession], None],
    ) -> None:
        self._service = service
        self._person = person
        self._draw = draw
        self._adopt = adopt
        self._sessions: dict[int, PublishingSession] = {}

    def publish(self, message: TopicPublish, done: PublishDone) -> None:
        tenant = self._service.tenants.get(self._person.peer.tenant)
        if tenant is None:
            done(ErrorValue(Condition.NOT_FOUND, "the tenant is gone"))
            return
        try:
            publish = publish_of(
                *(message.record, message.topic),
                retain=message.retain,
                is_text=message.is_text,
                now_ms=self._service.now_ms(),
            )
            forwardable(publish.properties)
        except MqttError as error:
            why = f"what is beside the body has no room in a publish: {error}"
            done(ErrorValue(Condition.MESSAGE_SIZE_EXCEEDED, why))
            return
        prg = tenant.owner(message.topic).number
        sender = self._sessions.get(prg)
        if sender is None or sender.is_over:
            client_id = self._draw(self._person, prg)
            sender = PublishingSession(self._service, self._person, client_id)
            self._sessions[prg] = sender
            self._adopt(sender)
        sender.publish(publish, done)

    def close(self) -> None:
        for sender in self._sessions.values():
            sender.session.leave(0)
