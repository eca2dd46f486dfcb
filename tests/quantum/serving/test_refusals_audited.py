"""What a client may not is told to the audit log: who, what, whose tenant, and no payload."""

from __future__ import annotations

from typing import Any, cast

import pytest

from clustor.runtime.audit.log import AuditLog
from quantum.protocols.mqtt.codec import ReasonCode
from tests.quantum.serving.client import connect
from tests.quantum.serving.tenant_lab import TenantLab

TENANTS: dict[str, dict[str, object]] = {
    "blue": {"acl": [{"effect": "allow", "pattern": "mine/#"}]},
    "red": {},
    "green": {"connection_audit": "all"},
    "gray": {"connection_audit": "off"},
}


class Desk:
    """An audit desk that only remembers."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.clients: list[tuple[str, str, str, bool]] = []

    def client_did(self, what: str, *, who: str, why: str, tenant: str, every: bool) -> None:
        self.clients.append((what, f"{tenant}/{who}", why, every))

    def refused(self, what: str, **facts: Any) -> None:
        self.told.append({"what": what, **facts})


@pytest.fixture
def lab() -> TenantLab:
    return TenantLab(TENANTS)


@pytest.fixture
def desk(lab: TenantLab) -> Desk:
    desk = Desk()
    lab.service.audit = cast("AuditLog", desk)
    return desk


def test_a_refused_publish_is_told_with_its_topic_and_without_its_payload(
    lab: TenantLab, desk: Desk
) -> None:
    client = connect(lab.door("blue", "spiffe://mqtt/client/lamp"), client_id="lamp")
    assert client.publish(b"theirs/x", b"top secret", 1) is ReasonCode.NOT_AUTHORIZED
    assert client.publish(b"mine/x", b"fine", 1) is not ReasonCode.NOT_AUTHORIZED
    (told,) = desk.told
    assert told["what"] == "PUBLISH_REFUSED" and told["target"] == "theirs/x"
    assert told["who"] == "spiffe://mqtt/client/lamp lamp" and told["tenant"] == "blue"
    assert "secret" not in str(told)


def test_a_refused_connect_is_told(lab: TenantLab, desk: Desk) -> None:
    connect(lab.door("red", "alice"), client_id="device")
    other = connect(lab.door("red", "mallory"), client_id="device")
    assert other.connack.reason_code is ReasonCode.NOT_AUTHORIZED
    assert [(each["what"], each["who"], each["why"]) for each in desk.told] == [
        ("ConnectRefused", "mallory device", "the client id belongs to another identity")
    ]


def test_malformed_packets_are_told(lab: TenantLab, desk: Desk) -> None:
    client = connect(lab.door("red"))
    client.send(b"\xc1\x00")
    client.expect_disconnect(ReasonCode.MALFORMED_PACKET)
    assert [each["what"] for each in desk.told] == ["MalformedPacket"]


@pytest.mark.parametrize(("tenant", "every"), [("red", False), ("green", True)])
def test_who_comes_and_goes_is_told_as_the_tenant_wants(
    lab: TenantLab, desk: Desk, tenant: str, every: bool
) -> None:
    connect(lab.door(tenant, "alice"), client_id="a").leave()
    connect(lab.door(tenant), client_id="b").cut()
    lab.settle()
    connect(lab.door("gray"), client_id="c").leave()
    lab.settle()
    assert desk.clients == [
        ("ClientConnected", f"{tenant}/alice a", "Done", every),
        ("ClientDisconnected", f"{tenant}/alice a", "Goodbye", every),
        ("ClientConnected", f"{tenant}/- b", "Done", every),
        ("ClientDisconnected", f"{tenant}/- b", "Lost", every),
    ]
