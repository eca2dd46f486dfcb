"""Whose snapshots a node believes: its cluster's nodes, and keys that were registered."""

from __future__ import annotations

from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from clustor.runtime.cluster_file import ClusterFile


class SnapshotTrust:
    """The keys that sign manifests; replicas look at this very list, so it changes in place."""

    def __init__(self, cluster: ClusterFile, registered: Iterable[str]) -> None:
        self.keys: list[Ed25519PublicKey] = []
        self._registered = tuple(registered)
        self._cluster = cluster
        self._refresh()

    def adopt(self, cluster: ClusterFile) -> None:
        """Believe the nodes that there are now."""
        self._cluster = cluster
        self._refresh()

    def register(self, keys: Iterable[str]) -> None:
        """Believe these SnapshotManifestKeys beside the nodes' own."""
        self._registered = tuple(keys)
        self._refresh()

    def _refresh(self) -> None:
        keys = dict.fromkeys((*self._cluster.signing_keys, *self._registered))
        self.keys[:] = [Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)) for key in keys]
