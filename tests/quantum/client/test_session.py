"""The client's session alone: packets in, packets out, and no clock but the test's."""

from __future__ import annotations

import pytest

from quantum.client.events import (
    Acknowledged,
    Connected,
    ConnectionEnded,
    Event,
    Received,
    Rejected,
    Silent,
    SubscribeAnswered,
)
from quantum.client.session import ClientOptions, ClientSession
from quantum.protocols.mqtt.codec import (
    Connack,
    Connect,
    Direction,
    Disconnect,
    Packet,
    PacketId,
    PacketReader,
    PeerFault,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolVersion,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    SubscribePacket,
    Subscription,
    TopicFilter,
    TopicName,
    decode_packet,
    encode_packet,
)

V5, V311 = ProtocolVersion.V5, ProtocolVersion.V311
T = TopicName(b"t")


class Line:
    """A session and the broker's end of its connection."""

    def __init__(self, options: ClientOptions | None = None) -> None:
        self.session = ClientSession(options or ClientOptions("c"))
        self.now = 0.0

    def connect(self, connack: Connack | None = None) -> list[Packet]:
        """Connect; return what the client sent behind its CONNECT."""
        self.session.connect(self.now)
        (connect,) = self.sent()
        assert isinstance(connect, Connect)
        self.connect_packet = connect
        (event,) = self.hear(connack or Connack())
        assert isinstance(event, Connected)
        return self.sent()

    def hear(self, *packets: Packet) -> list[Event]:
        version = self.session.version
        self.session.receive(b"".join(encode_packet(packet, version) for packet in packets))
        events = []
        while (event := self.session.next_event()) is not None:
            events.append(event)
        return events

    def sent(self) -> list[Packet]:
        reader = PacketReader(1 << 20)
        reader.receive(self.session.take_outgoing(self.now))
        packets = []
        while (found := reader.next_packet()) is not None:
            version = self.session.version
            packets.append(decode_packet(*found, version, direction=Direction.TO_SERVER))
        return packets


def ids(packets: list[Packet]) -> list[int]:
    return [packet.packet_id for packet in packets if isinstance(packet, Publish)]


def test_qos_1_ends_with_its_puback() -> None:
    line = Line()
    line.connect()
    token = line.session.publish(T, b"x", qos=1)
    assert line.sent() == [Publish(T, b"x", 1, packet_id=PacketId(1))]
    assert line.hear(Puback(PacketId(1))) == [Acknowledged(token, ReasonCode.SUCCESS)]  # type: ignore[arg-type]
    assert line.session.unfinished == 0


def test_qos_2_ends_with_its_pubcomp_and_not_before() -> None:
    line = Line()
    line.connect()
    line.session.publish(T, b"x", qos=2)
    line.sent()
    assert line.hear(Pubrec(PacketId(1))) == []
    assert line.sent() == [Pubrel(PacketId(1))]
    assert line.session.unfinished == 1
    (event,) = line.hear(Pubcomp(PacketId(1)))
    assert isinstance(event, Acknowledged)
    assert line.session.unfinished == 0


def test_a_refused_qos_2_publish_ends_with_its_pubrec() -> None:
    line = Line()
    line.connect()
    line.session.publish(T, b"x", qos=2)
    line.sent()
    (event,) = line.hear(Pubrec(PacketId(1), ReasonCode.NOT_AUTHORIZED))
    assert isinstance(event, Acknowledged) and event.reason_code is ReasonCode.NOT_AUTHORIZED
    assert line.sent() == [], "a PUBREL for what was refused"
    assert line.session.unfinished == 0


