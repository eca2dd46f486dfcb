"""`cluster.json`: the nodes of a cluster, where they listen, and how many groups they host.

Written when a development cluster is made and when a node joins or leaves it; read by its nodes,
at their start and when they are told to, and by the command line.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import msgspec

from clustor.raft.profiles import CONSISTENCY_PROFILE, PROFILES, Profile
from clustor.runtime.admission import FlowNumbers
from clustor.runtime.errors import DataDirectoryRefused
from clustor.runtime.hardening import Hardening
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.identity import ClusterId, NodeId
from clustor.security.key_registry import DEK_PERIOD_MS
from clustor.snapshot.cadence import CadenceProfile
from clustor.snapshot.errors import SnapshotMisuse

CLUSTER_FILE: Final = "cluster.json"
LOOPBACK: Final = "127.0.0.1"
PORTS_PER_NODE: Final = 10
PEER_ROLE: Final = 0
ADMIN_ROLE: Final = 1
# Room that each replica reserves ahead: a machine that hosts a whole cluster has less of it.
DEVELOPMENT_SEGMENT_BYTES: Final = 64 << 20


DELTAS_MAX: Final = 5
"""In a row, before a full snapshot follows (quantumqtt §5.3)."""


class NodeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One node: its id, its addresses, and the key that signs its snapshots (hex)."""

    node_id: int
    host: str
    peer_port: int
    admin_port: int
    signing_key: str
    founder: bool = True  # voted from the beginning; others join by a change of members
    zone: str = "local"  # what fails together with it
    clients: dict[str, str] = {}
    """Where clients are told to go, HOST:PORT by listener; none: by the node's ports."""

    @property
    def id(self) -> NodeId:
        return NodeId(self.node_id)

    @property
    def peer(self) -> Address:
        return Address(self.host, self.peer_port)

    @property
    def admin(self) -> Address:
        return Address(self.host, self.admin_port)


