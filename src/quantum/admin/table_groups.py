"""Pages of groups, and of what lets them do or keeps them from it."""

from __future__ import annotations

from typing import Final

from clustor import control as c
from clustor.control.types import Name
from clustor.telemetry import WhyQuestion
from quantum.admin import node_pages as n
from quantum.admin import reading as r
from quantum.admin.answers import BundleRow, Features, GroupView, WhyAnswer, list_page
from quantum.admin.listings import BY_NUMBER, GROUP, PAGED, list_route
from quantum.admin.routes import call, page

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
        kinds=GROUP,
        example="11",
    ),
    page(
        "/v1/groups/{partition_id}/why/{question}",
        n.why,
        WhyAnswer,
        "groups why",
        "Ask this node why a group does not lead, write, compact or take more.",
        kinds={**GROUP, "question": WhyQuestion},
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
    call(
        "PUT",
        "/v1/groups/{partition_id}/durability/record",
        c.RecordDurabilityMode,
        "groups record-durability",
        "11 --node-id 1 --term 3 --mode Strict --durability-mode-epoch 2",
    ),
    list_route(
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
    list_route(
        "/v1/proofs", c.PublishedProof, "proofs list", "List the newest proof of each group."
    ),
    list_route(
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
    list_route(
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
    list_route(
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
    list_route(
        "/v1/lag-alerts",
        c.LagAlert,
        "lag-alerts list",
        "List the partitions whose followers are structurally behind, as their leaders say.",
        "partition_id",
        "node_id",
        "followers",
        "lag_bytes",
        "since",
    ),
    call("POST", "/v1/lag-alerts", c.ReportLag, "", name="ReportLag"),
    list_route(
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
    list_route(
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
