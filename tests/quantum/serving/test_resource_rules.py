"""Stored rules about more than topics: what they mean, what cannot be read, and old bytes."""

from __future__ import annotations

import msgspec
import pytest

from clustor.control import AclPolicy, TenantAclRule, canonical
from clustor.control.objects import decode_object
from quantum.tenancy import (
    InvalidTenants,
    Operation,
    ResourceKind,
    TenantDescription,
    describe_tenants,
)
from quantum.tenants.control_words import TenantWord, describe, rule_mistakes
from quantum.tenants.policy import TenantGuard

OLD = (
    b'{"disconnect_on_refusal":false,"rules":[{"action":"Any","effect":"Allow","filter":"a/#",'
    b'"principal":"*"}],"tenant_id":"acme","version":1}'
)
STREAM, GROUP, TOPIC = ResourceKind.STREAM, ResourceKind.GROUP, ResourceKind.TOPIC


def listed(*rules: dict[str, object]) -> tuple[TenantAclRule, ...]:
    return tuple(msgspec.convert(list(rules), list[TenantAclRule]))


def guard_of(*rules: dict[str, object]) -> TenantGuard:
    policy = AclPolicy(tenant_id="acme", version=1, rules=listed(*rules))
    stored = decode_object(AclPolicy, canonical(policy))
    guard = TenantGuard("acme", 0)
    guard.change(describe(TenantWord("acme", acl=stored), TenantDescription()), 0)
    return guard


def may(guard: TenantGuard, operation: Operation, kind: ResourceKind, name: bytes) -> bool:
    return guard.may("ada", operation, kind, name).allowed


def test_a_list_of_the_first_release_has_the_bytes_and_the_meaning_that_it_had() -> None:
    policy = decode_object(AclPolicy, OLD)
    assert canonical(policy) == OLD
    guard = TenantGuard("acme", 0)
    guard.change(describe(TenantWord("acme", acl=policy), TenantDescription()), 0)
    assert may(guard, Operation.PUBLISH, TOPIC, b"a/b")
    assert may(guard, Operation.SUBSCRIBE, TOPIC, b"a/#")
    assert not may(guard, Operation.PUBLISH, TOPIC, b"b")
    assert not may(guard, Operation.PRODUCE, STREAM, b"a")


def test_names_and_prefixes_and_all_of_a_kind() -> None:
    guard = guard_of(
        {"effect": "Allow", "action": "Consume", "resource": "Stream", "name": "one"},
        {"effect": "Allow", "action": "Produce", "resource": "Stream", "prefix": "in-"},
        {"effect": "Allow", "action": "Any", "resource": "Group"},
        {"effect": "Allow", "action": "Any", "resource": "Stream", "principal": "bob"},
    )
    assert may(guard, Operation.CONSUME, STREAM, b"one")
    assert not may(guard, Operation.CONSUME, STREAM, b"one2")
    assert may(guard, Operation.PRODUCE, STREAM, b"in-x")
    assert not may(guard, Operation.PRODUCE, STREAM, b"out-x")
    assert may(guard, Operation.MANAGE, GROUP, b"whatever")
    assert not may(guard, Operation.MANAGE, STREAM, b"one")
    decision = guard.may("bob", Operation.MANAGE, STREAM, b"one")
    assert decision.rule is not None
    assert decision.rule.number == 4


UNREADABLE: dict[str, dict[str, object]] = {
    "a name and a prefix": {"resource": "Stream", "name": "a", "prefix": "a"},
    "a filter of streams": {"resource": "Stream", "filter": "a/#"},
    "a group that is produced to": {"resource": "Group", "action": "Produce"},
    "a topic by name": {"resource": "Topic", "name": "a"},
    "a managed topic": {"action": "Manage"},
    "a cluster with a name": {"resource": "Cluster", "name": "c"},
    "an empty name": {"resource": "Queue", "name": ""},
}


@pytest.mark.parametrize("wrong", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_allows_nothing_and_denies_everything_of_its_kind(
    wrong: dict[str, object],
) -> None:
    everything: list[dict[str, object]] = [
        {"effect": "Allow", "action": "Any", "resource": each}
        for each in ("Topic", "Stream", "Queue", "Group", "TransactionalId", "Cluster")
    ]
    rule = {"action": "Any", **wrong}
    assert len(list(rule_mistakes(listed({"effect": "Allow", **rule})))) == 1
    kind = ResourceKind(str(wrong.get("resource", "Topic")).lower())
    allowing = guard_of({"effect": "Allow", **rule})
    denying = guard_of(*everything, {"effect": "Deny", **rule})
    for operation in Operation:
        assert not may(allowing, operation, kind, b"a")
        assert not may(denying, operation, kind, b"a")
    other = GROUP if kind is not GROUP else STREAM
    assert may(denying, Operation.CONSUME, other, b"a")


def test_the_file_has_the_same_rules() -> None:
    found = describe_tenants(
        {
            "tenants": {
                "acme": {
                    "acl": [
                        {"effect": "allow", "pattern": "a/#", "action": "both"},
                        {"effect": "allow", "resource": "stream", "prefix": "in-"},
                        {
                            "effect": "deny",
                            "resource": "stream",
                            "name": "in-x",
                            "action": "manage",
                        },
                    ]
                }
            }
        }
    )
    guard = TenantGuard("acme", 0)
    guard.change(found["acme"], 0)
    assert may(guard, Operation.PUBLISH, TOPIC, b"a/b")
    assert may(guard, Operation.MANAGE, STREAM, b"in-y")
    assert may(guard, Operation.PRODUCE, STREAM, b"in-x")
    assert not may(guard, Operation.MANAGE, STREAM, b"in-x")


@pytest.mark.parametrize(
    "wrong",
    [
        {"effect": "allow"},
        {"effect": "allow", "resource": "stream", "pattern": "a"},
        {"effect": "allow", "resource": "group", "action": "produce", "name": "g"},
        {"effect": "allow", "resource": "lake", "name": "g"},
    ],
)
def test_a_mistake_in_the_file_is_told(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidTenants, match="rule 1"):
        describe_tenants({"tenants": {"acme": {"acl": [wrong]}}})
