"""A client that another node serves stays connected when that node is gone (C10)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from quantum.mesh import link
from quantum.protocols.mqtt.codec import (
    Connect,
    Puback,
    Publish,
    Suback,
    SubscribePacket,
    Subscription,
    TopicFilter,
    TopicName,
    encode_packet,
)
from quantum.protocols.mqtt.codec.packets import Packet
from quantum.protocols.mqtt.codec.types import ClientId, PacketId, ReasonCode
from quantum.protocols.mqtt.session.relay_memory import MOVED
from quantum.protocols.mqtt.session.resuming import RESUME_MS_MAX
from tests.quantum.serving.client import V5, V311
from tests.quantum.serving.lab import TENANT, LabLine
from tests.quantum.serving.test_leaders_elsewhere import OTHER_NODE, FarLab

CONNACKS = {V311: bytes.fromhex("20020000"), V5: bytes.fromhex("2003000000")}


class Far:
    """The other node, as far as this one hears of it."""

    def __init__(self, lab: FarLab) -> None:
        self._lab = lab
        self._out = link.LinkOut(7)
        lab.reachable.append(OTHER_NODE)

    @property
    def relay(self) -> int:
        """The number of the newest relay to it."""
        return max(self._lab.service.relays._entries)

    def says(self, data: bytes) -> None:
        self._say(link.RelayData(self.relay, opened_here=False, data=data))

    def gives_back(self) -> None:
        self._say(link.RelayEnd(self.relay, opened_here=False, again=True))

    def _say(self, said: link.Said) -> None:
        self._out.say(said, 64)
        for frame in self._out.take():
            self._lab.service.on_peer_data(cast("Any", OTHER_NODE), frame)
        self._lab.settle()

    def dies(self) -> None:
        self._lab.reachable.clear()
        self._lab.service.on_peer_lost(cast("Any", OTHER_NODE))
        self._lab.settle()


def relayed(
    lab: FarLab, far: Far, *packets: Packet, version: Any = V311, clean: bool = True
) -> LabLine:
    """Let a client connect, be answered by the other node, and say something that it is not."""
    line = lab.dial()
    line.send(encode_packet(Connect(version, ClientId("a"), clean), version))
    far.says(CONNACKS[version])
    assert line.receive(9) == CONNACKS[version]
    for packet in packets:
        line.send(encode_packet(packet, version))
    return line


def publish(packet_id: int) -> Publish:
    return Publish(TopicName(b"t"), b"x", 1, packet_id=PacketId(packet_id))


SUBSCRIBE = SubscribePacket(PacketId(9), (Subscription(TopicFilter(b"t"), 1),))


@pytest.fixture
def lab() -> FarLab:
    return FarLab()


@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])
@pytest.mark.parametrize("end", ["dies", "gives_back"])
def test_what_had_no_answer_is_answered_by_the_next_leader(
    lab: FarLab, version: Any, end: str
) -> None:
    far = Far(lab)
    line = relayed(lab, far, publish(1), publish(2), publish(3), version=version)
    far.says(encode_packet(Puback(PacketId(2)), version))
    del line.received[:]
    getattr(far, end)()
    assert not line.is_closed and line.received == b"", "it is held, without a word"
    lab.lead_by(lab.node.node_id)
    lab.advance(0.5)  # who was asked again before it knew leads no more
    lab.advance(0.5)
    for number in (1, 3):
        ack = line.receive(4)
        assert ack[0] == 0x40 and ack[2:4] == bytes((0, number)), "and no second CONNACK"
        if ack[1] == 3:
            line.receive(1)  # the reason: nobody subscribed
    line.send(b"\xc0\x00")
    assert line.receive(2) == b"\xd0\x00" and not line.is_closed
    assert lab.service.mqtt.meters.resumed == 1


def test_what_it_says_meanwhile_comes_behind_what_had_no_answer(lab: FarLab) -> None:
    far = Far(lab)
    line = relayed(lab, far, publish(1))
    far.dies()
    line.send(encode_packet(publish(2), V311))
    lab.lead_by(lab.node.node_id)
    lab.advance(0.1)
    assert line.receive(8) == bytes.fromhex("40020001 40020002")


def test_it_goes_on_with_a_third_node(lab: FarLab) -> None:
    """The next leader is another node: it is asked with the same CONNECT, and told the rest."""
    far = Far(lab)
    line = relayed(lab, far, publish(1), clean=False)
    lab.sent.clear()
    far.gives_back()
    lab.advance(0.2)
    wire = encode_packet(Connect(V311, ClientId("a"), clean_start=False), V311)
    assert any(wire in frame for frame in lab.sent), "asked again"
    assert not any(encode_packet(publish(1), V311)[1:] in frame for frame in lab.sent)
    far.says(b"\x20\x02\x01\x00")
    again = encode_packet(publish(1), V311)
    assert any(bytes((again[0] | 8,)) + again[1:] in frame for frame in lab.sent), "with DUP"
    assert line.received == b"" and not line.is_closed


def test_a_lasting_session_that_is_not_there_any_more_ends_the_connection(lab: FarLab) -> None:
    far = Far(lab)
    line = relayed(lab, far, clean=False)
    far.dies()
    lab.lead_by(lab.node.node_id)  # the lab's log knows nothing of it
    lab.advance(0.1)
    assert line.is_closed


@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])
def test_who_would_lose_something_is_told_that_its_server_moved(lab: FarLab, version: Any) -> None:
    far = Far(lab)
    line = relayed(lab, far, SUBSCRIBE, version=version)
    far.says(encode_packet(Suback(PacketId(9), (ReasonCode.GRANTED_QOS_1,)), version))
    del line.received[:]
    far.dies()
    assert line.is_closed
    assert bytes(line.received) == (MOVED if version is V5 else b"")


def test_many_take_turns_with_the_next_leader(lab: FarLab) -> None:
    """All of them lost the same leader, and the next one has others to serve, too."""
    far = Far(lab)
    lines = []
    for number in range(150):
        line = lab.dial()
        line.send(encode_packet(Connect(V311, ClientId(f"c{number}")), V311))
        far.says(CONNACKS[V311])
        del line.received[:]
        lines.append(line)
    far.dies()
    lab.lead_by(lab.node.node_id)
    lab.service.on_tick()
    lab.settle()
    assert 0 < lab.service.tenants[TENANT].guard.connections <= 128
    lab.advance(0.1)
    for line in lines:
        line.send(b"\xc0\x00")
        assert line.receive(2) == b"\xd0\x00" and not line.is_closed


def test_nobody_is_held_for_ever(lab: FarLab) -> None:
    far = Far(lab)
    line = relayed(lab, far, version=V5)
    far.dies()
    lab.advance(RESUME_MS_MAX / 1000 - 2)
    closed = [line.is_closed]
    lab.advance(4)
    assert [*closed, line.is_closed] == [False, True]
    assert bytes(line.received) == MOVED
