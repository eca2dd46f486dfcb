"""Sessions that are kept for AMQP's links: after a break the same is said under the same ids."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from quantum.edge.ports import ConnectionPeer
from quantum.node.topic_publishing import PublishingSession
from quantum.node.topic_subscribing import SubscribingSession
from quantum.protocols.amqp.session.topic_port import FATE_UNKNOWN, TopicPerson, TopicWish
from quantum.protocols.mqtt.codec import (
    PACKET_BYTES_MAX,
    Connack,
    Connect,
    Direction,
    Packet,
    PacketId,
    PacketReader,
    ProtocolVersion,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    SubscribePacket,
    TopicName,
    decode_packet,
    encode_packet,
)

V5 = ProtocolVersion.V5
PERSON = TopicPerson(ConnectionPeer("tcp", "test", "dev"), "me")


class Broker:
    """The other end of every connection, and the node's clock: what is said here is the test's."""

    def __init__(self) -> None:
        self.wires: list[Any] = []
        self.heard: list[Packet] = []
        self.now = 0
        self._calls: list[Callable[[], None]] = []
        self._reader = PacketReader(PACKET_BYTES_MAX)
        self.mqtt = SimpleNamespace(new_connection=lambda: self)

    def opened(self, wire: Any, _peer: ConnectionPeer) -> None:
        self.wires.append(wire)

    def received(self, data: bytes) -> None:
        self._reader.receive(data)
        while (found := self._reader.next_packet()) is not None:
            self.heard.append(decode_packet(*found, V5, direction=Direction.TO_SERVER))

    def writable_again(self) -> None: ...
    def lost(self) -> None: ...

    def soon(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def clock_ms(self) -> int:
        return self.now

    def now_ms(self) -> int:
        return self.now

    def say(self, *packets: Packet) -> list[Packet]:
        """Say something on the newest connection; return what was answered."""
        for each in packets:
            self.wires[-1].write(encode_packet(each, V5))
        return self.take()

    def take(self) -> list[Packet]:
        while self._calls:
            self._calls.pop(0)()
        heard, self.heard = self.heard, []
        return heard

    def break_off(self, ticked: Any) -> list[Packet]:
        self.wires[-1].close()
        self.now += 1_000
        ticked.on_tick(self.now)
        return self.take()


def published(body: bytes, packet_id: int = 0, *, dup: bool = False, qos: int = 1) -> Publish:
    return Publish(TopicName(b"a"), body, qos, False, dup, PacketId(packet_id))  # noqa: FBT003


def test_a_publish_without_an_answer_is_said_again_under_its_id_and_is_done_once() -> None:
    broker: Any = Broker()
    done: list[object] = []
    sender = PublishingSession(broker, PERSON, "amqp:me:1")
    sender.publish(published(b"x", qos=2), done.append)
    first = broker.take()[0]
    assert isinstance(first, Connect) and first.clean_start
    (said,) = broker.say(Connack())
    assert (said.packet_id, said.dup) == (1, False)
    again = broker.break_off(sender)[0]
    assert isinstance(again, Connect) and not again.clean_start
    (said,) = broker.say(Connack(session_present=True))
    assert (said.packet_id, said.dup, said.payload) == (1, True, b"x")
    assert broker.say(Pubrec(PacketId(1)))[0] == Pubrel(PacketId(1))
    broker.break_off(sender)
    assert broker.say(Connack(session_present=True)) == [Pubrel(PacketId(1))]
    assert done == [None]


def test_nobody_says_what_became_of_a_publish_whose_session_is_gone() -> None:
    broker: Any = Broker()
    done: list[object] = []
    sender = PublishingSession(broker, PERSON, "amqp:me:1")
    sender.publish(published(b"x", qos=2), done.append)
    broker.take()
    broker.say(Connack())
    broker.break_off(sender)
    broker.say(Connack(session_present=False))
    assert done == [FATE_UNKNOWN]


def test_what_is_held_or_settled_is_not_given_again_after_a_break() -> None:
    broker: Any = Broker()
    receiver: Any = SimpleNamespace(ready=lambda: None, arrived=lambda: None, failed=None)
    wish = TopicWish(b"a", "1", keep_seconds=60)
    link = SubscribingSession(broker, PERSON, wish, "amqp:me:1", receiver, others=[])
    broker.take()
    assert isinstance(broker.say(Connack())[0], SubscribePacket)
    broker.say(Suback(PacketId(1), (ReasonCode.GRANTED_QOS_2,)))
    broker.say(published(b"held", 1), published(b"settled", 2))
    held, settled = link.take(), link.take()
    assert held is not None and settled is not None
    link.settle(settled.number)
    assert broker.take() == [Puback(PacketId(2))]
    broker.break_off(link)
    assert broker.say(Connack(session_present=True)) == []
    answers = broker.say(published(b"held", 1, dup=True), published(b"settled", 2, dup=True))
    assert answers == [Puback(PacketId(2))]
    assert link.take() is None
    broker.say(published(b"new", 3, dup=True))
    found = link.take()
    assert found is not None and (found.record.body, found.failures) == (b"new", 1)
