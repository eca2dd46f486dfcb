"""C24: a full queue blocks the publishes that match it, gently, and names its session."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import Puback, Publish, ReasonCode, TopicName
from quantum.protocols.mqtt.codec.types import PacketId
from quantum.protocols.mqtt.session.connection import MqttConnection
from tests.quantum.serving.client import V5, V311, Client, connect
from tests.quantum.serving.tenant_lab import TenantLab
from tests.quantum.serving.test_tenants_limits import OPEN, line_of

QUEUE_MAX = 1_000
BLOCK_MS = 10_000
WEEK = 600_000


@pytest.fixture
def lab() -> TenantLab:
    return TenantLab({"blue": {}}, OPEN)


def fill(lab: TenantLab) -> None:
    """Let a lasting session go away, and publish one by one until its queue is full."""
    away = connect(lab.door("blue"), client_id="away", clean=False, session_expiry_interval=WEEK)
    away.subscribe(b"t", 1)
    away.cut()
    writer = connect(lab.door("blue"), client_id="filler")
    for number in range(QUEUE_MAX):
        assert writer.publish(b"t", b"%d" % number, 1) is ReasonCode.SUCCESS
    lab.tick(100)
    writer.leave()
    assert b"away" in lab.tenant("blue").session_prg(b"away").broker.state.routes.full


def send(client: Client, number: int, topic: bytes = b"t") -> None:
    client.send(Publish(TopicName(topic), b"late", 1, packet_id=PacketId(number)))


@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])
def test_only_what_matches_waits_and_goes_on_when_there_is_room(
    lab: TenantLab, version: object
) -> None:
    fill(lab)
    blocked = connect(lab.door("blue"), version, client_id="blocked")  # type: ignore[arg-type]
    other = connect(lab.door("blue"), version, client_id="other")  # type: ignore[arg-type]
    send(blocked, 1)
    send(other, 1, b"elsewhere")
    lab.tick(BLOCK_MS - 1_000)
    assert line_of(blocked).is_paused and blocked.receive() is None
    assert other.receive() is not None and not line_of(other).is_paused
    tenant = lab.clients("blue")
    waiting = tenant.of_client(b"blocked").connections[b"blocked"]
    assert isinstance(waiting, MqttConnection)
    assert tenant.full.held_up_by(waiting) == b"away"
    assert "publishers wait for it" in str(lab.service.recent.of(b"away"))
    back = connect(lab.door("blue"), client_id="away", clean=False, session_expiry_interval=WEEK)
    while isinstance(packet := back.receive(), Publish):
        back.acknowledge(packet)
    lab.tick(200)
    assert isinstance(blocked.receive(), Puback) and not line_of(blocked).is_paused


def test_mqtt_5_is_told_0x97_after_the_time_and_not_before(lab: TenantLab) -> None:
    fill(lab)
    writer = connect(lab.door("blue"), client_id="five")
    send(writer, 1)
    send(writer, 2)
    lab.tick(BLOCK_MS - 1_000)
    assert writer.receive() is None
    lab.tick(2_000)
    first = writer.receive()
    assert isinstance(first, Puback) and first.reason_code is ReasonCode.QUOTA_EXCEEDED
    assert not line_of(writer).is_closed


def test_before_mqtt_5_nobody_is_closed_within_its_keep_alive(lab: TenantLab) -> None:
    fill(lab)
    writer = connect(lab.door("blue"), V311, client_id="three", keep_alive=60)
    send(writer, 1)
    lab.tick(58_000)
    assert not line_of(writer).is_closed and writer.receive() is None


def test_two_that_read_and_publish_do_not_wait_for_each_other(lab: TenantLab) -> None:
    fill(lab)
    back = connect(lab.door("blue"), client_id="away", clean=False, session_expiry_interval=WEEK)
    both = connect(lab.door("blue"), client_id="both")
    both.subscribe(b"answers", 1)
    lab.tick(50)
    assert lab.clients("blue").full.is_any, "it came back, and acknowledged nothing yet"
    send(both, 1)
    assert not line_of(both).is_paused and back is not None
