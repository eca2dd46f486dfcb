"""Every command, in one table: its handler, who may call it, and how fresh a cache must be.

The table is the authorisation. Whatever is not in it does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from inspect import getdoc
from typing import Any, Final, TypeAlias, Union

import msgspec

from clustor.control import (
    audit,
    bundles,
    configuration,
    durability,
    features,
    fences,
    genesis,
    key_epochs,
    key_grants,
    lag_alerts,
    moves,
    nodes,
    overrides,
    preflight,
    proofs,
    quarantine,
    rbac,
    reports,
    retirement,
    signing,
    tenants,
)
from clustor.control.audit import AuditRing
from clustor.control.calls import Command
from clustor.control.draft import Draft
from clustor.control.rbac import CallerAuthority
from clustor.control.types import AccessRole, OverrideScope

Handler: TypeAlias = Callable[[Draft, CallerAuthority, Any], dict[str, Any]]


class CacheFreshness(StrEnum):
    """How fresh the cache of the node that takes the call must be (clustor §14.2, qq §§8.7, 19.2).

    ANY is for what nodes publish: a proof that needed a fresh cache could never end an outage.
    """

    FRESH = "Fresh"
    NOT_EXPIRED = "NotExpired"
    ANY = "Any"


@dataclass(frozen=True, slots=True)
class CommandKind:
    """One row. BreakGlass among the roles means: by a token of `scope`, or of the command's."""

    command: type[Command]
    handler: Handler
    roles: frozenset[AccessRole]
    freshness: CacheFreshness = CacheFreshness.NOT_EXPIRED
    ring: AuditRing = AuditRing.CALLS
    scope: OverrideScope | None = None
    is_policy: bool = False  # counts against the rate of quantumqtt §8.2.1

    @property
    def name(self) -> str:
        return self.command.__name__

    @property
    def is_open(self) -> bool:
        """Whether no role is asked for: the handler itself decides by what is presented."""
        return not self.roles


_OPERATOR: Final = frozenset({AccessRole.OPERATOR})
_TENANT: Final = frozenset({AccessRole.OPERATOR, AccessRole.TENANT_ADMIN})
_NODE: Final = frozenset({AccessRole.NODE})
_EITHER: Final = frozenset({AccessRole.OPERATOR, AccessRole.NODE})
_GLASS: Final = frozenset({AccessRole.BREAK_GLASS})
_OPEN: Final[frozenset[AccessRole]] = frozenset()
_FRESH, _ANY = CacheFreshness.FRESH, CacheFreshness.ANY
_BY_NODES = AuditRing.PUBLICATIONS

