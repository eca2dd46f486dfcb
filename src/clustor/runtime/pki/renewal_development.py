"""Changing the certificates of a development cluster while it runs: renewal and revocation.

The nodes look at their files every second. An old certificate stays valid to its end, so nodes
that were renewed and nodes that were not believe each other all the time.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from clustor.runtime.cluster_file import CLUSTER_FILE, ClusterFile, read_cluster_file
from clustor.runtime.development import node_directory
from clustor.runtime.pki.authority_change import authority_for
from clustor.runtime.pki.certificate_files import load_certificate, replace_file
from clustor.runtime.pki.identity import (
    CERTIFICATE_FILE,
    PKI_DIRECTORY,
    REVOCATION_FILE,
    NodeId,
    issue_node,
    load_authority,
)
from clustor.runtime.pki.revocation import revoke_certificate


def renew_nodes(root: Path, nodes: tuple[NodeId, ...], now: datetime) -> dict[NodeId, datetime]:
    """Give nodes (none: all) new keys and certificates; return when each one ends.

    Raises CertificateUnusable and DataDirectoryRefused.
    """
    cluster = read_cluster_file(root / CLUSTER_FILE)
    authority = load_authority(root / PKI_DIRECTORY, cluster.id)
    ends: dict[NodeId, datetime] = {}
    for node in nodes or tuple(entry.id for entry in cluster.nodes):
        cluster.node(node)
        pki = node_directory(root, node) / PKI_DIRECTORY
        issue_node(authority, node, pki, now)
        ends[node] = load_certificate(pki / CERTIFICATE_FILE).not_valid_after_utc
    return ends


def revoke_node(root: Path, certificate: Path, now: datetime) -> int:
    """Put a node's certificate on the list of every node; return its number."""
    cluster = read_cluster_file(root / CLUSTER_FILE)
    found = load_certificate(certificate)
    authority = authority_for(root / PKI_DIRECTORY, cluster.id, found)
    revoke_certificate(authority, found, root / PKI_DIRECTORY / REVOCATION_FILE, now)
    publish_revocations(root, cluster)
    return found.serial_number


def publish_revocations(root: Path, cluster: ClusterFile) -> None:
    """Give every node the cluster's list."""
    source = root / PKI_DIRECTORY / REVOCATION_FILE
    if source.exists():
        for entry in cluster.nodes:
            pki = node_directory(root, entry.id) / PKI_DIRECTORY
            replace_file(pki / REVOCATION_FILE, source.read_bytes(), 0o644)
