"""Bundles, features, fences, key epochs, tenants, configuration: rules one by one."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from clustor.control import (
    POLICY_WRITES_MAX,
    AccessRole,
    AclPolicy,
    ActivationBarrier,
    AdvanceKeyEpochs,
    BarrierState,
    Binding,
    CertificateBundle,
    ConfigVersion,
    CreateTenant,
    DefineActivate,
    DeleteTenant,
    DrFence,
    Feature,
    FeatureGate,
    FeatureRow,
    FenceState,
    GateState,
    KeyEpochs,
    OverrideScope,
    PromoteRegion,
    PublishRbacManifest,
    QuotaPolicy,
    RefusalCode,
    ReportNode,
    ReportZeroization,
    RollBackConfiguration,
    ScopeKind,
    SetConfiguration,
    SetFeatureGate,
    SetQuotas,
    SettingScope,
    SniEntry,
    StandbyEvidence,
    TenantSpec,
    WarmupReadiness,
    WriterMode,
    canonical,
    cluster_state,
    explain,
    find,
    key_of,
    scan,
)
from clustor.control.configuration import VERSIONS_KEPT_MAX
from tests.clustor.control.plane import OPERATOR, Plane, digest, node_identity, proof, settled_plane
from tests.clustor.control.samples import ROWS, SAMPLES, bundle, manifest

# The encoding.

words = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | words


@given(st.dictionaries(st.from_regex(r"[a-z.]{1,10}", fullmatch=True), values))
def test_objects_are_canonical_json(document: dict[str, bool | int | str]) -> None:
    version = ConfigVersion(
        scope=SettingScope(kind=ScopeKind.CLUSTER),
        version=1,
        document=document,
        set_by="x",
        set_at=1,
    )
    assert canonical(version) == rfc8785.dumps(msgspec.to_builtins(version))


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_commands_are_canonical_json(name: str) -> None:
    assert canonical(SAMPLES[name]) == rfc8785.dumps(msgspec.to_builtins(SAMPLES[name]))


def test_every_object_in_the_store_stands_at_its_own_key() -> None:
    plane = settled_plane()
    assert key_of(TenantSpec, "a") == b"tenant/a"
    for kind in (TenantSpec, SniEntry, QuotaPolicy):
        for each in scan(plane.machine.kv, kind):
            record = plane.machine.kv.get(each.key())
            assert record is not None
            assert record.value == canonical(each)


# Definition bundles (clustor §9.7).


def armed() -> Plane:
    plane = settled_plane()
    plane.done(bundle())
    plane.done(SAMPLES["ArmBarrier"])
    return plane


def barrier(plane: Plane) -> ActivationBarrier:
    found = find(plane.machine.kv, ActivationBarrier, "w1")
    assert found is not None
    return found


def test_a_bundle_s_digest_is_checked() -> None:
    plane = settled_plane()
    wrong = msgspec.structs.replace(bundle(), sha256=digest("something else"))
    assert plane.refused(wrong) is RefusalCode.INVALID


def all_report(plane: Plane, *ratios: int) -> None:
    """Let so many of the partition's voters say how ready they are."""
    for node, ratio in enumerate(ratios, 1):
        report = SAMPLES["ReportWarmup"]
        said = msgspec.structs.replace(report, node_id=node, partition_ready_ratio=ratio)
        plane.done(said, by=node_identity(node))


def test_a_barrier_opens_when_every_partition_is_ready_in_time() -> None:
    plane = armed()
    activate = DefineActivate(barrier_id="w1")
    assert plane.refused(activate) is RefusalCode.NOT_READY
    all_report(plane, 900_000, 900_000, 899_999)
    assert plane.refused(activate) is RefusalCode.NOT_READY
    all_report(plane, 950_000, 950_000, 950_000)
    plane.now_ms += 10_001
    assert plane.refused(activate) is RefusalCode.NOT_READY, "the reports are too old"
    all_report(plane, 950_000, 950_000)
    assert plane.refused(activate) is RefusalCode.NOT_READY, "a silent voter is not ready"
    all_report(plane, 950_000, 950_000, 900_000)
    plane.done(activate)
    held = barrier(plane)
    readiness = list(scan(plane.machine.kv, WarmupReadiness, "b1"))
    assert held.state is BarrierState.ACTIVATED
    assert held.readiness_digest == sha256(canonical(readiness)).digest()
    assert plane.refused(activate) is RefusalCode.INVALID


