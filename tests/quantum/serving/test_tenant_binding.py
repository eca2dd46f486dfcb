"""Among several tenants who a client is says whose it is, and what no list allows is refused."""

from __future__ import annotations

from typing import cast

import pytest

from clustor.runtime.audit.log import AuditLog
from quantum.edge.peer import tenant_of_identity
from quantum.edge.ports import ConnectionPeer, Transport
from quantum.protocols.mqtt.codec import ReasonCode
from quantum.tenants.binding import disbelief, needs_list
from tests.quantum.serving.client import V311, connect
from tests.quantum.serving.tenant_lab import Door, TenantLab
from tests.quantum.serving.test_refusals_audited import Desk

LAMP = "spiffe://mqtt/client/lamp"
EVERYTHING = [{"effect": "allow", "pattern": "#"}]

NAMED = {
    "spiffe://mqtt/tenant/blue/client/lamp": "blue",
    "spiffe://other.example/tenant/blue/x": "blue",
    "spiffe://mqtt/tenant/blue/": None,
    "spiffe://mqtt/tenant/blue": None,
    "spiffe://mqtt/tenant//client/lamp": None,
    "spiffe://mqtt/client/tenant/blue/x": None,
    "spiffe:///tenant/blue/x": None,
    "https://mqtt/tenant/blue/x": None,
    "lamp": None,
}


@pytest.mark.parametrize(("identity", "tenant"), NAMED.items())
def test_which_tenant_an_identity_names(identity: str, tenant: str | None) -> None:
    assert tenant_of_identity(identity) == tenant


@pytest.mark.parametrize(
    ("transport", "named", "shared", "awaits_token", "is_refused"),
    [
        ("tls", "blue", True, False, False),
        ("tls", "blue", False, False, False),
        ("tls", "red", True, False, True),
        ("tls", "red", False, False, True),
        ("tls", "red", True, True, True),
        ("tls", None, True, False, True),
        ("wss", None, True, False, True),
        ("tls", None, True, True, False),
        ("tls", None, False, False, False),
        ("tcp", None, True, False, False),
        ("ws", None, True, False, False),
    ],
)
def test_who_is_believed_to_be_the_tenants(
    transport: Transport, named: str | None, shared: bool, awaits_token: bool, is_refused: bool
) -> None:
    peer = ConnectionPeer(transport, "here", "blue", named_tenant=named)
    found = disbelief(peer, "blue", shared=shared, awaits_token=awaits_token)
    assert (found is not None) is is_refused
    assert needs_list(peer, shared=shared) is (shared and transport in ("tls", "wss"))


@pytest.mark.parametrize("named", [None, "red"])
def test_who_is_not_the_tenants_is_refused_on_the_wire_in_the_audit_and_in_why(
    named: str | None,
) -> None:
    lab = TenantLab({"blue": {"acl": EVERYTHING}, "red": {"acl": EVERYTHING}})
    desk = Desk()
    lab.service.audit = cast("AuditLog", desk)
    connect(lab.door("blue")).publish(b"secret", b"kept", 1, retain=True)
    spy = connect(Door(lab, "blue", LAMP, named), client_id="spy")
    assert spy.connack.reason_code is ReasonCode.NOT_AUTHORIZED
    assert "tenant" in (spy.connack.properties.reason_string or "")
    spy.expect_end()
    (told,) = desk.told
    assert told["what"] == "ConnectRefused" and "tenant" in told["why"]
    assert any("tenant" in each.what for each in lab.service.recent.of(b"spy"))
    older = connect(Door(lab, "blue", LAMP, named), V311, client_id="spy")
    assert older.connack.reason_code is ReasonCode.NOT_AUTHORIZED
    friend = connect(lab.door("blue", LAMP), client_id="friend")
    friend.subscribe(b"secret", 1)
    assert friend.take().payload == b"kept"


def test_without_a_list_nothing_is_allowed_and_the_audit_says_why() -> None:
    lab = TenantLab({"blue": {}, "red": {}})
    desk = Desk()
    lab.service.audit = cast("AuditLog", desk)
    client = connect(lab.door("blue", LAMP), client_id="lamp")
    assert client.subscribe(b"#", 1) is ReasonCode.NOT_AUTHORIZED
    assert client.publish(b"t", b"x", 1) is ReasonCode.NOT_AUTHORIZED
    assert {each["why"] for each in desk.told} == {
        "the tenant has no access list, and it is not the only tenant"
    }
    by_port = connect(lab.door("blue"))
    assert not by_port.subscribe(b"#", 1).is_failure, "development stays easy"


def test_one_tenant_alone_asks_for_nothing() -> None:
    lab = TenantLab({"blue": {}})
    client = connect(Door(lab, "blue", LAMP), client_id="lamp")
    assert not client.subscribe(b"#", 1).is_failure
    assert client.publish(b"t", b"x", 1) is ReasonCode.SUCCESS


def test_another_tenant_sends_away_who_shows_nothing_and_takes_what_no_list_allows() -> None:
    lab = TenantLab({"blue": {}, "red": {}})
    lab.service.forget_tenant("red")
    nobody = connect(Door(lab, "blue", LAMP), client_id="nobody")
    named = connect(lab.door("blue", LAMP), client_id="named")
    assert not named.subscribe(b"news", 1).is_failure
    lab.service.tenants["red"] = red = lab.service.tenants["blue"]
    lab.service._note_sharing()
    del lab.service.tenants["red"], red
    lab.settle()
    nobody.expect_disconnect(ReasonCode.NOT_AUTHORIZED)
    connect(lab.door("blue")).publish(b"news", b"x", 1)
    named.expect_quiet()
