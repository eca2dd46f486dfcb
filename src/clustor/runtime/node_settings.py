"""What a node is given when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.log.config import LogConfig
from clustor.log.keys import KeyRing
from clustor.raft.profiles import CONSISTENCY_PROFILE, Profile
from clustor.runtime.admission import FlowNumbers
from clustor.runtime.cluster_file import ClusterFile, NodeEntry
from clustor.runtime.peers.address import Address
from clustor.runtime.pki.identity import NodeId
from clustor.snapshot.cadence import CadenceProfile
from clustor.streams import StreamConfig


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a node is given when it starts."""

    cluster: ClusterFile
    node_id: NodeId
    keys: KeyRing
    signer: Ed25519PrivateKey
    profile: Profile = CONSISTENCY_PROFILE
    log_config: LogConfig = LogConfig()
    stream_config: StreamConfig = StreamConfig()
    flow: FlowNumbers = FlowNumbers()
    cadence: CadenceProfile | None = None
    registered_keys: tuple[str, ...] = ()  # SnapshotManifestKeys, beside the cluster's own
    peer_listen: Address | None = None  # where peers come in; None: where they are told to go

    @property
    def entry(self) -> NodeEntry:
        return self.cluster.node(self.node_id)
