"""How far a stream got is logged with the next entry, or after a while: no round of its own."""

from __future__ import annotations

from typing import Any

import pytest

from quantum.broker import ChannelAcked, commands
from quantum.partition import leader as prg_module
from quantum.partition.transfers import TELL_ITEMS
from quantum.protocols.mqtt.codec import Puback, Publish, TopicName
from quantum.protocols.mqtt.codec.types import PacketId
from tests.quantum.serving.client import connect
from tests.quantum.serving.tenant_lab import TenantLab
from tests.quantum.serving.test_tenants_limits import OPEN, answers, publishes


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[ChannelAcked]:
    """Every ChannelAcked that is given to a log."""
    found: list[ChannelAcked] = []
    encode = commands.encode_command

    def watched(command: Any) -> bytes:
        if isinstance(command, ChannelAcked):
            found.append(command)
        return encode(command)

    monkeypatch.setattr(prg_module, "encode_command", watched)
    return found


def apart(lab: TenantLab) -> tuple[bytes, str]:
    """Return a topic and a client id that belong to different partitions."""
    tenant = lab.tenant("blue")
    owner = tenant.topic_partition(b"t")
    names = (f"client-{number}" for number in range(1_000))
    name = next(each for each in names if tenant.session_prg(each.encode()).number != owner)
    return b"t", name


def test_a_publish_to_a_session_elsewhere_is_one_entry_not_two(told: list[ChannelAcked]) -> None:
    lab = TenantLab({"blue": {}}, OPEN)
    topic, name = apart(lab)
    reader, writer = connect(lab.door("blue"), client_id=name), connect(lab.door("blue"))
    reader.subscribe(topic, 1)
    lab.tick(500)
    told.clear()
    writer.send(Publish(TopicName(topic), b"one", 1, packet_id=PacketId(1)))
    assert writer.receive() == Puback(PacketId(1)) and reader.take().payload == b"one"
    assert not told, "nothing else is logged, and nobody waits for it"
    writer.send(Publish(TopicName(topic), b"two", 1, packet_id=PacketId(2)))
    assert [each.through for each in told] == [told[0].through], "it rides on the next entry"
    lab.tick(200)
    outboxes = [prg.broker.state.channels.outboxes() for prg in lab.tenant("blue").prgs]
    assert not any(outbox.items for each in outboxes for outbox in each.values())
    assert len(told) == 2, "and what is left is told after a while"


def test_what_is_kept_for_nothing_is_bounded(told: list[ChannelAcked]) -> None:
    lab = TenantLab({"blue": {}}, OPEN)
    topic, name = apart(lab)
    reader, writer = connect(lab.door("blue"), client_id=name), connect(lab.door("blue"))
    reader.subscribe(topic, 1)
    lab.tick(500)
    told.clear()
    writer.send(publishes(TELL_ITEMS + 10, 20, topic))
    assert len(answers(writer)) == TELL_ITEMS + 10
    assert told, "a thousand items do not wait for the clock"


def test_a_subscription_is_answered_without_that_round(told: list[ChannelAcked]) -> None:
    """It waits for the word of each partition that it has the interest in its log, not for ours."""
    lab = TenantLab({"blue": {}}, OPEN)
    lab.tick(500)
    told.clear()
    reader = connect(lab.door("blue"))
    reader.subscribe(b"some/+/filter", 1)
    assert not told
