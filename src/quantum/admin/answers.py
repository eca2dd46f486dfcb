"""What pages answer with, beside the objects of the control plane themselves."""

from __future__ import annotations

from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from clustor.control import (
    AccessRole,
    AclPolicy,
    AuditRing,
    CertificateBundle,
    ClusterConfig,
    ConfigVersion,
    ControlObject,
    DrFence,
    DurabilityState,
    FeatureGate,
    FeatureManifest,
    KeyEpochs,
    NodeLoad,
    NodeSpec,
    NodeState,
    OverrideEntry,
    Placement,
    ProofConflict,
    ProofTuple,
    Quarantine,
    QuotaPolicy,
    RoutingMap,
    SettingScope,
    SigningKey,
    TenantSpec,
)
from clustor.control.configuration import Value
from clustor.control.types import Count, Digest, Name, Text, WriterMode

Item = TypeVar("Item")


class AdminAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The root of all answers."""


class CallDone(AdminAnswer, frozen=True, kw_only=True):
    """The call stands, at a revision of the control plane; repeated, it answers the same."""

    request_id: str
    revision: Count
    result: dict[str, Any]


class ListPage(AdminAnswer, Generic[Item], frozen=True, kw_only=True):
    """Some of a list. `after` is where the next page begins; null: there is none."""

    items: list[Item]
    after: str | None
    revision: Count


class AccessAnswer(AdminAnswer, frozen=True, kw_only=True):
    """As whom the caller is seen, and whether this port asks for a certificate at all."""

    identity: str
    roles: tuple[AccessRole, ...]
    development: bool
    message: str


class GroupState(AdminAnswer, frozen=True, kw_only=True):
    placement: Placement
    proof: ProofTuple | None


class ClusterState(AdminAnswer, frozen=True, kw_only=True):
    """The whole cluster at one revision."""

    access: AccessAnswer
    revision: Count
    cache_age_ms: Count | None
    cluster: ClusterConfig | None
    nodes: list[NodeSpec]
    tenants: list[TenantSpec]
    routing: list[RoutingMap]
    partitions: list[GroupState]
    proof_conflicts: list[Count]
    quarantines: list[Quarantine]
    feature_gates: list[FeatureGate]
    fences: list[DrFence]
    overrides: list[OverrideEntry]
    key_epochs: KeyEpochs | None
    audit_records: Count


class TenantState(AdminAnswer, frozen=True, kw_only=True):
    """A tenant with its policies; what was never set has version 0."""

    tenant: TenantSpec
    quotas: QuotaPolicy
    acls: AclPolicy
    trust: CertificateBundle
    routing: RoutingMap | None


class GroupView(AdminAnswer, frozen=True, kw_only=True):
    """A group: what the control plane says of it, and how its replica on this node stands."""

    group: Count
    placement: Placement | None
    durability: DurabilityState | None
    proof: ProofTuple | None
    conflict: ProofConflict | None
    quarantines: list[Quarantine]
    local: dict[str, Any] | None


class NodeView(AdminAnswer, frozen=True, kw_only=True):
    """A node: what the control plane says of it, and what it last said of itself.

    `report_state` is Fresh, Stale (its word counts no more: it is down, or cut off), or None.
    """

    node_id: Count
    identity: str
    zone: Name
    address: Text
    capacity: Count
    state: NodeState
    registered_at: Count
    version: Text
    io_writer_mode: WriterMode | None
    features: tuple[Name, ...]
    report_state: str
    report_age_ms: Count | None
    load: NodeLoad | None


class WhyAnswer(AdminAnswer, frozen=True, kw_only=True):
    group: Count
    question: str
    answer: Any


class Features(AdminAnswer, frozen=True, kw_only=True):
    manifest: FeatureManifest | None
    gates: list[FeatureGate]


class KeysAnswer(AdminAnswer, frozen=True, kw_only=True):
    epochs: KeyEpochs | None
    keys: list[SigningKey]


class BundleRow(AdminAnswer, frozen=True, kw_only=True):
    """A definition bundle without its blob."""

    bundle_id: Name
    version: Count
    sha256: Digest
    blob_bytes: Count
    warmup_recipe: Text
    published_at: Count


class ConfigurationAnswer(AdminAnswer, frozen=True, kw_only=True):
    """The document of a scope that is in force; version 0: none was ever set."""

    scope: SettingScope
    version: Count
    oldest: Count
    in_force: ConfigVersion | None


class ConfigValue(AdminAnswer, frozen=True, kw_only=True):
    """Where a value comes from: the scope, and the version since which it has been what it is."""

    key: Name
    value: Value
    scope: SettingScope
    version: Count
    set_by: str
    set_at: Count
    takes_effect: str


class AuditRow(AdminAnswer, frozen=True, kw_only=True):
    """One call of the replicated trail; `previous` chains it to the record before."""

    ring: AuditRing
    sequence: Count
    at: Count
    identity: str
    roles: tuple[AccessRole, ...]
    break_glass: str | None
    kind: str
    request_id: str
    command_sha256: Digest
    outcome: str
    touched: tuple[str, ...]
    answer: Any
    previous: Digest


class RefusalRow(AdminAnswer, frozen=True, kw_only=True):
    at: Count
    identity: str | None
    method: str
    path: str
    error: str
    message: str
    request_id: str


class Refusals(AdminAnswer, frozen=True, kw_only=True):
    """The newest refusals of this node that never reached the log."""

    items: list[RefusalRow]
    total: Count


class LogLevel(AdminAnswer, frozen=True, kw_only=True):
    logger: Text
    level: str


class LogLevels(AdminAnswer, frozen=True, kw_only=True):
    items: list[LogLevel]


@cache
def list_page(kind: type[ControlObject] | type[AdminAnswer]) -> Any:
    """Return the type of a page of these."""
    return ListPage[kind]  # type: ignore[valid-type]
