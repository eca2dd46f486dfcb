"""Rules know a session that is kept for another protocol's client by that client."""

from __future__ import annotations

import pytest

from quantum.tenancy import Operation, ResourceKind, describe_tenants
from quantum.tenants.policy import TenantGuard
from quantum.tenants.session_names import client_of, name_session


@pytest.mark.parametrize("client", ["me", "", "a:b", "amqp:x", "ü/1"])
def test_the_client_of_a_session_is_read_back(client: str) -> None:
    assert client_of(name_session(client, "f00d").encode()) == client.encode()


@pytest.mark.parametrize("client_id", [b"", b"me", b"amqp", b"amqp:", b"amqp:me", b"xamqp:me:1"])
def test_who_is_kept_for_nobody_is_itself(client_id: bytes) -> None:
    assert client_of(client_id) == client_id


def test_a_session_may_what_its_client_may_and_nothing_else() -> None:
    rule = {"effect": "allow", "action": "publish", "pattern": "from/%c/#"}
    described = describe_tenants({"tenants": {"acme": {"acl": [rule]}}})
    guard = TenantGuard("acme", 0)
    guard.change(described["acme"], 0)
    access = guard.access(None, name_session("me", "f00d").encode())
    assert access is not None
    assert access.publish(b"from/me/x").allowed
    assert not access.publish(b"from/you/x").allowed
    assert guard.may(
        None, Operation.PUBLISH, ResourceKind.TOPIC, b"from/me/x", client_id=b"me"
    ).allowed
