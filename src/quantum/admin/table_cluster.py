"""Pages of the cluster itself: nodes, keys, roles, what was done, what is logged."""

from __future__ import annotations

from typing import Final

from clustor import control as c
from clustor.control.types import Count
from quantum.admin import node_pages as n
from quantum.admin import reading as r
from quantum.admin.answers import (
    AuditRow,
    ClusterState,
    KeysAnswer,
    LogLevel,
    LogLevels,
    NodeView,
    Refusals,
    list_page,
)
from quantum.admin.listings import BY_NUMBER, LIMIT, list_route
from quantum.admin.routes import OPERATORS, Parameter, call, page

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
    page(
        "/v1/nodes",
        n.nodes,
        list_page(NodeView),
        "nodes list",
        "List the nodes of the cluster, and how full each says it is.",
        query=BY_NUMBER,
        columns=("node_id", "zone", "address", "state", "version", "report_state", "load"),
    ),
    page(
        "/v1/nodes/{node_id}",
        n.node,
        NodeView,
        "nodes show",
        "Show one node, and what it last said of itself.",
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
        "4 --token-id t4 --secret SECRET-AS-ISSUED --zone z2 --address node4:7000 --capacity 100",
    ),
    call(
        "POST",
        "/v1/nodes/{node_id}/report",
        c.ReportNode,
        "nodes report",
        "4 --version 1.0 --io-writer-mode FixedUring --features '[\"GroupFsync\"]'",
    ),
    call("POST", "/v1/nodes/{node_id}/silence", c.ReportSilence, "nodes silent", "4"),
    call(
        "POST",
        "/v1/nodes/{node_id}/zeroizations",
        c.ReportZeroization,
        "nodes zeroized",
        "4 --dek-epoch 6 --digest BASE64",
    ),
    list_route(
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

KEYS: Final = (
    list_route(
        "/v1/keys/deks",
        c.DekGrant,
        "keys deks",
        "List the data keys that nodes were given, wrapped, and from when on each encrypts.",
        "epoch",
        "granted_at",
        "activates_at",
        roles=OPERATORS,
    ),
    call(
        "POST",
        "/v1/keys/deks",
        c.GrantDek,
        "keys grant-dek",
        "--epoch 7 --wrapped 1f2e3d4c --kek-fingerprint 0123456789abcdef",
    ),
    call(
        "POST",
        "/v1/keys/deks/{epoch}/ready",
        c.ReportDekReady,
        "keys dek-ready",
        "7 --node-id 1",
    ),
    call(
        "POST",
        "/v1/keys/deks/{epoch}/activate",
        c.ActivateDek,
        "keys activate-dek",
        "7 --activates-at 1790000000000",
    ),
    call("DELETE", "/v1/keys/deks/{epoch}", c.ForgetDek, "keys forget-dek", "7"),
    page("/v1/keys", r.keys, KeysAnswer, "keys list", "Show the key epochs, and the public keys."),
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
            Parameter(
                "ring", c.AuditRing, "calls, or what nodes publish", default=c.AuditRing.CALLS
            ),
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
