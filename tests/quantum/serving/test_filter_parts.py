"""A SUBSCRIBE of many filters goes into the log in parts, and is one packet to its client."""

from __future__ import annotations

from itertools import pairwise

import pytest

from quantum.protocols.mqtt.codec import (
    Pingreq,
    Pingresp,
    ProtocolVersion,
    Publish,
    ReasonCode,
    Suback,
    SubscribePacket,
    Subscription,
    TopicFilter,
    TopicName,
    Unsuback,
    UnsubscribePacket,
    encode_packet,
)
from quantum.protocols.mqtt.codec.types import PacketId
from quantum.protocols.mqtt.session.subscribing import FILTERS_AT_ONCE
from tests.quantum.serving.client import V5, V311, Client, connect
from tests.quantum.serving.tenant_lab import TenantLab
from tests.quantum.serving.test_tenants_limits import OPEN, line_of

MANY = 4 * FILTERS_AT_ONCE + 7
BOTH = pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])


def subscribe(packet_id: int, count: int) -> SubscribePacket:
    lines = (Subscription(TopicFilter(b"f/%d" % number), 1) for number in range(count))
    return SubscribePacket(PacketId(packet_id), tuple(lines))


def unsubscribe(packet_id: int, count: int) -> UnsubscribePacket:
    names = (TopicFilter(b"f/%d" % number) for number in range(count))
    return UnsubscribePacket(PacketId(packet_id), tuple(names))


def filters_of(lab: TenantLab) -> int:
    sessions = lab.tenant("blue").session_prg(b"c").broker.state.sessions
    return len(sessions[b"c"].subscriptions) if b"c" in sessions else 0


def answers(lab: TenantLab, client: Client) -> list[object]:
    lab.tick(1_000)
    found: list[object] = []
    while (packet := client.receive()) is not None:
        found.append(packet)
    return found


@BOTH
def test_a_turn_takes_a_part_and_the_answer_has_all(version: ProtocolVersion) -> None:
    lab = TenantLab({"blue": {}}, OPEN)
    client = connect(lab.door("blue"), version, client_id="c")
    line_of(client).put(encoded(client, subscribe(1, MANY)))
    had = [0]
    while had[-1] < MANY and len(had) < 100:
        lab.turn()
        had.append(filters_of(lab))
    assert max(after - before for before, after in pairwise(had)) <= FILTERS_AT_ONCE, had
    (suback,) = answers(lab, client)
    assert isinstance(suback, Suback) and suback.packet_id == 1
    assert suback.reason_codes == (ReasonCode.GRANTED_QOS_1,) * MANY


@BOTH
def test_what_follows_takes_effect_behind_the_last_part(version: ProtocolVersion) -> None:
    """Subscribed, published, unsubscribed and subscribed to again in one piece."""
    lab = TenantLab({"blue": {}}, OPEN)
    client = connect(lab.door("blue"), version, client_id="c")
    said = Publish(TopicName(b"f/%d" % (MANY - 1)), b"x")
    packets = [subscribe(1, MANY), said, unsubscribe(2, MANY), subscribe(3, 1), Pingreq()]
    line_of(client).put(b"".join(encoded(client, each) for each in packets))
    found = answers(lab, client)
    kinds = [type(each) for each in found if not isinstance(each, Pingresp)]
    assert kinds[:2] == [Suback, Publish]
    assert set(kinds[2:]) == {Unsuback, Suback}
    assert filters_of(lab) == 1


@BOTH
def test_an_unsubscribe_comes_behind_the_last_part(version: ProtocolVersion) -> None:
    lab = TenantLab({"blue": {}}, OPEN)
    client = connect(lab.door("blue"), version, client_id="c")
    last = UnsubscribePacket(PacketId(2), (TopicFilter(b"f/%d" % (MANY - 1)),))
    line_of(client).put(encoded(client, subscribe(1, MANY)) + encoded(client, last))
    assert {type(each) for each in answers(lab, client)} == {Suback, Unsuback}
    assert filters_of(lab) == MANY - 1


@BOTH
def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(
    version: ProtocolVersion,
) -> None:
    lab = TenantLab({"blue": {}}, OPEN)
    client = connect(lab.door("blue"), version, client_id="c")
    line_of(client).put(encoded(client, subscribe(1, MANY)))
    while not filters_of(lab):
        lab.turn()
    client.cut()
    lab.tick(1_000)
    assert filters_of(lab) == 0
    again = connect(lab.door("blue"), version, client_id="c")
    assert again.subscribe(b"f/1", 1) is ReasonCode.GRANTED_QOS_1


def encoded(client: Client, packet: object) -> bytes:
    return encode_packet(packet, client.version)  # type: ignore[arg-type]
