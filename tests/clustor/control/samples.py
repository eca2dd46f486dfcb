"""One well-formed command of every kind; whether it would be carried out is another matter."""

from __future__ import annotations

from clustor.control import (
    AccessRole,
    AclAction,
    AclEffect,
    ActivateDek,
    AdminResumePartition,
    AdvanceKeyEpochs,
    ArmBarrier,
    AuditRing,
    Binding,
    ClearProofConflict,
    ClearQuarantine,
    Command,
    CommitFence,
    CompactHistory,
    CreateTenant,
    DefineActivate,
    DeleteTenant,
    DrainNode,
    EnrollNode,
    Feature,
    FeatureRow,
    ForgetDek,
    GateState,
    GrantDek,
    IndexAudit,
    IssueBootstrapToken,
    IssueBreakGlass,
    KeyPurpose,
    LiftFence,
    ManifestContent,
    ModeName,
    OverrideScope,
    PromoteRegion,
    PublishBundle,
    PublishFeatureManifest,
    PublishProofs,
    PublishRbacManifest,
    QuarantineCause,
    RecordDurabilityMode,
    RecordMembership,
    RegisterKey,
    RegisterNode,
    RemoveNode,
    ReportDekReady,
    ReportLag,
    ReportNode,
    ReportQuarantine,
    ReportSilence,
    ReportWarmup,
    ReportZeroization,
    RetireKey,
    RetirePartition,
    RevokeOverride,
    RollBackConfiguration,
    ScopeKind,
    SetAcls,
    SetConfiguration,
    SetDurabilityMode,
    SetFeatureGate,
    SetFollowerReads,
    SetQuotas,
    SetRoutingMap,
    SettingScope,
    SetTrust,
    TenantAclRule,
    TenantTier,
    UpdateTenant,
    WriterMode,
    sign,
    sign_proofs,
)
from tests.clustor.control.plane import (
    ACTOR,
    OPERATOR,
    PROOF_KEY,
    RELEASE_KEY,
    START_MS,
    Plane,
    digest,
    genesis,
    node_identity,
    proof,
    public,
    signed_override,
)

ROWS = (FeatureRow(name=Feature.LEADER_LEASES, predicate="lease inequality holds"),)
BLOB = b"a definition"


def manifest(version: int = 1, rows: tuple[FeatureRow, ...] = ROWS) -> PublishFeatureManifest:
    content = ManifestContent(version=version, rows=rows)
    signature = sign(RELEASE_KEY, "r1", KeyPurpose.CP_RELEASE, content)
    return PublishFeatureManifest(version=version, rows=rows, signature=signature)


def bundle(bundle_id: str = "b1") -> PublishBundle:
    return PublishBundle(
        bundle_id=bundle_id, version=1, sha256=digest(BLOB.decode()), definition_blob=BLOB
    )


