"""Kafka's access entries and the tenant's rules: each rule about what Kafka knows is one entry.

| Kafka | here |
| --- | --- |
| Topic, Group, TransactionalId, Cluster | stream, group, transactional id, cluster |
| literal `*`; literal; prefixed | every name; name; prefix |
| All, Read, Write, Describe | any, consume, produce, describe |
| Alter of a topic or the cluster, Delete of a group | manage |
| `User:ann`, `Token:robot`, `Certificate:NAME`, `User:*` | `user:ann`, `token:robot`, NAME, all |

What has no counterpart is refused by name: nothing is granted or denied that was not asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import msgspec

from clustor.control import AclAction, AclEffect, AclResource, TenantAclRule
from quantum.tenants.control_words import EVERYBODY


class KafkaResource(IntEnum):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class KafkaPattern(IntEnum):
    ANY = 1
    MATCH = 2
    """Of a filter: whatever rule is about this name."""
    LITERAL = 3
    PREFIXED = 4


class KafkaOperation(IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class KafkaPermission(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
_EVERY_NAME: Final = "*"
_HOST: Final = "*"
_RESOURCES: Final = {
    KafkaResource.TOPIC: AclResource.STREAM,
    KafkaResource.GROUP: AclResource.GROUP,
    KafkaResource.CLUSTER: AclResource.CLUSTER,
    KafkaResource.TRANSACTIONAL_ID: AclResource.TRANSACTIONAL_ID,
}
_COMMON: Final = {
    KafkaOperation.ALL: AclAction.ANY,
    KafkaOperation.DESCRIBE: AclAction.DESCRIBE,
}
_ACTIONS: Final = {
    KafkaResource.TOPIC: _COMMON
    | {
        KafkaOperation.READ: AclAction.CONSUME,
        KafkaOperation.WRITE: AclAction.PRODUCE,
        KafkaOperation.ALTER: AclAction.MANAGE,
    },
    KafkaResource.GROUP: _COMMON
    | {KafkaOperation.READ: AclAction.CONSUME, KafkaOperation.DELETE: AclAction.MANAGE},
    KafkaResource.TRANSACTIONAL_ID: _COMMON | {KafkaOperation.WRITE: AclAction.PRODUCE},
    KafkaResource.CLUSTER: _COMMON | {KafkaOperation.ALTER: AclAction.MANAGE},
}
_KAFKAS_RESOURCE: Final = {ours: theirs for theirs, ours in _RESOURCES.items()}
_KAFKAS_OPERATION: Final = {
    resource: {ours: theirs for theirs, ours in known.items()}
    for resource, known in _ACTIONS.items()
}
_SAME: Final = {AclAction.PUBLISH: AclAction.PRODUCE, AclAction.SUBSCRIBE: AclAction.CONSUME}
"""Elsewhere than at topics of MQTT both words mean the same."""
_TYPES: Final = {"User": "user:", "Token": "token:", "Certificate": ""}
_MANAGED: Final = frozenset(
    {
        *(KafkaOperation.CREATE, KafkaOperation.DELETE, KafkaOperation.ALTER),
        *(KafkaOperation.DESCRIBE_CONFIGS, KafkaOperation.ALTER_CONFIGS),
    }
)


class AclEntryRefused(Exception):
    """An entry that no rule can say; its text is for people."""


@dataclass(frozen=True, slots=True)
class AclEntry:
    """One entry as Kafka's requests have it; also a filter, where some of it is open."""

    resource: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def facts(self) -> dict[str, Any]:
        """Return it by the names that answers have."""
        return {
            **self.resource_facts(),
            "principal": self.principal,
            "host": self.host,
            "operation": self.operation,
            "permission_type": self.permission,
        }

    def resource_facts(self) -> dict[str, Any]:
        return {
            "resource_type": self.resource,
            "resource_name": self.name,
            "pattern_type": self.pattern,
        }


def rule_of(entry: AclEntry) -> TenantAclRule:
    """Return the rule that says the same. Raises AclEntryRefused."""
    resource = _known(KafkaResource, entry.resource)
    operation = _known(KafkaOperation, entry.operation)
    if resource not in _RESOURCES:
        raise AclEntryRefused("rules are about Topic, Group, TransactionalId and Cluster")
    if entry.host != _HOST:
        raise AclEntryRefused("rules know no hosts: the host must be *")
    if entry.permission not in (KafkaPermission.ALLOW, KafkaPermission.DENY):
        raise AclEntryRefused("a rule allows or denies")
    action = _ACTIONS[resource].get(operation)
    if action is None:
        raise AclEntryRefused(_why_not(resource, operation))
    allows = entry.permission == KafkaPermission.ALLOW
    return TenantAclRule(
        effect=AclEffect.ALLOW if allows else AclEffect.DENY,
        action=action,
        principal=_principal(entry.principal or ""),
        resource=_RESOURCES[resource],
        **_named(resource, entry),
    )


