"""Which records of a control plane begin a new cluster, and which tenants an archive stands for."""

from __future__ import annotations

import pytest

from clustor.control import (
    AccessRole,
    AclPolicy,
    AuditRecord,
    Binding,
    CertificateBundle,
    ClusterConfig,
    ConfigHead,
    ConfigVersion,
    DeleteTenant,
    NodeSpec,
    PublishRbacManifest,
    QuotaPolicy,
    RbacManifest,
    ScopeKind,
    SetConfiguration,
    SetQuotas,
    SettingScope,
    SetTrust,
    TenantSpec,
    find,
    scan,
)
from clustor.runtime.cluster_file import ClusterFile, NodeEntry
from clustor.runtime.errors import DataDirectoryRefused
from quantum.archive import ArchiveMissing, PrgId
from quantum.node.restored_records import begun_with_records, tenants_at
from tests.quantum.serving.test_control_words import Words, rule

NOW_MS = 1_800_000_000_000
PEOPLE = "spiffe://people/eve"


def new_cluster() -> ClusterFile:
    node = NodeEntry(1, "127.0.0.1", 7010, 7011, signing_key="ab" * 32)
    return ClusterFile("back", 1, (node,), birth_id="b" * 32, control_founders=(1,))


@pytest.fixture
def words() -> Words:
    found = Words()
    found.create()
    found.carry_out()
    return found


def prgs(*tenants: str) -> list[PrgId]:
    return [PrgId(tenant, number) for tenant in sorted(tenants) for number in (0, 1)]


def test_a_tenant_is_the_life_that_its_name_stood_for(words: Words) -> None:
    archived = prgs("acme", "acme~1", "late")
    assert tenants_at(words.store, archived, frozenset()) == {"acme": "acme", "late": "late"}
    words.suspend()
    words.plane.done(DeleteTenant(tenant_id="acme"))
    assert tenants_at(words.store, archived, frozenset()) == {"late": "late"}
    asked = tenants_at(words.store, archived, frozenset({"acme"}))
    assert asked == {"acme": "acme"}, "a deleted one comes back by its name"
    words.create()
    words.carry_out()
    life = f"acme~{words.word().partitions[0]}"
    assert tenants_at(words.store, prgs("acme", life), frozenset()) == {"acme": life}


def test_without_a_control_plane_all_that_was_archived_is_meant() -> None:
    assert tenants_at(None, prgs("a", "b"), frozenset()) == {"a": "a", "b": "b"}
    assert tenants_at(None, prgs("a", "b"), frozenset({"b"})) == {"b": "b"}
    with pytest.raises(ArchiveMissing, match="c"):
        tenants_at(None, prgs("a", "b"), frozenset({"c"}))
    with pytest.raises(ArchiveMissing):
        tenants_at(None, [], frozenset())


def test_policies_settings_and_people_are_carried_over_and_nodes_are_not(words: Words) -> None:
    done = words.plane.done
    words.create("other")
    words.rules(rule("Allow", "Any"), rule("Deny", "Publish", "secret/#"), disconnects=True)
    done(SetQuotas(tenant_id="acme", expected_version=0, quotas={"connections_max": 7}))
    done(SetTrust(tenant_id="acme", expected_version=0, roots=("pem",), revoked=("5f",)))
    done(SetTrust(expected_version=0, roots=("the old cluster's",)))
    words.configure({"user.ann": "hashed", "tenant_prg_count": 3})
    words.configure({"user.bob": "hashed"}, "other")
    words.configure({"log_level": "INFO"}, None)
    node = SettingScope(kind=ScopeKind.NODE, name="1")
    done(SetConfiguration(scope=node, expected_version=0, document={"a": 1}))
    manifest = find(words.store, RbacManifest, "manifest")
    assert manifest is not None
    people = (
        Binding(identity=PEOPLE, role=AccessRole.OBSERVER),
        Binding(identity="spiffe://test/ops", role=AccessRole.OPERATOR),
        Binding(identity=PEOPLE, role=AccessRole.TENANT_ADMIN, tenant_id="other"),
    )
    bindings = (*manifest.bindings, *people)
    done(PublishRbacManifest(expected_version=manifest.version, bindings=bindings))
    words.suspend()

    cluster = new_cluster()
    store = begun_with_records(cluster, words.store, {"acme": "acme"}, NOW_MS).kv

    config = find(store, ClusterConfig, "config")
    assert config is not None and config.cluster_id == "back"
    (spec,) = scan(store, TenantSpec)
    assert (spec.tenant_id, spec.sni, spec.suspended) == ("acme", "acme.example", True)
    quotas, rules = find(store, QuotaPolicy, "acme"), find(store, AclPolicy, "acme")
    assert quotas is not None and (quotas.connections_max, quotas.version) == (7, 1)
    before = find(words.store, AclPolicy, "acme")
    assert rules is not None and before is not None
    assert (rules.rules, rules.disconnect_on_refusal) == (before.rules, True)
    assert [each.owner for each in scan(store, CertificateBundle)] == ["acme"]
    scopes = {(each.scope.kind, each.scope.name) for each in scan(store, ConfigHead)}
    assert scopes == {(ScopeKind.TENANT, "acme"), (ScopeKind.CLUSTER, "all")}
    document = find(store, ConfigVersion, "Tenant", "acme", 1)
    assert document is not None
    assert document.document == {"user.ann": "hashed", "tenant_prg_count": 3}
    held = find(store, RbacManifest, "manifest")
    assert held is not None
    identities = {(each.identity, each.tenant_id) for each in held.bindings}
    assert {("spiffe://back/ops", None), (PEOPLE, None)} <= identities, "its own names are new"
    assert (PEOPLE, "other") not in identities, "of a tenant that is not here"
    assert ("spiffe://back/steward", None) in identities
    assert not list(scan(store, NodeSpec))
    assert list(scan(store, AuditRecord)), "and all of it is in the trail"


def test_many_tenants_are_no_burst_of_policy_changes(words: Words) -> None:
    """The control plane takes 200 changes of policy in a second."""
    names = [f"t{number}" for number in range(250)]
    for name in names:
        words.plane.now_ms += 10
        words.create(name)
        words.plane.done(
            SetQuotas(tenant_id=name, expected_version=0, quotas={"connections_max": 1})
        )
    wanted = {name: name for name in names}
    machine = begun_with_records(new_cluster(), words.store, wanted, NOW_MS)
    assert sum(1 for _ in scan(machine.kv, TenantSpec)) == 250
    assert machine.kv.now_ms <= NOW_MS, "no clock runs ahead of it"


def test_a_record_that_is_refused_is_said_by_its_call(words: Words) -> None:
    cluster = new_cluster()
    late = ClusterFile("x" * 300, 1, cluster.nodes, birth_id="b" * 32, control_founders=(1,))
    with pytest.raises(DataDirectoryRefused, match="InitializeCluster"):
        begun_with_records(late, words.store, {"acme": "acme"}, NOW_MS)