class NodeList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which nodes there are, and which there were: what changes while a cluster runs."""

    birth_id: str
    version: int
    nodes: tuple[NodeEntry, ...]
    removed: tuple[NodeEntry, ...] = ()


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole cluster. Every group has a replica on every node.

    `removed` keeps those that left: no id is given twice, and snapshots that they signed are
    still believed.
    """

    cluster_id: str
    groups: int
    nodes: tuple[NodeEntry, ...]
    segment_bytes: int = DEVELOPMENT_SEGMENT_BYTES
    removed: tuple[NodeEntry, ...] = ()
    birth_id: str = ""  # drawn when the cluster was made: another of the same name has another
    flow: FlowNumbers = FlowNumbers()
    snapshot_log_bytes: int = CONSISTENCY_PROFILE.replication.snapshot_log_bytes_target
    snapshot_bytes_per_second: int = CONSISTENCY_PROFILE.replication.snapshot_bytes_per_second_max
    # By time: aims, and what an operator promises at the latest (0: ten minutes, and two). No aim
    # for full ones means that only bytes make a snapshot due (quantumqtt §5.3, clustor §9.5).
    snapshot_full_ms: int = 300_000
    snapshot_delta_ms: int = 60_000
    snapshot_full_ms_max: int = 0
    snapshot_delta_ms_max: int = 0
    # The first voters of the control plane's group, written once; none: there is no control plane.
    control_founders: tuple[int, ...] = ()
    cache_fresh_ms: int = CONSISTENCY_PROFILE.control_plane.cache_fresh_ms
    cache_grace_ms: int = CONSISTENCY_PROFILE.control_plane.cache_grace_ms
    admin_tls: bool = False  # whether the admin port is TLS that asks for certificates and roles
    profile_name: str = CONSISTENCY_PROFILE.name  # of clustor §5.2
    dek_period_ms: int = DEK_PERIOD_MS  # data keys: a week at the most (clustor §12.2)
    fault_injection: bool = False  # whether groups can be told to hang: tests and drills only
    ocsp_url: str = ""  # a responder that is asked about certificates before any list
    hardening: Hardening = Hardening.REPORT  # whether a start needs all of it (quantumqtt §9.7)
    # An operator's word why nodes may be made on a disk that the checks refuse (clustor §14.3).
    disk_override: str = ""
    # How many times longer than the profile's its nodes wait for each other and for their disks,
    # for a machine that does much else. Longer only: a lease never outlives an election by it.
    patience: Annotated[int, msgspec.Meta(ge=1)] = 1
    # Whether the guard rails hold that development does without: enough voters, zones, full nodes.
    production: bool = False
    list_version: int = 0  # of `nodes` and `removed`: whoever has the higher one knows better
    format_version: int = 1

    def __post_init__(self) -> None:
        if self.ocsp_url and not self.ocsp_url.startswith(("http://", "https://")):
            raise ValueError("ocsp_url is an http or https address")
        if self.profile_name not in PROFILES:
            raise ValueError(f"no such profile: {self.profile_name}")
        if not 0 < self.dek_period_ms <= DEK_PERIOD_MS:
            raise ValueError("data keys are rotated every week at the latest")
        try:
            _ = self.cadence
        except SnapshotMisuse as error:
            raise ValueError(f"full snapshots within 10 min, deltas within 2: {error}") from None

    @property
    def profile(self) -> Profile:
        """The profile of its groups: the specification's, with what this cluster tightens."""
        profile = PROFILES[self.profile_name]
        numbers = replace(
            profile.replication,
            snapshot_log_bytes_target=self.snapshot_log_bytes,
            snapshot_bytes_per_second_max=self.snapshot_bytes_per_second,
        )
        control_plane = replace(
            profile.control_plane,
            cache_fresh_ms=self.cache_fresh_ms,
            cache_grace_ms=self.cache_grace_ms,
        )
        patient = _patient(profile, self.patience)
        return replace(patient, replication=numbers, control_plane=control_plane)

    @property
    def cadence(self) -> CadenceProfile | None:
        """When time makes a snapshot due; None: it never does."""
        if self.snapshot_full_ms == 0:
            return None
        return CadenceProfile(
            full_emit_period_ms_target=self.snapshot_full_ms,
            full_emit_period_ms_operator=self.snapshot_full_ms_max or None,
            delta_emit_period_ms_target=self.snapshot_delta_ms,
            delta_emit_period_ms_operator=self.snapshot_delta_ms_max or None,
            delta_chain_max=DELTAS_MAX,
        )

    @property
    def id(self) -> ClusterId:
        return ClusterId(self.cluster_id)

    @property
    def birth(self) -> str:
        """What tells the stores of this cluster from those of every other one, of any name."""
        return self.birth_id or self.cluster_id

    @property
    def founders(self) -> frozenset[NodeId]:
        """The nodes whose replicas are the first voters of every group."""
        return frozenset(entry.id for entry in self.nodes if entry.founder)

    @property
    def signing_keys(self) -> list[str]:
        """The keys of all whose snapshots are believed."""
        return [entry.signing_key for entry in (*self.nodes, *self.removed)]

    @property
    def node_list(self) -> NodeList:
        return NodeList(self.birth, self.list_version, self.nodes, self.removed)

    def listing(self, known: NodeList) -> ClusterFile:
        """Return the cluster with the nodes of a newer list."""
        return msgspec.structs.replace(
            self, nodes=known.nodes, removed=known.removed, list_version=known.version
        )

    def next_node_id(self) -> NodeId:
        """Return an id that no node has or had."""
        return NodeId(1 + max(entry.node_id for entry in (*self.nodes, *self.removed)))

    def with_node(self, entry: NodeEntry) -> ClusterFile:
        nodes = (*self.nodes, entry)
        return msgspec.structs.replace(self, nodes=nodes, list_version=self.list_version + 1)

    def without_node(self, node_id: NodeId) -> ClusterFile:
        """Return the cluster after a node left; raises DataDirectoryRefused for a stranger."""
        gone = self.node(node_id)
        left = tuple(entry for entry in self.nodes if entry is not gone)
        removed, version = (*self.removed, gone), self.list_version + 1
        return msgspec.structs.replace(self, nodes=left, removed=removed, list_version=version)

    def node(self, node_id: NodeId) -> NodeEntry:
        """Return one node's entry, or raise DataDirectoryRefused."""
        for entry in self.nodes:
            if entry.node_id == node_id:
                return entry
        raise DataDirectoryRefused("no such node in the cluster", node=node_id)


def _patient(profile: Profile, times: int) -> Profile:
    """Let elections, and the verdict that a disk is stalled, come so many times later; the very
    first leader is looked for as early as ever."""
    low, high = profile.election_timeout_ms
    wan_low, wan_high = profile.wan_election_timeout_ms
    device = replace(profile.device, latency_max_ms=times * profile.device.latency_max_ms)
    return replace(
        profile,
        election_timeout_ms=(times * low, times * high),
        wan_election_timeout_ms=(times * wan_low, times * wan_high),
        first_election_timeout_ms=(low, high) if times > 1 else None,
        device=device,
    )


def port_of(base_port: int, node_id: int, role: int) -> int:
    """Return the port of a node's role on a machine that hosts them all."""
    return base_port + PORTS_PER_NODE * node_id + role


def read_cluster_file(path: Path) -> ClusterFile:
    """Read the description, or raise DataDirectoryRefused."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterFile)
    except OSError as error:
        raise DataDirectoryRefused(
            "cannot read the cluster's description", file=str(path), cause=error.strerror
        ) from error
    except msgspec.MsgspecError as error:
        raise DataDirectoryRefused(
            "not a cluster's description", file=str(path), cause=error
        ) from error


def encode_cluster_file(cluster: ClusterFile) -> bytes:
    """Return the file's bytes."""
    return msgspec.json.format(msgspec.json.encode(cluster), indent=2) + b"\n"