def _known(kind: Any, number: int) -> Any:
    try:
        return kind(number)
    except ValueError:
        raise AclEntryRefused(f"there is no {kind.__name__} {number}") from None


def _why_not(resource: KafkaResource, operation: KafkaOperation) -> str:
    words = f"{operation.name} of a {resource.name} has no rule of its own"
    if resource is KafkaResource.CLUSTER and operation is KafkaOperation.IDEMPOTENT_WRITE:
        return f"{words}: who may write may do so idempotently"
    if operation not in _MANAGED or resource is KafkaResource.TRANSACTIONAL_ID:
        return words
    instead = KafkaOperation.DELETE if resource is KafkaResource.GROUP else KafkaOperation.ALTER
    return f"{words}: {instead.name} stands for all that manages one"


def _named(resource: KafkaResource, entry: AclEntry) -> dict[str, Any]:
    if resource is KafkaResource.CLUSTER:
        if (entry.name, entry.pattern) != (CLUSTER_NAME, KafkaPattern.LITERAL):
            raise AclEntryRefused(f"the cluster is the literal {CLUSTER_NAME}")
        return {}
    if not entry.name:
        raise AclEntryRefused("a resource has a name")
    if entry.pattern == KafkaPattern.PREFIXED:
        return {"prefix": entry.name}
    if entry.pattern != KafkaPattern.LITERAL:
        raise AclEntryRefused("a rule is about a literal name or a prefix")
    return {} if entry.name == _EVERY_NAME else {"name": entry.name}


def _principal(said: str) -> str:
    kind, colon, name = said.partition(":")
    if not colon or not name or kind not in _TYPES:
        raise AclEntryRefused("a principal is User:NAME, Token:SUBJECT or Certificate:IDENTITY")
    if name == EVERYBODY:
        if kind != "User":
            raise AclEntryRefused("everybody is User:*")
        return EVERYBODY
    found = _TYPES[kind] + name
    if _shown_principal(found) != said:
        raise AclEntryRefused(f"{said} is written {_shown_principal(found)}")
    return found


def _shown_principal(principal: str) -> str:
    if principal == EVERYBODY:
        return "User:*"
    for kind, prefix in _TYPES.items():
        if prefix and principal.startswith(prefix):
            return f"{kind}:{principal.removeprefix(prefix)}"
    return f"Certificate:{principal}"


def entry_of(rule: TenantAclRule) -> AclEntry | None:
    """Return the entry that says the same; None: the rule is about what Kafka does not know."""
    if isinstance(rule.resource, msgspec.UnsetType) or rule.resource not in _KAFKAS_RESOURCE:
        return None
    resource = _KAFKAS_RESOURCE[rule.resource]
    action = _SAME.get(rule.action, rule.action)
    operation = _KAFKAS_OPERATION[resource].get(action)
    if operation is None:
        return None
    name, pattern = _EVERY_NAME, KafkaPattern.LITERAL
    if resource is KafkaResource.CLUSTER:
        name = CLUSTER_NAME
    elif not isinstance(rule.name, msgspec.UnsetType):
        name = rule.name
    elif not isinstance(rule.prefix, msgspec.UnsetType) and rule.prefix:
        name, pattern = rule.prefix, KafkaPattern.PREFIXED
    is_allowed = rule.effect is AclEffect.ALLOW
    permission = KafkaPermission.ALLOW if is_allowed else KafkaPermission.DENY
    who = _shown_principal(rule.principal)
    return AclEntry(resource, name, pattern, who, _HOST, operation, permission)


def suits(entry: AclEntry, wanted: AclEntry) -> bool:
    """Say whether a filter is about an entry."""
    return (
        wanted.resource in (KafkaResource.ANY, entry.resource)
        and wanted.operation in (KafkaOperation.ANY, entry.operation)
        and wanted.permission in (KafkaPermission.ANY, entry.permission)
        and wanted.principal in (None, entry.principal)
        and wanted.host in (None, entry.host)
        and _suits_name(entry, wanted)
    )


def _suits_name(entry: AclEntry, wanted: AclEntry) -> bool:
    if wanted.pattern in (KafkaPattern.LITERAL, KafkaPattern.PREFIXED):
        return wanted.pattern == entry.pattern and wanted.name in (None, entry.name)
    if wanted.name is None or wanted.name == entry.name:
        return True
    if wanted.pattern != KafkaPattern.MATCH:
        return False
    assert entry.name is not None
    if entry.pattern == KafkaPattern.PREFIXED:
        return wanted.name.startswith(entry.name)
    return entry.name == _EVERY_NAME
