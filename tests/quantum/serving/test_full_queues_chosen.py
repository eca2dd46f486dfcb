"""C24: `full_queues` of a tenant, from its description to the queues and what is counted."""

from __future__ import annotations

import pytest

from quantum.node.telemetry import BrokerTelemetry
from quantum.protocols.mqtt.codec import Publish, ReasonCode
from tests.quantum.serving.client import connect
from tests.quantum.serving.tenant_lab import TenantLab
from tests.quantum.serving.test_full_queues import QUEUE_MAX, WEEK
from tests.quantum.serving.test_tenants_limits import OPEN

MORE = 5


@pytest.mark.parametrize(
    ("choice", "first", "count"),
    [("drop-oldest", MORE, QUEUE_MAX), ("drop-newest", 0, QUEUE_MAX), ("end-session", None, 0)],
)
def test_a_tenants_choice_is_in_force_and_counted(
    choice: str, first: int | None, count: int
) -> None:
    lab = TenantLab({"blue": {"full_queues": choice}}, OPEN)
    lab.tick(1_000)
    away = connect(lab.door("blue"), client_id="away", clean=False, session_expiry_interval=WEEK)
    away.subscribe(b"t", 1)
    away.cut()
    writer = connect(lab.door("blue"), client_id="writer")
    for number in range(QUEUE_MAX + MORE):
        reason = writer.publish(b"t", b"%d" % number, 1)
        assert not reason.is_failure and (reason is ReasonCode.SUCCESS or choice == "end-session")
    families = BrokerTelemetry(lab.service).families()
    dropped = next(each for each in families if each and each.name == "quantum.dropped_total")
    by_cause = {labels.split('"')[1]: value for labels, value in dropped.series}
    expected = QUEUE_MAX + 1 if choice == "end-session" else MORE
    assert by_cause[f"queue-{choice}"] == expected
    assert sum(by_cause.values()) == expected
    back = connect(lab.door("blue"), client_id="away", clean=False, session_expiry_interval=WEEK)
    assert back.connack.session_present is (choice != "end-session")
    got = []
    while isinstance(packet := back.receive(), Publish):
        got.append(int(packet.payload))
        back.acknowledge(packet)
    assert len(got) == count and (not got or got[0] == first)
