"""What AMQP clients receive from topics: one session of the broker for each receiver.

The broker keeps each message until its receiver settled it, in the log. After a break it sends
again what it has no answer to, under the same packet ids: what the receiver holds is not given to
it twice, and what it settled is answered again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from quantum.node.topic_session import SessionTerms, TopicSession, error_of
from quantum.protocols.amqp.engine import Condition, ErrorValue
from quantum.protocols.amqp.session.topic_port import (
    TopicDelivery,
    TopicPerson,
    TopicReceiver,
    TopicWish,
)
from quantum.protocols.mqtt.codec import (
    Connack,
    Packet,
    PacketId,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    RetainHandling,
    Suback,
    SubscribePacket,
    Subscription,
    TopicFilter,
    UnsubscribePacket,
)
from quantum.protocols.mqtt.codec.neutral_publishes import record_of_publish

if TYPE_CHECKING:
    from quantum.node.service import BrokerService

_AWAY_SECONDS: Final = 60
"""What is not kept for its receiver stays for so long all the same: until a new leader is there."""
_WINDOW: Final = 1_000
"""What a receiver may hold unsettled."""
_ANSWERED_MAX: Final = 4_096
"""Packet ids come again after 32,767 others: none of so many is another message's."""
_ONE: Final = PacketId(1)
_TWO: Final = PacketId(2)
_LOST: Final = ErrorValue(Condition.DETACH_FORCED, "the subscription was ended meanwhile")


class _Held:
    """A message that the broker keeps until it is settled."""

    __slots__ = ("life", "packet_id", "qos", "size")

    def __init__(self, publish: Publish, size: int, life: int) -> None:
        self.packet_id = publish.packet_id
        self.qos = publish.qos
        self.size = size
        self.life = life


class SubscribingSession:
    """The subscription of one receiver (`SessionUser`, `TopicSubscription`)."""

    def __init__(
        self,
        service: BrokerService,
        person: TopicPerson,
        wish: TopicWish,
        client_id: str,
        receiver: TopicReceiver,
        *,
        others: list[bytes],
    ) -> None:
        """Subscribe; `others` are filters that the session had before, and are not wanted."""
        self._service = service
        self._wish = wish
        self._receiver = receiver
        self._others = others
        self._is_ready = False
        self._buffer: deque[TopicDelivery] = deque()
        self._held: dict[int, _Held] = {}
        """What came and is not settled, by our number."""
        self._numbers: dict[int, int] = {}
        """Our numbers of what has a packet id and is not settled."""
        self._answered: dict[int, None] = {}
        self._last = 0
        self._pings: deque[int] = deque()
        """Of each PINGREQ without an answer: how many messages had come by then."""
        self.is_drained = False
        keep = max(wish.keep_seconds, _AWAY_SECONDS)
        terms = SessionTerms(client_id, keep, _WINDOW, resumes=wish.keep_seconds > 0)
        self.session = TopicSession(service, person.peer, terms, self)

    # What the session says.

    def began(self, connack: Connack) -> None:
        if self._is_ready:
            self._pings.clear()
            if connack.session_present:
                return
            self.session.fail(_LOST)
            return
        wish = self._wish
        line = b"$share/" + wish.share + b"/" + wish.filter if wish.share else wish.filter
        handling = RetainHandling.SEND_IF_NEW
        asked = Subscription(
            TopicFilter(line), 2, retain_as_published=True, retain_handling=handling
        )
        others = [each for each in self._others if each != line]
        if connack.session_present and others:
            gone = tuple(TopicFilter(each) for each in others)
            self.session.say(UnsubscribePacket(_TWO, gone))
        self.session.say(SubscribePacket(_ONE, (asked,)))

    def heard(self, packet: Packet, size: int) -> None:
        match packet:
            case Publish():
                self._on_publish(packet, size)
            case Pubrel():
                self._answered.pop(packet.packet_id, None)
                self.session.say(Pubcomp(packet.packet_id))
            case Suback():
                self._on_suback(packet)
            case Pingresp():
                self._on_pingresp()
            case _:
                pass

    def failed(self, error: ErrorValue) -> None:
        self._receiver.failed(error)

    def _on_suback(self, packet: Suback) -> None:
        reason = packet.reason_codes[0]
        if reason.is_failure:
            self.session.fail(error_of(reason, packet.properties.reason_string))
        elif not self._is_ready:
            self._is_ready = True
            self._receiver.ready()

    def _on_publish(self, packet: Publish, size: int) -> None:
        packet_id = packet.packet_id
        if packet_id in self._numbers or (packet.dup and packet_id in self._answered):
            self.session.used(size, self.session.life)
            if packet_id not in self._numbers:
                self._answer(packet_id, packet.qos)
            return
        self._last += 1
        self.is_drained = False
        self._held[self._last] = _Held(packet, size, self.session.life)
        if packet_id:
            self._numbers[packet_id] = self._last
        self._buffer.append(
            TopicDelivery(
                self._last,
                record_of_publish(packet, self._service.now_ms()),
                packet.retain,
                packet.properties.payload_format_indicator == 1,
                packet.qos > 0,
                1 if packet.dup else 0,
            )
        )
        self._receiver.arrived()

    def _on_pingresp(self) -> None:
        if self._pings and self._pings.popleft() == self._last:
            self.is_drained = True
            self._receiver.arrived()

    def _answer(self, packet_id: int, qos: int) -> None:
        said = Puback(PacketId(packet_id)) if qos == 1 else Pubrec(PacketId(packet_id))
        self.session.say(said)

    # What the link asks for.

    def take(self) -> TopicDelivery | None:
        if not self._buffer:
            return None
        delivery = self._buffer.popleft()
        held = self._held[delivery.number]
        self.session.used(held.size, held.life)
        held.size = 0
        return delivery

    def give_back(self, delivery: TopicDelivery) -> None:
        if delivery.number in self._held:
            self._buffer.appendleft(delivery)
            self._receiver.arrived()

    def settle(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is None or not held.packet_id:
            return
        self._numbers.pop(held.packet_id, None)
        self._answered[held.packet_id] = None
        if len(self._answered) > _ANSWERED_MAX:
            del self._answered[next(iter(self._answered))]
        self._answer(held.packet_id, held.qos)

    def probe(self) -> None:
        self.is_drained = False
        if self.session.is_up and not self._pings:
            self._pings.append(self._last)
            self.session.ping()

    def probe_once(self) -> None:
        """The same, unless it was asked and nothing came since."""
        if self._is_ready and not self.is_drained:
            self.probe()

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is held, and nothing is on its way."""
        return self.is_drained and not self._held

    def close(self, *, ends: bool) -> None:
        self.session.leave(0 if ends else self._wish.keep_seconds)

    # Time.

    @property
    def is_over(self) -> bool:
        return self.session.is_over

    def on_tick(self, now_ms: int) -> None:
        self.session.on_tick(now_ms)
