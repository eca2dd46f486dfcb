"""The words of access, the same for every protocol: who may do what to which resource.

A protocol maps its own requests onto them. To write is *publish* at a topic and *produce* at
everything else, to read is *subscribe* at a topic and *consume* at everything else; whoever asks by
the other word means the same.

| operation | topic | stream, queue | group | transactional id | cluster |
| --- | --- | --- | --- | --- | --- |
| publish, produce | MQTT PUBLISH, AMQP to `/topics/…` | append | | write under it | |
| subscribe, consume | MQTT SUBSCRIBE | read, take | join, commit | | |
| manage | | create, change, delete | delete, reset | | create and list everything |
| describe | follows from any other operation that is allowed | = | = | = | = |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from quantum.tenancy.types import Principal


class ResourceKind(StrEnum):
    """What a rule is about."""

    TOPIC = "topic"
    """A topic, or a filter of topics: rules name them by filters."""
    STREAM = "stream"
    """A stream; what Kafka calls a topic."""
    QUEUE = "queue"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"
    """The tenant as a whole; it has no name."""


class Operation(StrEnum):
    """What a client wants to do."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    CONSUME = "consume"
    PRODUCE = "produce"
    MANAGE = "manage"
    DESCRIBE = "describe"


_READ_WRITE_MANAGE: Final = frozenset({Operation.PRODUCE, Operation.CONSUME, Operation.MANAGE})
OPERATIONS_OF: Final[Mapping[ResourceKind, frozenset[Operation]]] = {
    ResourceKind.TOPIC: frozenset({Operation.PUBLISH, Operation.SUBSCRIBE}),
    ResourceKind.STREAM: _READ_WRITE_MANAGE,
    ResourceKind.QUEUE: _READ_WRITE_MANAGE,
    ResourceKind.GROUP: frozenset({Operation.CONSUME, Operation.MANAGE}),
    ResourceKind.TRANSACTIONAL_ID: frozenset({Operation.PRODUCE}),
    ResourceKind.CLUSTER: frozenset({Operation.MANAGE}),
}
"""What can be done to a resource of each kind, besides describing it."""

_AT_TOPICS: Final = {
    Operation.PRODUCE: Operation.PUBLISH,
    Operation.CONSUME: Operation.SUBSCRIBE,
}
_ELSEWHERE: Final = {kept: said for said, kept in _AT_TOPICS.items()}


def named_for(kind: ResourceKind, operation: Operation) -> Operation:
    """Return an operation by the word that is used of this kind of resource."""
    words = _AT_TOPICS if kind is ResourceKind.TOPIC else _ELSEWHERE
    return words.get(operation, operation)


def any_of(kind: ResourceKind) -> frozenset[Operation]:
    """Return what a rule about any operation means; describing a topic needs no rule."""
    known = OPERATIONS_OF[kind]
    return known if kind is ResourceKind.TOPIC else known | {Operation.DESCRIBE}


class Effect(Enum):
    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class AclRule:
    """One line of a tenant's access list."""

    effect: Effect
    operations: frozenset[Operation]
    pattern: bytes
    """Of topics a filter, in which `%c` and `%u` may stand for levels; else a name."""
    principals: frozenset[Principal] | None = None
    """Whom it concerns; None for everybody."""
    number: int = field(default=0, compare=False)
    """Its place in the list that people wrote, from 1; 0: nobody wrote it."""
    kind: ResourceKind = ResourceKind.TOPIC
    is_prefix: bool = False
    """Whether every name that begins with the pattern is meant; never so of topics."""


class Ground(Enum):
    """Why a decision was made, for the audit log."""

    ALLOWED = "allowed by a rule"
    NO_LIST = "the tenant has no access list, so everything is"
    DENIED = "denied by a rule"
    NOT_ALLOWED = "no rule allows it"
    UNSAFE_ID = "a rule denies by an id that cannot be a level"
    NO_TOPIC = "neither a topic nor a filter"


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """What a check found."""

    ground: Ground
    rule: AclRule | None = None
    """The rule that decided; where several together allow a filter, one of them."""
    withholds: AclRule | None = None
    """Of a subscription that is allowed: a rule that denies some of its topics."""

    @property
    def allowed(self) -> bool:
        return self.ground is Ground.ALLOWED or self.ground is Ground.NO_LIST


UNRESTRICTED: Final = AccessDecision(Ground.NO_LIST)
NOT_ALLOWED: Final = AccessDecision(Ground.NOT_ALLOWED)
UNSAFE_ID: Final = AccessDecision(Ground.UNSAFE_ID)
NO_TOPIC: Final = AccessDecision(Ground.NO_TOPIC)
