"""SUBACK leaves before the retained messages that it brings, wherever these are kept."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import (
    ProtocolVersion,
    Publish,
    Suback,
    SubscribePacket,
    Subscription,
    TopicFilter,
)
from quantum.protocols.mqtt.codec.types import PacketId
from tests.quantum.serving.client import V5, V311, connect
from tests.quantum.serving.tenant_lab import TenantLab
from tests.quantum.serving.test_tenants_limits import OPEN


@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("number", range(6))
def test_suback_is_the_first_answer(version: ProtocolVersion, qos: int, number: int) -> None:
    """Six clients in several partitions, eight retained messages in all of them."""
    lab = TenantLab({"blue": {}}, OPEN)
    writer = connect(lab.door("blue"))
    for each in range(8):
        writer.publish(b"kept/%d" % each, b"x", 1, retain=True)
    lab.tick(100)
    reader = connect(lab.door("blue"), version, client_id=f"reader-{number}")
    reader.send(SubscribePacket(PacketId(9), (Subscription(TopicFilter(b"kept/+"), qos),)))
    lab.tick(100)
    first = reader.receive()
    assert isinstance(first, Suback), first
    heard = []
    while (packet := reader.receive()) is not None:
        assert isinstance(packet, Publish)
        heard.append(packet.topic)
        reader.acknowledge(packet)
    assert sorted(heard) == [b"kept/%d" % each for each in range(8)]