KINDS: Final = (
    CommandKind(genesis.InitializeCluster, genesis.on_initialize_cluster, _OPEN, _ANY),
    CommandKind(genesis.CompactHistory, genesis.on_compact_history, _OPERATOR),
    CommandKind(rbac.PublishRbacManifest, rbac.on_publish_rbac, _OPERATOR, _FRESH),
    CommandKind(signing.RegisterKey, signing.on_register_key, _OPERATOR, _FRESH),
    CommandKind(signing.RetireKey, signing.on_retire_key, _OPERATOR, _FRESH),
    CommandKind(key_epochs.AdvanceKeyEpochs, key_epochs.on_advance_key_epochs, _OPERATOR, _FRESH),
    CommandKind(
        key_epochs.ReportZeroization, key_epochs.on_report_zeroization, _NODE, _ANY, _BY_NODES
    ),
    CommandKind(key_grants.GrantDek, key_grants.on_grant_dek, _OPERATOR),
    CommandKind(key_grants.ReportDekReady, key_grants.on_report_dek_ready, _NODE, _ANY, _BY_NODES),
    CommandKind(key_grants.ActivateDek, key_grants.on_activate_dek, _OPERATOR),
    CommandKind(key_grants.ForgetDek, key_grants.on_forget_dek, _OPERATOR),
    # Nodes and placements.
    CommandKind(nodes.RegisterNode, nodes.on_register_node, _OPERATOR),
    CommandKind(nodes.IssueBootstrapToken, nodes.on_issue_bootstrap_token, _OPERATOR),
    CommandKind(nodes.EnrollNode, nodes.on_enroll_node, _OPEN, _ANY),
    CommandKind(reports.ReportNode, reports.on_report_node, _NODE, _ANY, _BY_NODES),
    CommandKind(reports.ReportSilence, reports.on_report_silence, _OPERATOR, _ANY, _BY_NODES),
    CommandKind(nodes.DrainNode, nodes.on_drain_node, _OPERATOR),
    CommandKind(nodes.RemoveNode, nodes.on_remove_node, _OPERATOR),
    CommandKind(preflight.PlacePartition, preflight.on_place_partition, _OPERATOR),
    CommandKind(retirement.RetirePartition, retirement.on_retire_partition, _OPERATOR),
    CommandKind(moves.SetRoutingMap, moves.on_set_routing_map, _OPERATOR),
    CommandKind(moves.SetDurabilityMode, moves.on_set_durability_mode, _OPERATOR, _FRESH),
    CommandKind(moves.SetFollowerReads, moves.on_set_follower_reads, _OPERATOR, _FRESH),
    CommandKind(moves.RecordMembership, moves.on_record_membership, _NODE, _ANY, _BY_NODES),
    CommandKind(
        durability.RecordDurabilityMode,
        durability.on_record_durability_mode,
        _NODE,
        _ANY,
        _BY_NODES,
    ),
    CommandKind(lag_alerts.ReportLag, lag_alerts.on_report_lag, _NODE, _ANY, _BY_NODES),
    CommandKind(
        quarantine.ReportQuarantine, quarantine.on_report_quarantine, _EITHER, _ANY, _BY_NODES
    ),
    CommandKind(quarantine.ClearQuarantine, quarantine.on_clear_quarantine, _OPERATOR),
    CommandKind(
        quarantine.AdminResumePartition,
        quarantine.on_admin_resume,
        _GLASS,
        scope=OverrideScope.QUARANTINE,
    ),
    # Proofs.
    CommandKind(proofs.PublishProofs, proofs.on_publish_proofs, _NODE, _ANY, _BY_NODES),
    CommandKind(proofs.ClearProofConflict, proofs.on_clear_proof_conflict, _OPERATOR, _ANY),
    # Features, bundles, overrides, fences.
    CommandKind(
        features.PublishFeatureManifest, features.on_publish_feature_manifest, _OPERATOR, _FRESH
    ),
    CommandKind(features.SetFeatureGate, features.on_set_feature_gate, _OPERATOR, _FRESH),
    CommandKind(bundles.PublishBundle, bundles.on_publish_bundle, _OPERATOR),
    CommandKind(bundles.ArmBarrier, bundles.on_arm_barrier, _OPERATOR),
    CommandKind(bundles.ReportWarmup, bundles.on_report_warmup, _NODE, _ANY, _BY_NODES),
    CommandKind(bundles.DefineActivate, bundles.on_define_activate, _OPERATOR, _FRESH),
    CommandKind(overrides.IssueBreakGlass, overrides.on_issue_break_glass, _OPERATOR),
    CommandKind(overrides.RecordOverride, overrides.on_record_override, _GLASS),
    CommandKind(overrides.RevokeOverride, overrides.on_revoke_override, _OPERATOR),
    CommandKind(fences.CommitFence, fences.on_commit_fence, _OPERATOR, _FRESH),
    CommandKind(fences.PromoteRegion, fences.on_promote_region, _OPERATOR, _FRESH),
    CommandKind(fences.LiftFence, fences.on_lift_fence, _OPERATOR, _FRESH),
    # Tenants and configuration.
    CommandKind(tenants.CreateTenant, tenants.on_create_tenant, _OPERATOR),
    CommandKind(tenants.UpdateTenant, tenants.on_update_tenant, _OPERATOR),
    CommandKind(tenants.DeleteTenant, retirement.on_delete_tenant, _OPERATOR),
    CommandKind(tenants.SetQuotas, tenants.on_set_quotas, _TENANT, _FRESH, is_policy=True),
    CommandKind(tenants.SetAcls, tenants.on_set_acls, _OPERATOR, _FRESH, is_policy=True),
    CommandKind(tenants.SetTrust, tenants.on_set_trust, _OPERATOR, _FRESH, is_policy=True),
    CommandKind(configuration.SetConfiguration, configuration.on_set_configuration, _OPERATOR),
    CommandKind(
        configuration.RollBackConfiguration, configuration.on_roll_back_configuration, _OPERATOR
    ),
    CommandKind(audit.IndexAudit, audit.on_index_audit, _EITHER, ring=_BY_NODES),
)

KIND_OF: Final = {kind.command: kind for kind in KINDS}

_decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(
    Union[tuple(kind.command for kind in KINDS)]  # noqa: UP007  # made from the table
)


def decode_command(encoded: bytes | msgspec.Raw) -> Command:
    """Read a command; raises msgspec.DecodeError, UnicodeDecodeError."""
    return _decoder.decode(encoded)


def scope_needed(kind: CommandKind, command: Command) -> OverrideScope | None:
    """Name the scope that a break-glass token must have for this call."""
    if isinstance(command, overrides.RecordOverride):
        return command.scope
    return kind.scope


# For whoever makes an API of it.


@dataclass(frozen=True, slots=True)
class Description:
    """A command as an API's document shows it; `schema` is JSON Schema."""

    name: str
    summary: str
    roles: tuple[AccessRole, ...]
    freshness: CacheFreshness
    break_glass_scope: OverrideScope | None
    schema: dict[str, Any]


def describe(
    ref_template: str = "#/components/schemas/{name}",
) -> tuple[list[Description], dict[str, Any]]:
    """Return every command by name, and the schemas that theirs refer to."""
    schemas, components = msgspec.json.schema_components(
        [kind.command for kind in KINDS], ref_template=ref_template
    )
    descriptions = [
        Description(
            name=kind.name,
            summary=(getdoc(kind.command) or "").partition("\n")[0],
            roles=tuple(sorted(kind.roles)),
            freshness=kind.freshness,
            break_glass_scope=kind.scope,
            schema=schema,
        )
        for kind, schema in zip(KINDS, schemas, strict=True)
    ]
    return sorted(descriptions, key=lambda each: each.name), components
