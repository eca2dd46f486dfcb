"""What a tenant holds in its partitions: throttled, then refused, then sent away (§11.2, §13)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from quantum.protocols.mqtt.codec import (
    ProtocolVersion,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    TopicName,
)
from quantum.protocols.mqtt.codec.types import PacketId
from quantum.tenancy import GRACE_MS
from tests.quantum.serving.client import V5, V31, V311, Client, connect
from tests.quantum.serving.tenant_lab import TenantLab, TenantLine

ALL = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])
LONG = 200_000


def lab(*, prgs: int = 3, **quotas: int) -> TenantLab:
    """A broker whose tenant `blue` has quotas; its partitions have heard of them."""
    made = TenantLab({"blue": {"quotas": dict(quotas)}, "red": {}}, prgs=prgs)
    made.tick(1_000)
    return made


def lasting(made: TenantLab, version: ProtocolVersion = V5, tenant: str = "blue") -> Client:
    expiry: dict[str, Any] = {"session_expiry_interval": LONG} if version is V5 else {}
    return connect(made.door(tenant), version, clean=False, **expiry)


def publish(made: TenantLab, writer: Client, name: bytes, size: int, qos: int = 1) -> ReasonCode:
    """Publish something to be retained, whenever the writer is read."""
    made.tick(1_000)
    if qos == 1:
        return writer.publish(name, b"x" * size, qos, retain=True)
    packet_id = writer.draw_id()
    writer.send(Publish(TopicName(name), b"x" * size, 2, retain=True, packet_id=packet_id))
    reason = writer.expect(Pubrec).reason_code
    made.tick(1_000)
    if not reason.is_failure:
        writer.send(Pubrel(packet_id))
        writer.expect(Pubcomp)
    return reason


@ALL
def test_sessions(version: ProtocolVersion) -> None:
    """As many as the tenant may have, however they hash; half as many again for a time."""
    made = lab(sessions=6)
    refused = []
    for _ in range(16):
        refused.append(lasting(made, version).connack.reason_code.is_failure)
        made.tick(1_000)
    assert refused[:6] == [False] * 6, "not refused before it has what is its due"
    assert refused[-3:] == [True] * 3
    assert refused.count(False) <= 9 + 2  # the partitions round up
    assert not lasting(made, version, "red").connack.reason_code.is_failure
    if version is V5:
        assert lasting(made).connack.reason_code is ReasonCode.QUOTA_EXCEEDED


def test_a_clean_client_without_subscriptions_is_no_session() -> None:
    made = lab(sessions=0)
    reader = connect(made.door("blue"))
    assert not reader.connack.reason_code.is_failure
    assert reader.publish(b"t", b"x", 1) is ReasonCode.NO_MATCHING_SUBSCRIBERS
    assert reader.subscribe(b"t", 1) is ReasonCode.QUOTA_EXCEEDED
    reader.expect_quiet()


def test_shared_groups() -> None:
    made = lab(shared_groups=2)
    reader = connect(made.door("blue"))
    reasons = [reader.subscribe(b"$share/%d/#" % nth, 1) for nth in range(4)]
    assert [each.is_failure for each in reasons] == [False, False, False, True]
    assert reasons[-1] is ReasonCode.QUOTA_EXCEEDED
    assert not connect(made.door("blue")).subscribe(b"$share/0/#", 1).is_failure


@pytest.mark.parametrize("qos", [1, 2])
def test_retained_topics(qos: int) -> None:
    made = lab(retained_topics=4)
    writer = connect(made.door("blue"))
    reasons = [publish(made, writer, b"t/%d" % nth, 10, qos) for nth in range(12)]
    assert not any(each.is_failure for each in reasons[:4])
    assert reasons[-1] is ReasonCode.QUOTA_EXCEEDED
    kept = sum(len(each.state.retained) for each in made.machines("blue"))
    assert 4 <= kept <= 8
    assert not publish(made, writer, b"t/0", 20, qos).is_failure


def test_who_is_over_the_quota_is_read_more_slowly() -> None:
    made = lab(prgs=1, retained_bytes=1_000)
    writer = connect(made.door("blue"))
    line = cast("TenantLine", writer.line)
    for nth in range(2):
        assert not writer.publish(b"t/%d" % nth, b"x" * 600, 1, retain=True).is_failure
    writer.send(Publish(TopicName(b"t"), b"", 1, packet_id=PacketId(99)))
    assert line.is_paused
    made.tick(200)
    assert not line.is_paused


@ALL
def test_queues_of_lasting_sessions(version: ProtocolVersion) -> None:
    made = lab(session_bytes=20_000)
    for nth in range(4):
        reader = lasting(made)
        reader.subscribe(b"t/%d" % nth, 1)
        reader.leave()
    writer = connect(made.door("blue"), version)
    line = cast("TenantLine", writer.line)
    for nth in range(100):
        made.tick(500)
        packet = Publish(
            TopicName(b"t/%d" % (nth % 4)), b"x" * 1_000, 1, packet_id=PacketId(nth + 1)
        )
        writer.send(packet)
        if line.is_closed:
            break
    held = sum(each.state.queued.amount for each in made.machines("blue"))
    assert 20_000 <= held <= 40_000
    assert line.is_closed == (version is not V5)  # who has no word for it ends
    other = connect(made.door("red"))
    assert not other.publish(b"t/0", b"x", 1).is_failure


def test_after_a_day_the_connection_ends() -> None:
    made = lab(prgs=1, retained_topics=2)
    writer = connect(made.door("blue"))
    for nth in range(3):
        assert not publish(made, writer, b"t/%d" % nth, 10).is_failure  # a grace begins
    assert publish(made, writer, b"t/3", 10) is ReasonCode.QUOTA_EXCEEDED
    assert not publish(made, writer, b"t/0", 20).is_failure
    made.node.clock_ms += GRACE_MS
    made.tick(1_000)
    writer = connect(made.door("blue"))
    assert publish(made, writer, b"t/3", 10) is ReasonCode.QUOTA_EXCEEDED
    writer.expect_disconnect(ReasonCode.QUOTA_EXCEEDED)