_all: tuple[Command, ...] = (
    genesis(),
    CompactHistory(revision=1),
    PublishRbacManifest(
        expected_version=1, bindings=(Binding(identity=OPERATOR, role=AccessRole.OPERATOR),)
    ),
    RegisterKey(
        purpose=KeyPurpose.CONTROL_PLANE_PROOF, key_id="p2", public_key=public(RELEASE_KEY)
    ),
    RetireKey(purpose=KeyPurpose.CONTROL_PLANE_PROOF, key_id="p1", retires_at=START_MS),
    AdvanceKeyEpochs(kek_version=1, dek_epoch=2, integrity_mac_epoch=1),
    ReportZeroization(node_id=1, dek_epoch=1, digest=digest("gone")),
    GrantDek(epoch=3, wrapped="ab" * 40, kek_fingerprint="0123456789abcdef"),
    ReportDekReady(node_id=1, epoch=3),
    ActivateDek(epoch=3, activates_at=START_MS),
    ForgetDek(epoch=3),
    RegisterNode(
        node_id=9, identity=node_identity(9), zone="z0", address="node9:7000", capacity=100
    ),
    IssueBootstrapToken(token_id="t1", secret_sha256=digest("a secret of the node"), ttl_ms=60_000),
    EnrollNode(
        token_id="t1",
        secret="a secret of the node",
        node_id=8,
        zone="z0",
        address="node8:7000",
        capacity=100,
    ),
    ReportNode(node_id=1, version="1.0", io_writer_mode=WriterMode.FIXED_URING, features=()),
    ReportSilence(node_id=1),
    ReportLag(partition_id=1, node_id=1, term=3, followers=(2,), lag_bytes=600_000_000),
    DrainNode(node_id=1, draining=True),
    RemoveNode(node_id=4),
    Plane.placing(2, 1, 2, 3),
    RetirePartition(partition_id=1, expected_routing_epoch=1),
    RecordDurabilityMode(
        partition_id=1, node_id=1, term=2, mode=ModeName.STRICT, durability_mode_epoch=0
    ),
    SetRoutingMap(tenant_id="a", partitions=(1,), expected_routing_epoch=0),
    SetDurabilityMode(partition_id=1, mode=ModeName.GROUP_FSYNC, expected_epoch=0),
    SetFollowerReads(partition_id=1, capability=True),
    RecordMembership(
        partition_id=1,
        node_id=1,
        routing_epoch=1,
        membership_digest=digest("members"),
        durability_mode_epoch=0,
    ),
    ReportQuarantine(
        partition_id=1, node_id=1, cause=QuarantineCause.INTEGRITY, detail="mac failure"
    ),
    ClearQuarantine(partition_id=1, node_id=1, evidence="manifest 7"),
    AdminResumePartition(partition_id=1, node_id=1, justification="repaired by hand"),
    PublishProofs(node_id=1, proofs=sign_proofs(PROOF_KEY, "p1", [proof(1, 10, at=START_MS)])),
    ClearProofConflict(partition_id=1, justification="restored from the right side"),
    manifest(),
    SetFeatureGate(
        name=Feature.LEADER_LEASES,
        state=GateState.ENABLED,
        predicate_digest=ROWS[0].predicate_digest,
    ),
    bundle(),
    ArmBarrier(
        barrier_id="w1",
        bundle_id="b1",
        readiness_threshold=900_000,
        warmup_deadline_ms=60_000,
        readiness_window_ms=10_000,
        partitions=(1,),
    ),
    ReportWarmup(
        node_id=1,
        partition_id=1,
        bundle_id="b1",
        shadow_apply_checkpoint_index=5,
        partition_ready_ratio=950_000,
    ),
    DefineActivate(barrier_id="w1"),
    IssueBreakGlass(
        token_id="g1",
        scope=OverrideScope.SURVIVABILITY,
        actor_id=ACTOR,
        ticket_url="https://tickets/1",
        ttl_ms=300_000,
    ),
    signed_override("o1", OverrideScope.SURVIVABILITY, START_MS + 600_000),
    RevokeOverride(override_id="o1"),
    CommitFence(fence_id="f1", region="east", partitions=(1,)),
    PromoteRegion(fence_id="f1", region="west", evidence=()),
    LiftFence(fence_id="f1"),
    CreateTenant(tenant_id="b", sni="b.example.com"),
    UpdateTenant(
        tenant_id="a",
        tier=TenantTier.PRODUCTION,
        group_fsync_allowed=False,
        dr_shipping=True,
        suspended=False,
    ),
    DeleteTenant(tenant_id="a"),
    SetQuotas(tenant_id="a", expected_version=0, quotas={"connections_max": 1000}),
    SetAcls(
        tenant_id="a",
        expected_version=0,
        rules=(TenantAclRule(effect=AclEffect.ALLOW, action=AclAction.ANY),),
    ),
    SetTrust(tenant_id="a", expected_version=0, roots=("-----BEGIN CERTIFICATE-----",)),
    SetConfiguration(
        scope=SettingScope(kind=ScopeKind.CLUSTER),
        expected_version=0,
        document={"flow.entry_credit_max": 4096},
    ),
    RollBackConfiguration(scope=SettingScope(kind=ScopeKind.CLUSTER), to_version=1),
    IndexAudit(ring=AuditRing.CALLS, through=1, sha256=digest("segment"), location="s3://audit/1"),
)

SAMPLES = {type(command).__name__: command for command in _all}