def test_a_missed_deadline_aborts_the_barrier_for_good() -> None:
    plane = armed()
    plane.now_ms += 60_001
    plane.done(SAMPLES["ReportWarmup"], by=node_identity(1))
    activate = DefineActivate(barrier_id="w1")
    assert plane.refused(activate) is RefusalCode.ACTIVATION_BARRIER_EXPIRED
    assert barrier(plane).state is BarrierState.EXPIRED
    assert plane.refused(activate) is RefusalCode.INVALID


# Features (clustor §14.2).


def gate(state: GateState = GateState.ENABLED, predicate: bytes = b"") -> SetFeatureGate:
    return SetFeatureGate(
        name=Feature.LEADER_LEASES,
        state=state,
        predicate_digest=predicate or ROWS[0].predicate_digest,
    )


def support(plane: Plane, *node_ids: int) -> None:
    for node_id in node_ids:
        report = ReportNode(
            node_id=node_id,
            version="1",
            io_writer_mode=WriterMode.FIXED_URING,
            features=(Feature.LEADER_LEASES,),
        )
        plane.done(report, by=node_identity(node_id))


def test_a_gate_opens_when_every_node_supports_the_feature() -> None:
    plane = settled_plane()
    assert plane.refused(gate()) is RefusalCode.NOT_FOUND, "there is no manifest"
    plane.done(manifest())
    support(plane, 1, 2, 3)
    assert plane.refused(gate()) is RefusalCode.NOT_SUPPORTED
    support(plane, 4)
    assert plane.refused(gate(predicate=digest("x"))) is RefusalCode.PREDICATE_MISMATCH
    plane.done(gate())
    held = find(plane.machine.kv, FeatureGate, Feature.LEADER_LEASES.value)
    assert held is not None
    assert (held.state, held.changed_by) == (GateState.ENABLED, OPERATOR)


def test_a_proof_conflict_keeps_gates_shut() -> None:
    plane = settled_plane()
    plane.done(manifest())
    support(plane, 1, 2, 3, 4)
    plane.publish(proof(1, 5))
    plane.publish(proof(1, 5, segment=9))
    assert plane.refused(gate()) is RefusalCode.PROOF_CONFLICT
    plane.done(gate(GateState.DISABLED))


def test_a_new_predicate_closes_the_gate() -> None:
    plane = settled_plane()
    plane.done(manifest())
    support(plane, 1, 2, 3, 4)
    plane.done(gate())
    assert plane.refused(manifest(1)) is RefusalCode.CONFLICT
    plane.done(manifest(2, (FeatureRow(name=Feature.LEADER_LEASES, predicate="another"),)))
    held = find(plane.machine.kv, FeatureGate, Feature.LEADER_LEASES.value)
    assert held is not None
    assert held.state is GateState.DISABLED


def test_an_unsigned_manifest_is_refused() -> None:
    plane = settled_plane()
    forged = msgspec.structs.replace(manifest(), rows=())
    assert plane.refused(forged) is RefusalCode.BAD_SIGNATURE


# DR fences (quantumqtt §17).


def evidence(index: int, term: int = 1) -> StandbyEvidence:
    return StandbyEvidence(
        partition_id=1,
        last_durable_term=term,
        last_durable_index=index,
        manifest_hash=digest("manifest"),
    )


def test_a_region_is_promoted_behind_a_fence_that_its_ledger_reaches() -> None:
    plane = settled_plane()
    fence = SAMPLES["CommitFence"]
    assert plane.refused(fence) is RefusalCode.NOT_FOUND, "no proof, no fence"
    plane.publish(proof(1, 10))
    assert plane.done(fence) == {"fence_epoch": 1}
    behind = PromoteRegion(fence_id="f1", region="west", evidence=(evidence(9),))
    assert plane.refused(behind) is RefusalCode.FENCE_INCOMPLETE
    home = msgspec.structs.replace(behind, region="east", evidence=(evidence(10),))
    assert plane.refused(home) is RefusalCode.INVALID
    plane.done(msgspec.structs.replace(behind, evidence=(evidence(10),)))
    held = find(plane.machine.kv, DrFence, "f1")
    assert held is not None
    assert (held.state, held.promoted_region) == (FenceState.PROMOTED, "west")
    assert plane.refused(SAMPLES["LiftFence"]) is RefusalCode.INVALID
    second = msgspec.structs.replace(fence, fence_id="f2")
    assert plane.done(second) == {"fence_epoch": 2}


