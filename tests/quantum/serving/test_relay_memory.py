"""What the node that a client reached remembers, and when that is enough to go on (C10)."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import (
    Connect,
    Disconnect,
    PacketId,
    Pingreq,
    Pingresp,
    Properties,
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
    encode_packet,
)
from quantum.protocols.mqtt.codec.packets import Packet
from quantum.protocols.mqtt.codec.types import ClientId
from quantum.protocols.mqtt.session.relay_memory import REMEMBERED_BYTES_MAX, RelayMemory
from tests.quantum.serving.client import V5, V311, will

LIMIT = 1 << 26


def memory(
    *, version: int = V311, clean: bool = False, outlives: bool = True, with_will: bool = False
) -> RelayMemory:
    asked = Connect(version, ClientId("a"), clean, 10, will(b"will") if with_will else None)  # type: ignore[arg-type]
    connect = encode_packet(asked, asked.version)
    is_v5 = version == V5
    return RelayMemory(connect, is_v5=is_v5, outlives=outlives, packet_bytes_max=LIMIT)


def said(*packets: Packet, version: int = V311) -> bytes:
    return b"".join(encode_packet(each, version) for each in packets)  # type: ignore[arg-type]


def publish(packet_id: int, qos: int = 1, *, dup: bool = False, size: int = 1) -> Publish:
    number = PacketId(packet_id)
    return Publish(TopicName(b"t"), b"x" * size, qos, dup=dup, packet_id=number)


def subscribe(packet_id: int) -> SubscribePacket:
    return SubscribePacket(PacketId(packet_id), (Subscription(TopicFilter(b"t"), 1),))


ANSWERED: dict[str, tuple[list[Packet], list[Packet], list[Packet]]] = {
    "publish": ([publish(1), publish(2)], [Puback(PacketId(1))], [publish(2, dup=True)]),
    "once": ([publish(1, 2)], [], [publish(1, 2, dup=True)]),
    "received": ([publish(1, 2)], [Pubrec(PacketId(1))], []),
    "complete": ([Pubrel(PacketId(1))], [Pubcomp(PacketId(1))], []),
    "not complete": ([Pubrel(PacketId(1))], [], [Pubrel(PacketId(1))]),
    "subscribe": ([subscribe(3)], [Suback(PacketId(3), (ReasonCode.SUCCESS,))], []),
    "no suback": ([subscribe(3)], [], [subscribe(3)]),
    "ping": ([Pingreq(), Pingreq()], [Pingresp()], [Pingreq()]),
    "qos 0": ([publish(0, 0)], [], []),
}


@pytest.mark.parametrize(("client", "server", "again"), ANSWERED.values(), ids=ANSWERED.keys())
def test_what_has_no_answer_is_said_again(
    client: list[Packet], server: list[Packet], again: list[Packet]
) -> None:
    kept = memory()
    for byte in said(*client):
        kept.client_said(bytes((byte,)))
    kept.server_said(said(*server))
    assert kept.can_resume
    assert kept.said_again() == said(*again)


def test_the_beginning_of_a_packet_is_said_again_with_its_end_to_come() -> None:
    kept = memory()
    whole = said(publish(1))
    kept.client_said(said(Pingreq()) + whole[:3])
    kept.server_said(said(Pingresp()))
    assert kept.said_again() == whole[:3]


def test_a_lasting_session_is_not_begun_anew() -> None:
    kept = memory(version=V5, clean=True)
    asked = Connect(V5, ClientId("a"), clean_start=False, keep_alive=10)
    assert kept.connect_again() == encode_packet(asked, V5)
    assert memory(clean=True, outlives=False).connect_again() == encode_packet(
        Connect(V311, ClientId("a"), clean_start=True, keep_alive=10), V311
    )


CLEAN: dict[str, tuple[list[Packet], bool, bool]] = {
    "publishes": ([publish(1)], False, True),
    "subscribed": ([subscribe(1)], False, False),
    "once": ([publish(1, 2)], False, False),
    "release": ([Pubrel(PacketId(1))], False, False),
    "will": ([], True, False),
}


@pytest.mark.parametrize(("client", "with_will", "resumes"), CLEAN.values(), ids=CLEAN.keys())
def test_a_clean_session_goes_on_only_if_nothing_of_it_is_missed(
    client: list[Packet], *, with_will: bool, resumes: bool
) -> None:
    kept = memory(clean=True, outlives=False, with_will=with_will)
    kept.client_said(said(*client))
    assert kept.can_resume is resumes
    lasting = memory(with_will=with_will)
    lasting.client_said(said(*client))
    assert lasting.can_resume


def test_who_says_goodbye_is_not_spoken_for() -> None:
    kept = memory()
    kept.client_said(said(Disconnect()))
    assert not kept.can_resume


def test_an_alias_ends_with_its_connection() -> None:
    alias = Properties(topic_alias=1)
    kept, plain = memory(version=V5), memory(version=V5)
    named = Publish(TopicName(b"t"), b"#", 1, packet_id=PacketId(1), properties=alias)
    kept.client_said(said(named, version=V5))
    assert not kept.can_resume
    other = Properties(content_type="text")
    typed = Publish(TopicName(b"t"), b"#", 1, packet_id=PacketId(1), properties=other)
    plain.client_said(said(typed, version=V5))
    assert plain.can_resume and plain.said_again()[1:] == said(typed, version=V5)[1:]


def test_what_is_remembered_is_bounded() -> None:
    kept = memory()
    kept.client_said(said(publish(1, size=REMEMBERED_BYTES_MAX + 1)))
    assert not kept.can_resume
    kept = memory()
    for _ in range(3):
        kept.client_said(said(publish(1, size=REMEMBERED_BYTES_MAX // 2)))
        kept.server_said(said(Puback(PacketId(1))))
    assert kept.can_resume and kept.said_again() == b""
