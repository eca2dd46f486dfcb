"""What the control plane of a cluster must hold, and the calls that are missing for it.

A plan is pure: it looks at what stands and returns what to call. Calls are carried out in order,
the plan is asked again, and an empty answer says that everything stands. So it can be broken off
at any point and begun again by another leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Final, TypeAlias

from clustor.control import (
    AccessRole,
    Binding,
    Caller,
    ClusterConfig,
    Command,
    ControlMachine,
    InitializeCluster,
    KeyPurpose,
    Members,
    NodeSpec,
    Placement,
    PlacePartition,
    RbacManifest,
    RegisterKey,
    RegisterNode,
    RemoveNode,
    SigningKey,
    find,
    scan,
)
from clustor.control.draft import DraftReading
from clustor.kv import KvLimits, StoreId
from clustor.log.types import PartitionId
from clustor.raft.membership import Membership
from clustor.runtime.cluster_file import ClusterFile, NodeEntry
from clustor.runtime.pki.identity import ClusterId, spiffe_uri

Plan: TypeAlias = Callable[[DraftReading], Iterable[Command]]
"""Returns the calls that are missing, or nothing."""

CONTROL_PARTITION: Final = PartitionId(1_000_000_000)
"""The control plane's own group: beyond the numbers of all others, the same in every cluster."""

NODE_CAPACITY: Final = 1_000_000  # development: what a node can carry is not known
_LOAD: Final = 1


LIMITS: Final = KvLimits(events_max=20_000, events_bytes_max=16 << 20)
"""Part of the log's meaning: a node that keeps another history is another machine."""


def new_machine(birth: str) -> ControlMachine:
    """Make the empty control plane of the cluster that was born so."""
    return ControlMachine(StoreId(sha256(f"{birth}/control".encode()).digest()[:16]), LIMITS)


def steward_of(cluster: ClusterId) -> Caller:
    """Return who calls for the cluster itself: it registers what its files describe."""
    return Caller(identity=f"spiffe://{cluster}/steward")


def operator_of(cluster: ClusterId) -> Caller:
    """Return who calls on a development cluster's loopback, where nobody is asked for a name."""
    return Caller(identity=f"spiffe://{cluster}/operator")


def lacks_steward(manifest: RbacManifest, cluster: ClusterId) -> bool:
    """Say whether a manifest leaves the cluster itself without a hand: no placement follows."""
    steward = steward_of(cluster).identity
    return not any(
        each.identity == steward and each.role is AccessRole.OPERATOR for each in manifest.bindings
    )


def key_id_of(node_id: int) -> str:
    """Name the key with which a node signs proofs while it leads the control plane."""
    return f"node-{node_id}"


def members_of(configuration: Membership) -> Members:
    """Spell a group's members as the control plane does."""
    return Members(
        voters=tuple(sorted(configuration.voters)),
        learners=tuple(sorted(configuration.learners)),
        observers=tuple(sorted(configuration.observers)),
    )


def cluster_records(
    cluster: ClusterFile, partitions: Mapping[PartitionId, Members]
) -> Callable[[DraftReading], list[Command]]:
    """Plan the cluster itself: its name, its keys, its nodes, and these of its partitions."""

    def plan(store: DraftReading) -> list[Command]:
        if find(store, ClusterConfig, "config") is None:
            return [genesis(cluster)]
        return [
            *_keys(store, cluster),
            *_nodes(store, cluster),
            *(place(each, members) for each, members in unplaced(store, partitions)),
            *_departed(store, cluster),
        ]

    return plan


def unplaced(
    store: DraftReading, partitions: Mapping[PartitionId, Members]
) -> Iterable[tuple[PartitionId, Members]]:
    """Say which of these partitions have no placement yet."""
    for partition_id, members in sorted(partitions.items()):
        if members.voters and find(store, Placement, partition_id) is None:
            yield partition_id, members


def place(
    partition_id: PartitionId, members: Members, tenant_id: str | None = None
) -> PlacePartition:
    """Place a partition for the first time."""
    return PlacePartition(
        partition_id=partition_id,
        tenant_id=tenant_id,
        members=members,
        load=_LOAD,
        expected_routing_epoch=0,
    )


def genesis(cluster: ClusterFile) -> InitializeCluster:
    """Return the first call of a cluster."""
    return InitializeCluster(
        cluster_id=cluster.cluster_id,
        development=not cluster.production,
        bindings=tuple(
            Binding(identity=caller.identity, role=AccessRole.OPERATOR)
            for caller in (steward_of(cluster.id), operator_of(cluster.id))
        ),
        keys=tuple(_key(entry) for entry in cluster.nodes),
    )


def _key(entry: NodeEntry) -> RegisterKey:
    return RegisterKey(
        purpose=KeyPurpose.CONTROL_PLANE_PROOF,
        key_id=key_id_of(entry.node_id),
        public_key=bytes.fromhex(entry.signing_key),
    )


def _keys(store: DraftReading, cluster: ClusterFile) -> list[RegisterKey]:
    purpose = KeyPurpose.CONTROL_PLANE_PROOF.value
    return [
        _key(entry)
        for entry in cluster.nodes
        if find(store, SigningKey, purpose, key_id_of(entry.node_id)) is None
    ]


def _nodes(store: DraftReading, cluster: ClusterFile) -> Iterable[RegisterNode]:
    for entry in cluster.nodes:
        known = find(store, NodeSpec, entry.node_id)
        if known is None or known.address != str(entry.peer):
            yield RegisterNode(
                node_id=entry.node_id,
                identity=spiffe_uri(cluster.id, entry.id),
                zone=known.zone if known is not None else entry.zone,
                address=str(entry.peer),
                capacity=known.capacity if known is not None else NODE_CAPACITY,
            )


def _departed(store: DraftReading, cluster: ClusterFile) -> Iterable[RemoveNode]:
    """Forget nodes that left, once nothing is placed on them any more."""
    left = {entry.node_id for entry in cluster.removed}
    gone = [node.node_id for node in scan(store, NodeSpec) if node.node_id in left]
    if not gone:
        return
    occupied = frozenset().union(*(each.occupied for each in scan(store, Placement)))
    for node_id in gone:
        if node_id not in occupied:
            yield RemoveNode(node_id=node_id)