def test_a_promotion_that_loses_something_needs_an_override_and_says_so() -> None:
    plane = settled_plane()
    plane.publish(proof(1, 10))
    plane.done(SAMPLES["CommitFence"])
    plane.override("o", OverrideScope.DURABILITY)
    promote = PromoteRegion(fence_id="f1", region="west", evidence=(), override_ref="o")
    assert plane.done(promote) == {"fence_epoch": 1, "behind": 1}


# Key epochs (clustor §12.2).


def epochs(*parts: int) -> AdvanceKeyEpochs:
    return AdvanceKeyEpochs(kek_version=parts[0], dek_epoch=parts[1], integrity_mac_epoch=parts[2])


def test_key_epochs_only_grow() -> None:
    plane = settled_plane()
    plane.done(epochs(1, 5, 1))
    for back in (epochs(0, 6, 2), epochs(1, 4, 2), epochs(2, 6, 0)):
        assert plane.refused(back) is RefusalCode.KEY_EPOCH_REPLAY
    assert plane.refused(epochs(1, 5, 1)) is RefusalCode.INVALID
    plane.done(epochs(1, 6, 1))
    held = find(plane.machine.kv, KeyEpochs, "newest")
    assert held is not None
    assert held.decrypt_only_until == plane.now_ms + 172_800_000
    gone = ReportZeroization(node_id=1, dek_epoch=5, digest=digest("gone"))
    plane.done(gone, by=node_identity(1))
    early = msgspec.structs.replace(gone, dek_epoch=6)
    assert plane.refused(early, by=node_identity(1)) is RefusalCode.IN_USE


# RBAC (clustor §12.3).


def test_a_manifest_always_leaves_an_operator() -> None:
    plane = settled_plane()
    none = PublishRbacManifest(
        expected_version=1, bindings=(Binding(identity="x", role=AccessRole.OBSERVER),)
    )
    assert plane.refused(none) is RefusalCode.INVALID
    other = PublishRbacManifest(
        expected_version=1, bindings=(Binding(identity="x", role=AccessRole.OPERATOR),)
    )
    plane.done(other)
    assert plane.refused(bundle()) is RefusalCode.UNAUTHORIZED, "it holds with the next call"
    plane.done(bundle(), by="x")
    assert plane.refused(other) is RefusalCode.UNAUTHORIZED


@pytest.mark.parametrize(
    "binding",
    [
        Binding(identity="x", role=AccessRole.NODE),
        Binding(identity="x", role=AccessRole.BREAK_GLASS),
        Binding(identity="x", role=AccessRole.TENANT_ADMIN),
        Binding(identity="x", role=AccessRole.OBSERVER, tenant_id="a"),
    ],
)
def test_a_binding_says_something(binding: Binding) -> None:
    plane = settled_plane()
    operator = Binding(identity=OPERATOR, role=AccessRole.OPERATOR)
    command = PublishRbacManifest(expected_version=1, bindings=(operator, binding))
    assert plane.refused(command) is RefusalCode.INVALID


# Tenants (quantumqtt §§8.3, 11.2).


def test_two_tenants_share_neither_name_nor_host() -> None:
    plane = settled_plane()
    again = CreateTenant(tenant_id="a", sni="other.example.com")
    host = CreateTenant(tenant_id="b", sni="a.example.com")
    assert plane.refused(again) is RefusalCode.ALREADY_EXISTS
    assert plane.refused(host) is RefusalCode.ALREADY_EXISTS


def test_a_deleted_tenant_leaves_its_host_free_and_no_policies() -> None:
    plane = settled_plane()
    plane.done(SAMPLES["SetAcls"])
    plane.done(SAMPLES["SetTrust"])
    plane.done(plane.placing(5, tenant_id="a"))
    assert plane.refused(DeleteTenant(tenant_id="a")) is RefusalCode.IN_USE
    plane.done(msgspec.structs.replace(SAMPLES["RetirePartition"], partition_id=5))
    plane.done(DeleteTenant(tenant_id="a"))
    for kind in (TenantSpec, QuotaPolicy, AclPolicy, CertificateBundle):
        assert find(plane.machine.kv, kind, "a") is None
    plane.done(CreateTenant(tenant_id="b", sni="a.example.com"))


def test_quotas_have_defaults_maxima_and_versions() -> None:
    plane = settled_plane()
    held = find(plane.machine.kv, QuotaPolicy, "a")
    assert held == QuotaPolicy(tenant_id="a")
    over = SetQuotas(tenant_id="a", expected_version=0, quotas={"retained_bytes_max": 2**41})
    assert plane.refused(over) is RefusalCode.CAPACITY_EXCEEDED
    unknown = SetQuotas(tenant_id="a", expected_version=0, quotas={"version": 9})
    assert plane.refused(unknown) is RefusalCode.INVALID
    plane.done(SAMPLES["SetQuotas"])
    assert plane.refused(SAMPLES["SetQuotas"]) is RefusalCode.CONFLICT
    held = find(plane.machine.kv, QuotaPolicy, "a")
    assert held is not None
    assert (held.version, held.connections_max) == (1, 1000)