def test_qos_2_is_received_once_whatever_is_sent_again() -> None:
    line = Line()
    line.connect()
    message = Publish(T, b"x", 2, packet_id=PacketId(9))
    again = Publish(T, b"x", 2, packet_id=PacketId(9), dup=True)
    assert len(line.hear(message)) == 1
    assert line.hear(again) == []
    assert line.sent() == [Pubrec(PacketId(9)), Pubrec(PacketId(9))]
    assert line.hear(Pubrel(PacketId(9))) == []
    assert line.sent() == [Pubcomp(PacketId(9))]
    assert len(line.hear(message)) == 1, "a new exchange may use the id again"


def test_a_received_qos_2_id_survives_a_reconnect_to_the_same_session() -> None:
    line = Line()
    line.connect()
    message = Publish(T, b"x", 2, packet_id=PacketId(9))
    line.hear(message)
    line.session.lost()
    line.connect(Connack(session_present=True))
    assert line.hear(Publish(T, b"x", 2, packet_id=PacketId(9), dup=True)) == []
    line.session.lost()
    line.connect(Connack(session_present=False))
    assert len(line.hear(message)) == 1, "a session that is gone has no ids"


def test_the_unfinished_is_sent_again_in_order_to_a_broker_that_remembers() -> None:
    line = Line()
    line.connect()
    for payload in (b"1", b"2", b"3"):
        line.session.publish(T, payload, qos=2)
    line.hear(Pubrec(PacketId(1)))
    line.session.lost()
    assert line.connect(Connack(session_present=True)) == [
        Pubrel(PacketId(1)),
        Publish(T, b"2", 2, dup=True, packet_id=PacketId(2)),
        Publish(T, b"3", 2, dup=True, packet_id=PacketId(3)),
    ]
    assert not line.connect_packet.clean_start


def test_the_unfinished_is_published_as_new_to_a_broker_that_forgot() -> None:
    line = Line()
    line.connect()
    tokens = [line.session.publish(T, payload, qos=1) for payload in (b"1", b"2")]
    line.session.lost()
    sent = line.connect(Connack(session_present=False))
    assert [(p.payload, p.dup) for p in sent if isinstance(p, Publish)] == [
        (b"1", False),
        (b"2", False),
    ]
    events = line.hear(*(Puback(PacketId(number)) for number in ids(sent)))
    assert [event.token for event in events if isinstance(event, Acknowledged)] == tokens


def test_no_more_is_open_than_the_broker_takes() -> None:
    line = Line()
    line.connect(Connack(properties=Properties(receive_maximum=2)))
    for _ in range(5):
        line.session.publish(T, b"x", qos=1)
    assert ids(line.sent()) == [1, 2]
    line.hear(Puback(PacketId(2)))
    assert ids(line.sent()) == [3]
    line.session.lost()
    sent = line.connect(Connack(session_present=True, properties=Properties(receive_maximum=2)))
    assert ids(sent) == [1, 3], "what is sent again counts"


def test_an_older_client_does_not_flood_a_broker_that_cannot_say_what_it_takes() -> None:
    line = Line(ClientOptions("c", V311))
    line.connect()
    for _ in range(50):
        line.session.publish(T, b"x", qos=1)
    assert len(line.sent()) == 20


def test_packet_ids_go_round_past_those_in_use() -> None:
    line = Line()
    line.connect()
    line.session.publish(T, b"stuck", qos=1)
    line.session._last_id = 65_533
    for _ in range(4):
        line.session.publish(T, b"x", qos=1)
    assert ids(line.sent()) == [1, 65_534, 65_535, 2, 3]


def test_subscriptions_are_asked_for_again_where_the_broker_forgot() -> None:
    line = Line()
    line.connect()
    wanted = Subscription(TopicFilter(b"a/#"), 1)
    refused = Subscription(TopicFilter(b"b/#"), 1)
    token = line.session.subscribe((wanted, refused))
    line.sent()
    codes = (ReasonCode.GRANTED_QOS_1, ReasonCode.NOT_AUTHORIZED)
    assert line.hear(Suback(PacketId(1), codes)) == [SubscribeAnswered(token, codes)]
    line.session.lost()
    assert line.connect(Connack(session_present=True)) == []
    line.session.lost()
    (again,) = line.connect(Connack(session_present=False))
    assert isinstance(again, SubscribePacket)
    assert again.subscriptions == (wanted,)


