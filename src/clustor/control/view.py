"""The whole cluster at one revision, as a document that an API can serve."""

from __future__ import annotations

from typing import Any

from clustor.control.draft import DraftReading, find, scan, scan_records
from clustor.control.features import FeatureGate
from clustor.control.fences import DrFence
from clustor.control.key_epochs import KeyEpochs
from clustor.control.nodes import ClusterConfig, NodeSpec
from clustor.control.overrides import OverrideEntry
from clustor.control.placement import Placement, RoutingMap
from clustor.control.proofs import ProofConflict, PublishedProof
from clustor.control.quarantine import Quarantine
from clustor.control.tenants import TenantSpec


def cluster_state(store: DraftReading) -> dict[str, Any]:
    """Gather what `/v1/cluster/state` shows; encode it with `canonical`."""
    proofs = {each.proof.partition_id: each.proof for each in scan(store, PublishedProof)}
    return {
        "cluster": find(store, ClusterConfig, "config"),
        "nodes": list(scan(store, NodeSpec)),
        "tenants": list(scan(store, TenantSpec)),
        "routing": list(scan(store, RoutingMap)),
        "partitions": [
            {"placement": each, "proof": proofs.get(each.partition_id)}
            for each in scan(store, Placement)
        ],
        "proof_conflicts": [each.partition_id for each in scan(store, ProofConflict)],
        "quarantines": list(scan(store, Quarantine)),
        "feature_gates": list(scan(store, FeatureGate)),
        "fences": list(scan(store, DrFence)),
        "overrides": list(scan(store, OverrideEntry)),
        "key_epochs": find(store, KeyEpochs, "newest"),
        "audit_records": sum(1 for _ in scan_records(store, b"audit/")),
    }
