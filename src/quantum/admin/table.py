"""Every page of `/v1`, in one table. What is not in it does not exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec

from clustor import control as c
from clustor.control.types import Count, Name
from quantum.admin import node_pages as n
from quantum.admin import reading as r
from quantum.admin.answers import (
    AuditRow,
    BundleRow,
    ClusterState,
    Configuration,
    ConfigValue,
    Features,
    GroupView,
    Keys,
    LogLevel,
    LogLevels,
    Refusals,
    TenantState,
    WhyAnswer,
    list_page,
)
from quantum.admin.routes import OPERATORS, TENANT_READERS, Parameter, Route, call, page

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1_000

Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)]
Cursor = Annotated[str, msgspec.Meta(pattern=r"^[\x21-\x7e]+$(?!\n)", max_length=512)]
NumberCursor = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,20}$(?!\n)")]

LIMIT: Final = Parameter("limit", Limit, "how many at most", default=PAGE_DEFAULT)
AFTER: Final = Parameter(
    "after", Cursor | None, "go on behind this one: the page before names it", default=None
)
PAGED: Final = (LIMIT, AFTER)
BY_NUMBER: Final = (LIMIT, Parameter("after", NumberCursor | None, AFTER.about, default=None))
SCOPE: Final = (
    Parameter("scope", c.ScopeKind, "whose configuration it is", default=c.ScopeKind.CLUSTER),
    Parameter("name", Name, "the node, partition, tenant or definition", default="all"),
)
_TENANT: Final[dict[str, Any]] = {"tenant_id": Name}
_GROUP: Final[dict[str, Any]] = {"partition_id": Count}


def _list(path: str, kind: Any, says: str, summary: str, *columns: str, **more: Any) -> Route:
    return page(
        path, r.listing(kind), list_page(kind), says, summary, query=PAGED, columns=columns, **more
    )


def _roll_back(asked: Any) -> c.Command:
    return c.RollBackConfiguration(scope=r.scope_of(asked.values), to_version=asked.values["to"])


CLUSTER: Final = (
    page(
        "/v1/cluster/state",
        r.whole_cluster,
        ClusterState,
        "cluster show",
        "Show the whole cluster at one revision.",
    ),
    call(
        "POST",
        "/v1/cluster/initialize",
        c.InitializeCluster,
        "cluster initialize",
        "--cluster-id prod --bindings "
        '\'[{"identity": "spiffe://prod/operator/ada", "role": "Operator"}]\'',
    ),
    call("POST", "/v1/cluster/compact", c.CompactHistory, "cluster compact", "--revision 12000"),
)

NODES: Final = (
    _list(
        "/v1/nodes",
        c.NodeSpec,
        "nodes list",
        "List the nodes of the cluster.",
        "node_id",
        "zone",
        "address",
        "capacity",
        "state",
        "version",
    ),
    page(
        "/v1/nodes/{node_id}",
        r.item(c.NodeSpec, "node_id"),
        c.NodeSpec,
        "nodes show",
        "Show one node.",
        kinds={"node_id": Count},
        example="4",
    ),
    call(
        "PUT",
        "/v1/nodes/{node_id}",
        c.RegisterNode,
        "nodes set",
        "4 --identity spiffe://prod/node/4 --zone z2 --address node4:7000 --capacity 100",
    ),
    call("DELETE", "/v1/nodes/{node_id}", c.RemoveNode, "nodes remove", "4"),
    call("POST", "/v1/nodes/{node_id}/drain", c.DrainNode, "nodes drain", "4 --draining"),
    call(
        "POST",
        "/v1/nodes/{node_id}/enroll",
        c.EnrollNode,
        "nodes enroll",
        "4 --token-id t4 --secret-sha256 BASE64 --zone z2 --address node4:7000 --capacity 100",
    ),
    call(
        "POST",
        "/v1/nodes/{node_id}/report",
        c.ReportNode,
        "nodes report",
        "4 --version 1.0 --io-writer-mode FixedUring --features '[\"GroupFsync\"]'",
    ),
    call(
        "POST",
        "/v1/nodes/{node_id}/zeroizations",
        c.ReportZeroization,
        "nodes zeroized",
        "4 --dek-epoch 6 --digest BASE64",
    ),
    _list(
        "/v1/bootstrap-tokens",
        c.BootstrapToken,
        "bootstrap-tokens list",
        "List the tokens by which nodes enrol; of each secret only its digest is known.",
        "token_id",
        "expires_at",
        "used_by",
        roles=OPERATORS,
    ),
    call(
        "POST",
        "/v1/bootstrap-tokens",
        c.IssueBootstrapToken,
        "bootstrap-tokens issue",
        "--token-id t4 --secret-sha256 BASE64 --ttl-ms 600000",
    ),
)

TENANTS: Final = (
    _list(
        "/v1/tenants",
        c.TenantSpec,
        "tenants list",
        "List the tenants.",
        "tenant_id",
        "sni",
        "tier",
        "suspended",
        "created_at",
    ),
    call(
        "POST",
        "/v1/tenants",
        c.CreateTenant,
        "tenants create",
        "--tenant-id acme --sni acme.example.com",
    ),
    page(
        "/v1/tenants/{tenant_id}",
        r.tenant,
        TenantState,
        "tenants show",
        "Show a tenant with its quotas, ACLs, trust and ring.",
        kinds=_TENANT,
        roles=TENANT_READERS,
        own_tenant=True,
        example="acme",
    ),
    call(
        "PUT",
        "/v1/tenants/{tenant_id}",
        c.UpdateTenant,
        "tenants set",
        "acme --tier Production --no-group-fsync-allowed --dr-shipping --suspended",
    ),
    call("DELETE", "/v1/tenants/{tenant_id}", c.DeleteTenant, "tenants delete", "acme"),
    page(
        "/v1/tenants/{tenant_id}/quotas",
        r.tenant_quotas,
        c.QuotaPolicy,
        "tenants quotas",
        "Show a tenant's quotas.",
        kinds=_TENANT,
        roles=TENANT_READERS,
        own_tenant=True,
        example="acme",
    ),
    call(
        "PUT",
        "/v1/tenants/{tenant_id}/quotas",
        c.SetQuotas,
        "tenants set-quotas",
        "acme --quotas '{\"connections_max\": 5000}'",
    ),
    page(
        "/v1/tenants/{tenant_id}/acls",
        r.tenant_acls,
        c.AclPolicy,
        "tenants acls",
        "Show a tenant's access rules.",
        kinds=_TENANT,
        roles=TENANT_READERS,
        own_tenant=True,
        example="acme",
    ),
    call(
        "PUT",
        "/v1/tenants/{tenant_id}/acls",
        c.SetAcls,
        "tenants set-acls",
        'acme --rules \'[{"effect": "Allow", "action": "Any", "filter": "plant/#"}]\'',
    ),
    page(
        "/v1/tenants/{tenant_id}/trust",
        r.tenant_trust,
        c.CertificateBundle,
        "tenants trust",
        "Show the authorities that a tenant's clients are believed by.",
        kinds=_TENANT,
        roles=TENANT_READERS,
        own_tenant=True,
        example="acme",
    ),
    call(
        "PUT",
        "/v1/tenants/{tenant_id}/trust",
        c.SetTrust,
        "tenants set-trust",
        "acme --roots @roots.json --revoked '[\"5f3a\"]'",
    ),
)

CERTIFICATES: Final = (
    _list(
        "/v1/certificates",
        c.CertificateBundle,
        "certificates list",
        "List all trust bundles: the cluster's (`_cluster`) and the tenants'.",
        "owner",
        "version",
        "published_at",
        "revoked",
    ),
    page(
        "/v1/certificates/cluster",
        r.cluster_trust,
        c.CertificateBundle,
        "certificates show",
        "Show the cluster's own trust bundle, and the certificates that it revokes.",
    ),
    call(
        "PUT",
        "/v1/certificates/cluster",
        c.SetTrust,
        "certificates set",
        "--roots @roots.json --revoked '[\"5f3a\"]'",
        preset={"tenant_id": None},
        name="SetClusterTrust",
    ),
)

ROUTING: Final = (
    _list(
        "/v1/routes",
        c.RoutingMap,
        "routes list",
        "List the tenants' rings: which partition has which slot.",
        "tenant_id",
        "routing_epoch",
        "partitions",
        "redirect_until",
    ),
    page(
        "/v1/routes/{tenant_id}",
        r.item(c.RoutingMap, "tenant_id"),
        c.RoutingMap,
        "routes show",
        "Show a tenant's ring.",
        kinds=_TENANT,
        roles=TENANT_READERS,
        own_tenant=True,
        example="acme",
    ),
    call(
        "PUT",
        "/v1/routes/{tenant_id}",
        c.SetRoutingMap,
        "routes set",
        "acme --partitions '[11, 12, 13]'",
    ),
)

GROUPS: Final = (
    page(
        "/v1/groups",
        n.groups,
        list_page(GroupView),
        "groups list",
        "List the groups: where each is placed, and its newest proof.",
        query=BY_NUMBER,
        columns=("group", "placement.tenant_id", "placement.members.voters", "proof"),
    ),
    page(
        "/v1/groups/{partition_id}",
        n.group,
        GroupView,
        "groups show",
        "Show one group: placement, proof, quarantines, and its replica on this node.",
        kinds=_GROUP,
        example="11",
    ),
    page(
        "/v1/groups/{partition_id}/why/{question}",
        n.why,
        WhyAnswer,
        "groups why",
        "Ask this node why a group does not lead, write, compact or take more.",
        kinds={**_GROUP, "question": n.Question},
        example="11 WhyNotLeader",
    ),
    call(
        "PUT",
        "/v1/groups/{partition_id}",
        c.PlacePartition,
        "groups place",
        "11 --tenant-id acme --members '{\"voters\": [1, 2, 3]}' --load 10",
    ),
    call(
        "DELETE",
        "/v1/groups/{partition_id}",
        c.RetirePartition,
        "groups retire",
        "11 --expected-routing-epoch 4",
        query=("expected_routing_epoch",),
    ),
    call(
        "PUT",
        "/v1/groups/{partition_id}/durability",
        c.SetDurabilityMode,
        "groups set-durability",
        "11 --mode Group-Fsync --expected-epoch 0",
    ),
    call(
        "PUT",
        "/v1/groups/{partition_id}/follower-reads",
        c.SetFollowerReads,
        "groups set-follower-reads",
        "11 --capability",
    ),
    call(
        "PUT",
        "/v1/groups/{partition_id}/membership",
        c.RecordMembership,
        "groups record-membership",
        "11 --node-id 1 --routing-epoch 4 --membership-digest BASE64 --durability-mode-epoch 0",
    ),
    _list(
        "/v1/quarantines",
        c.Quarantine,
        "quarantines list",
        "List the replicas that must not write.",
        "partition_id",
        "node_id",
        "cause",
        "detail",
        "since",
    ),
    call(
        "PUT",
        "/v1/groups/{partition_id}/quarantines/{node_id}",
        c.ReportQuarantine,
        "quarantines set",
        "11 1 --cause Administrative --detail 'disk is being replaced'",
    ),
    call(
        "POST",
        "/v1/groups/{partition_id}/quarantines/{node_id}/clear",
        c.ClearQuarantine,
        "quarantines clear",
        "11 1 --evidence 'rebuilt from manifest 7'",
    ),
    call(
        "POST",
        "/v1/groups/{partition_id}/quarantines/{node_id}/resume",
        c.AdminResumePartition,
        "quarantines resume",
        "11 1 --justification 'checked by hand' --break-glass g1",
    ),
)

PROOFS: Final = (
    _list("/v1/proofs", c.PublishedProof, "proofs list", "List the newest proof of each group."),
    _list(
        "/v1/proofs/conflicts",
        c.ProofConflict,
        "proofs conflicts",
        "List the proofs that cannot both be true.",
        "partition_id",
        "reported_by",
        "seen_at",
    ),
    call(
        "POST",
        "/v1/proofs",
        c.PublishProofs,
        "proofs publish",
        "--node-id 1 --proofs @proofs.json",
    ),
    call(
        "POST",
        "/v1/proofs/{partition_id}/clear-conflict",
        c.ClearProofConflict,
        "proofs clear-conflict",
        "11 --justification 'restored from the right side'",
    ),
)

CONFIG: Final = (
    page(
        "/v1/config",
        r.configuration,
        Configuration,
        "config show",
        "Show the document of a scope that is in force.",
        query=SCOPE,
        example="--scope Tenant --name acme",
    ),
    page(
        "/v1/config/versions",
        r.listing(c.ConfigVersion),
        list_page(c.ConfigVersion),
        "config versions",
        "List the versions of all scopes that are kept.",
        query=PAGED,
        columns=("scope", "version", "tag", "set_by", "set_at", "restores"),
    ),
    page(
        "/v1/config/explain",
        r.explained,
        ConfigValue,
        "config explain",
        "Say where a key's value comes from, who set it, and when.",
        query=(
            Parameter("key", Name, "the key"),
            Parameter("node", Name | None, "as this node sees it", default=None),
            Parameter("partition", Name | None, "as this partition sees it", default=None),
            Parameter("tenant", Name | None, "as this tenant sees it", default=None),
            Parameter("definition", Name | None, "as this definition sees it", default=None),
        ),
        example="--key flow.entry_credit_max --tenant acme",
    ),
    call(
        "PUT",
        "/v1/config",
        c.SetConfiguration,
        "config set",
        '--scope \'{"kind": "Cluster"}\' --document \'{"flow.entry_credit_max": 4096}\'',
    ),
    replace(
        call(
            "POST",
            "/v1/config/rollback",
            c.RollBackConfiguration,
            "config rollback",
            "--to 3",
            query=("scope", "to_version"),
        ),
        query=(Parameter("to", Count, "the version that comes back"), *SCOPE),
        make=_roll_back,
    ),
)

FEATURES: Final = (
    page(
        "/v1/features",
        r.features,
        Features,
        "features show",
        "Show the feature manifest and its gates.",
    ),
    call(
        "PUT",
        "/v1/features/manifest",
        c.PublishFeatureManifest,
        "features publish",
        "--version 2 --rows @rows.json --signature @signature.json",
    ),
    call(
        "PUT",
        "/v1/features/{name}",
        c.SetFeatureGate,
        "features set",
        "LeaseEnable --state Enabled --predicate-digest BASE64",
    ),
)

OVERRIDES: Final = (
    _list(
        "/v1/overrides",
        c.OverrideEntry,
        "overrides list",
        "List the exceptions that were signed.",
        "override_id",
        "scope",
        "actor_id",
        "expires_at",
        "revoked_at",
        "ticket_url",
    ),
    page(
        "/v1/overrides/{override_id}",
        r.item(c.OverrideEntry, "override_id"),
        c.OverrideEntry,
        "overrides show",
        "Show one override.",
        kinds={"override_id": Name},
        example="o1",
    ),
    call(
        "POST",
        "/v1/overrides",
        c.RecordOverride,
        "overrides record",
        "--override-id o1 --scope Capacity --ticket-url https://tickets/1 --justification why "
        "--expires-at 1790000000000 --signature @signature.json --break-glass g1",
    ),
    call("DELETE", "/v1/overrides/{override_id}", c.RevokeOverride, "overrides revoke", "o1"),
    _list(
        "/v1/break-glass",
        c.BreakGlassToken,
        "break-glass list",
        "List the break-glass tokens, and what each was used for.",
        "token_id",
        "scope",
        "actor_id",
        "expires_at",
        "used_at",
        "used_for",
    ),
    call(
        "POST",
        "/v1/break-glass",
        c.IssueBreakGlass,
        "break-glass issue",
        "--token-id g1 --scope Quarantine --actor-id spiffe://prod/operator/ada "
        "--ticket-url https://tickets/1 --ttl-ms 300000",
    ),
)

FENCES: Final = (
    _list(
        "/v1/fences",
        c.DrFence,
        "fences list",
        "List the fences of regions.",
        "fence_id",
        "region",
        "fence_epoch",
        "state",
        "promoted_region",
    ),
    page(
        "/v1/fences/{fence_id}",
        r.item(c.DrFence, "fence_id"),
        c.DrFence,
        "fences show",
        "Show one fence, with the index at which each group stops.",
        kinds={"fence_id": Name},
        example="f1",
    ),
    call(
        "POST",
        "/v1/fences",
        c.CommitFence,
        "fences commit",
        "--fence-id f1 --region east --partitions '[11, 12]'",
    ),
    call(
        "POST",
        "/v1/fences/{fence_id}/promote",
        c.PromoteRegion,
        "fences promote",
        "f1 --region west --evidence @evidence.json",
    ),
    call("POST", "/v1/fences/{fence_id}/lift", c.LiftFence, "fences lift", "f1"),
    # quantumqtt §8.6 names these two.
    call("POST", "/v1/dr/fence", c.CommitFence, "", name="DrFence"),
    call("POST", "/v1/dr/promote", c.PromoteRegion, "", name="DrPromote"),
)

BUNDLES: Final = (
    page(
        "/v1/bundles",
        r.listing(c.DefinitionBundle, row=r.bundle_row),
        list_page(BundleRow),
        "bundles list",
        "List the definition bundles, without their blobs.",
        query=PAGED,
        columns=("bundle_id", "version", "blob_bytes", "published_at"),
    ),
    page(
        "/v1/bundles/{bundle_id}",
        r.item(c.DefinitionBundle, "bundle_id"),
        c.DefinitionBundle,
        "bundles show",
        "Show one bundle with its blob (base64).",
        kinds={"bundle_id": Name},
        example="b1",
    ),
    call(
        "POST",
        "/v1/bundles",
        c.PublishBundle,
        "bundles publish",
        "--bundle-id b1 --version 1 --sha256 BASE64 --definition-blob BASE64",
    ),
    call(
        "POST",
        "/v1/bundles/{bundle_id}/warmups",
        c.ReportWarmup,
        "bundles warmed-up",
        "b1 --node-id 1 --partition-id 11 --shadow-apply-checkpoint-index 5 "
        "--partition-ready-ratio 950000",
    ),
    _list(
        "/v1/barriers",
        c.ActivationBarrier,
        "barriers list",
        "List the activation barriers.",
        "barrier_id",
        "bundle_id",
        "state",
        "warmup_deadline",
    ),
    call(
        "POST",
        "/v1/barriers",
        c.ArmBarrier,
        "barriers arm",
        "--barrier-id w1 --bundle-id b1 --readiness-threshold 900000 --warmup-deadline-ms 60000 "
        "--readiness-window-ms 10000 --partitions '[11]'",
    ),
    call(
        "POST",
        "/v1/barriers/{barrier_id}/activate",
        c.DefineActivate,
        "barriers activate",
        "w1",
    ),
)

KEYS: Final = (
    page("/v1/keys", r.keys, Keys, "keys list", "Show the key epochs, and the public keys."),
    call(
        "POST",
        "/v1/keys",
        c.RegisterKey,
        "keys register",
        "--purpose CPReleaseKey --key-id r2 --public-key BASE64",
    ),
    call(
        "POST",
        "/v1/keys/{purpose}/{key_id}/retire",
        c.RetireKey,
        "keys retire",
        "CPReleaseKey r1 --retires-at 1790000000000",
    ),
    call(
        "PUT",
        "/v1/keys/epochs",
        c.AdvanceKeyEpochs,
        "keys advance",
        "--kek-version 1 --dek-epoch 7 --integrity-mac-epoch 1",
    ),
)

ROLES: Final = (
    page(
        "/v1/roles",
        r.item_at(c.RbacManifest, "manifest"),
        c.RbacManifest,
        "roles show",
        "Show who has which role.",
    ),
    call(
        "PUT",
        "/v1/roles",
        c.PublishRbacManifest,
        "roles set",
        "--bindings @bindings.json",
    ),
)

AUDIT: Final = (
    page(
        "/v1/audit",
        r.audit,
        list_page(AuditRow),
        "audit list",
        "List the newest calls: who did what, when, and what became of it.",
        query=(
            Parameter("ring", c.Ring, "calls, or what nodes publish", default=c.Ring.CALLS),
            *BY_NUMBER,
        ),
        columns=("sequence", "at", "identity", "kind", "outcome", "touched"),
    ),
    page(
        "/v1/audit/refusals",
        n.refusals,
        Refusals,
        "audit refusals",
        "List the requests that this node refused before they reached the log.",
        query=(LIMIT,),
        columns=("at", "identity", "method", "path", "error", "message"),
    ),
    call(
        "PUT",
        "/v1/audit/index",
        c.IndexAudit,
        "audit index",
        "--ring calls --through 1200 --sha256 BASE64 --location s3://audit/1200",
    ),
)

LOGS: Final = (
    page(
        "/v1/loglevel",
        n.log_levels,
        LogLevels,
        "loglevel list",
        "List the loggers of this node, and how much each says.",
        columns=("logger", "level"),
    ),
    page(
        "/v1/loglevel",
        n.set_log_level,
        LogLevel,
        "loglevel set",
        "Let a part of this node say more, or less, until it starts again.",
        method="PUT",
        roles=OPERATORS,
        body=n.SetLogLevelBody,
        example="--logger clustor.node --level DEBUG",
    ),
)

ROUTES: Final[tuple[Route, ...]] = (
    *CLUSTER,
    *NODES,
    *TENANTS,
    *CERTIFICATES,
    *ROUTING,
    *GROUPS,
    *PROOFS,
    *CONFIG,
    *FEATURES,
    *OVERRIDES,
    *FENCES,
    *BUNDLES,
    *KEYS,
    *ROLES,
    *AUDIT,
    *LOGS,
)