def test_a_request_without_an_answer_is_asked_again() -> None:
    line = Line()
    line.connect()
    token = line.session.subscribe((Subscription(TopicFilter(b"a"), 1),))
    (first,) = line.sent()
    line.session.lost()
    assert line.connect() == [first]
    (event,) = line.hear(Suback(PacketId(1), (ReasonCode.GRANTED_QOS_1,)))
    assert isinstance(event, SubscribeAnswered) and event.token == token


def test_aliases_are_of_one_connection() -> None:
    line = Line()
    line.connect()
    named = Publish(T, b"1", properties=Properties(topic_alias=3))
    short = Publish(TopicName(b""), b"2", properties=Properties(topic_alias=3))
    events = line.hear(named, short)
    assert [event.message.topic for event in events if isinstance(event, Received)] == [T, T]
    line.session.lost()
    line.connect()
    with pytest.raises(PeerFault, match="unknown topic alias"):
        line.hear(short)


def test_the_connection_is_kept_alive_and_a_silent_broker_is_noticed() -> None:
    line = Line(ClientOptions("c", keep_alive=10))
    line.connect(Connack(properties=Properties(server_keep_alive=4)))
    assert line.session.next_deadline() == 4.0
    line.now = 3.0
    line.session.publish(T, b"x")
    line.sent()
    assert line.session.next_deadline() == 7.0, "what we send is a sign of life too"
    line.now = 7.0
    assert line.session.on_time(7.0) is None
    assert line.sent() == [Pingreq()]
    assert line.session.on_time(7.5) is None
    assert line.sent() == []
    line.hear(Pingresp())
    assert line.session.next_deadline() == 11.0
    line.session.on_time(11.0)
    line.sent()
    assert isinstance(line.session.on_time(15.0), Silent)


def test_a_refusal_and_an_end_are_told() -> None:
    line = Line()
    line.session.connect(0.0)
    (event,) = line.hear(Connack(reason_code=ReasonCode.BANNED))
    assert event == Rejected(ReasonCode.BANNED, None)
    line = Line()
    line.connect()
    (event,) = line.hear(Disconnect(ReasonCode.SESSION_TAKEN_OVER))
    assert event == ConnectionEnded(ReasonCode.SESSION_TAKEN_OVER, None)


def test_qos_0_without_a_connection_is_lost_and_above_it_waits() -> None:
    line = Line()
    assert line.session.publish(T, b"0") is None
    line.session.publish(T, b"1", qos=1)
    sent = line.connect()
    assert [packet.payload for packet in sent if isinstance(packet, Publish)] == [b"1"]


VIOLATIONS: dict[str, tuple[Packet, ...]] = {
    "two CONNACKs": (Connack(),),
    "an answer to no request": (Suback(PacketId(7), (ReasonCode.SUCCESS,)),),
    "a PUBACK for QoS 2": (Puback(PacketId(2)),),
    "a PUBREC for QoS 1": (Pubrec(PacketId(1)),),
    "a PUBCOMP before its PUBREC": (Pubcomp(PacketId(2)),),
    "an alias beyond our maximum": (Publish(T, b"", properties=Properties(topic_alias=17)),),
}


@pytest.mark.parametrize("packets", VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_a_broker_that_breaks_the_protocol_is_caught(packets: tuple[Packet, ...]) -> None:
    line = Line()
    line.connect()
    line.session.publish(T, b"1", qos=1)
    line.session.publish(T, b"2", qos=2)
    with pytest.raises(PeerFault):
        line.hear(*packets)


def test_a_first_packet_that_is_no_connack_is_caught() -> None:
    line = Line()
    line.session.connect(0.0)
    with pytest.raises(PeerFault):
        line.hear(Pingresp())