def test_policy_changes_are_bounded_to_two_hundred_a_second() -> None:
    """quantumqtt §8.2.1."""
    plane = settled_plane()
    for version in range(POLICY_WRITES_MAX):
        plane.done(SetQuotas(tenant_id="a", expected_version=version, quotas={}))
    late = SetQuotas(tenant_id="a", expected_version=POLICY_WRITES_MAX, quotas={})
    plane.now_ms += 999
    assert plane.refused(late) is RefusalCode.BUSY
    plane.done(CreateTenant(tenant_id="b", sni="b.example.com"))
    plane.now_ms += 1
    plane.done(late)


# Configuration (quantumqtt §19).

CLUSTER = SettingScope(kind=ScopeKind.CLUSTER)
TENANT = SettingScope(kind=ScopeKind.TENANT, name="a")


def configure(plane: Plane, scope: SettingScope, version: int, **document: int) -> None:
    plane.done(SetConfiguration(scope=scope, expected_version=version, document=dict(document)))


def test_a_rollback_is_a_new_version_of_an_old_document() -> None:
    plane = settled_plane()
    configure(plane, CLUSTER, 0, a=1)
    configure(plane, CLUSTER, 1, a=2)
    stale = SetConfiguration(scope=CLUSTER, expected_version=1, document={})
    assert plane.refused(stale) is RefusalCode.CONFLICT
    assert plane.done(RollBackConfiguration(scope=CLUSTER, to_version=1)) == {"version": 3}
    versions = list(scan(plane.machine.kv, ConfigVersion, "Cluster", "all"))
    assert [(each.version, each.document, each.restores) for each in versions] == [
        (1, {"a": 1}, None),
        (2, {"a": 2}, None),
        (3, {"a": 1}, 1),
    ]
    missing = RollBackConfiguration(scope=CLUSTER, to_version=9)
    assert plane.refused(missing) is RefusalCode.NOT_FOUND


def test_a_scope_keeps_a_bounded_number_of_versions() -> None:
    plane = settled_plane()
    for version in range(VERSIONS_KEPT_MAX + 2):
        configure(plane, CLUSTER, version, a=version)
    versions = [each.version for each in scan(plane.machine.kv, ConfigVersion, "Cluster", "all")]
    assert versions == list(range(3, VERSIONS_KEPT_MAX + 3))


def test_the_narrowest_scope_wins_and_who_set_it_is_known() -> None:
    plane = settled_plane()
    kv = plane.machine.kv
    configure(plane, CLUSTER, 0, a=1, b=1)
    plane.now_ms += 10
    configure(plane, CLUSTER, 1, a=1, b=2)
    plane.now_ms += 10
    configure(plane, TENANT, 0, b=9)
    scopes = [CLUSTER, TENANT]
    a, b = explain(kv, "a", scopes), explain(kv, "b", scopes)
    assert a is not None
    assert b is not None
    assert (a.value, a.scope, a.version, a.set_at) == (1, CLUSTER, 1, plane.now_ms - 20)
    assert (b.value, b.scope, b.version, b.set_by) == (9, TENANT, 1, OPERATOR)
    cluster = explain(kv, "b", [CLUSTER])
    assert cluster is not None
    assert (cluster.value, cluster.version) == (2, 2)
    assert explain(kv, "c", scopes) is None


def test_only_the_cluster_s_scope_is_named_all() -> None:
    plane = settled_plane()
    for scope in (
        SettingScope(kind=ScopeKind.CLUSTER, name="x"),
        SettingScope(kind=ScopeKind.NODE),
    ):
        command = SetConfiguration(scope=scope, expected_version=0, document={})
        assert plane.refused(command) is RefusalCode.INVALID


def test_the_cluster_s_state_is_one_document() -> None:
    plane = settled_plane()
    plane.publish(proof(1, 10))
    state = msgspec.json.decode(canonical(cluster_state(plane.machine.kv)))
    assert [node["node_id"] for node in state["nodes"]] == [1, 2, 3, 4]
    assert state["partitions"][0]["proof"]["last_durable_index"] == 10
    assert state["cluster"]["cluster_id"] == "test"
