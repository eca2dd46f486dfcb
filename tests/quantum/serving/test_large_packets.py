"""Large packets on their way in, and large words between nodes: bounded, whole or not at all."""

from __future__ import annotations

import tracemalloc
from typing import cast

import pytest

from quantum.mesh import link
from quantum.protocols.mqtt.codec import Puback, Publish, ReasonCode, TopicName, encode_packet
from quantum.protocols.mqtt.codec.types import PacketId
from quantum.protocols.mqtt.session import large_packets
from tests.quantum.serving.client import V5, Client, connect
from tests.quantum.serving.tenant_lab import TenantLab, TenantLine

MIB = 1 << 20


def line_of(client: Client) -> TenantLine:
    return cast("TenantLine", client.line)


def large(size: int = 2 * MIB) -> bytes:
    return encode_packet(Publish(TopicName(b"t"), bytes(size), 1, packet_id=PacketId(9)), V5)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> TenantLab:
    monkeypatch.setattr(large_packets, "TOTAL_BYTES_MAX", 3 * MIB)
    return TenantLab({"blue": {}})


def test_who_comes_too_many_waits_unread_and_is_served_in_turn(lab: TenantLab) -> None:
    data = large()
    clients = [connect(lab.door("blue")) for _ in range(4)]
    for client in clients:
        client.send(data[:1_000])
    assert [line_of(each).is_paused for each in clients] == [False, True, True, True]
    assert lab.service.mqtt.large.waiting == 3 and lab.service.mqtt.large.bytes == len(data)
    for nth, client in enumerate(clients):
        assert not line_of(client).is_paused
        client.send(data[1_000:])
        assert not client.expect(Puback).reason_code.is_failure
        assert lab.service.mqtt.large.waiting == max(0, 2 - nth)
    assert lab.service.mqtt.large.bytes == 0


def test_one_that_is_gone_holds_nobody_up(lab: TenantLab) -> None:
    first, second, third = (connect(lab.door("blue")) for _ in range(3))
    for client in (first, second, third):
        client.send(large()[:1_000])
    second.cut()
    first.cut()
    lab.settle()
    assert not line_of(third).is_paused and lab.service.mqtt.large.waiting == 0


def test_who_drips_while_others_wait_must_go(lab: TenantLab) -> None:
    slow, other = connect(lab.door("blue")), connect(lab.door("blue"))
    slow.send(large()[:1_000])
    lab.tick(1_000)
    other.send(large()[:1_000])
    assert line_of(other).is_paused
    lab.node.clock_ms += large_packets.WAIT_MS_MAX
    lab.tick(100)
    slow.expect_disconnect(ReasonCode.QUOTA_EXCEEDED)
    assert not line_of(other).is_paused and lab.service.mqtt.large.ended == 1


def test_one_alone_may_take_its_time(lab: TenantLab) -> None:
    slow = connect(lab.door("blue"))
    slow.send(large()[:1_000])
    lab.node.clock_ms += 10 * large_packets.WAIT_MS_MAX
    lab.tick(100)
    slow.send(large()[1_000:])
    assert not slow.expect(Puback).reason_code.is_failure


# Between nodes.


def said(size: int) -> link.Said:
    return link.ForwardedPublishes("blue", 0, 1, 1, 1, [bytes(size)])


def test_a_word_larger_than_a_frame_comes_in_pieces_and_once() -> None:
    out, incoming = link.LinkOut(1), link.LinkIn()
    for size in (10, 5 * MIB, 20):
        out.say(said(size), size)
    frames = out.take()
    assert max(map(len, frames)) < 2 * MIB + 100
    heard = []
    for frame in frames:
        words, lost = incoming.receive(frame)
        assert not lost
        heard += words
    assert [
        len(each.records[0]) for each in heard if isinstance(each, link.ForwardedPublishes)
    ] == [*(10, 5 * MIB, 20)]


def test_a_turn_copies_no_more_of_a_large_word_than_it_sends() -> None:
    """The first frames of 16 MiB cost one encoding of it, and no copy of the rest."""
    out = link.LinkOut(1)
    out.say(said(16 * MIB), 16 * MIB)
    tracemalloc.start()
    try:
        frames = out.take(2 * MIB)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 2 * MIB <= sum(map(len, frames)) < 4 * MIB
    assert most < 32 * MIB  # the encoder takes half as much again as it needs


@pytest.mark.parametrize("missing", [0, 1, 4])
def test_without_one_piece_nothing_of_it_is_heard(missing: int) -> None:
    out, incoming = link.LinkOut(1), link.LinkIn()
    out.say(said(1), 1)
    incoming.receive(out.take()[0])
    out.say(said(5 * MIB), 5 * MIB)
    frames = out.take()
    del frames[missing]
    heard = [incoming.receive(frame) for frame in frames]
    assert not any(words for words, _ in heard)
    out.say(said(7), 7)
    words, lost = incoming.receive(out.take()[0])
    assert words and (lost or any(each for _, each in heard))


def test_frames_leave_a_little_at_a_time_and_qos_0_is_dropped_first() -> None:
    out = link.LinkOut(1)
    out.say(said(40 * MIB), 40 * MIB)
    assert len(out.take(2 * MIB)) <= 3 and out.has_more
    out.say(link.Unlogged("blue", 1, [b"x"]), 1)
    assert out.dropped == 1
    out.take()
    out.say(link.Unlogged("blue", 1, [b"x"]), 1)
    assert out.dropped == 1 and len(out.take()) == 1
