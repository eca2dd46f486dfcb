"""The authorities of a development cluster change while it runs: its nodes', or its clients'.

The cluster's own authority signs for nodes and for callers of the admin port. Every node has a
copy of the bundle, which it looks at once a second, so each step gives all of them the new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from clustor.runtime.cluster_file import CLUSTER_FILE, read_cluster_file
from clustor.runtime.development import node_directory
from clustor.runtime.pki.authority_change import (
    AuthorityPhase,
    begin_rollover,
    finish_rollover,
    phase_of,
    switch_rollover,
)
from clustor.runtime.pki.certificate_files import load_certificate, load_certificates, replace_file
from clustor.runtime.pki.identity import AUTHORITY_FILE, CERTIFICATE_FILE, PKI_DIRECTORY
from clustor.runtime.pki.renewal_development import publish_revocations, renew_nodes


@dataclass(frozen=True, slots=True)
class AuthorityChange:
    """How a rollover stands."""

    phase: AuthorityPhase
    authorities: tuple[x509.Certificate, ...]
    """Who is trusted; who signs stands first."""
    of_others: tuple[str, ...]
    """Whose certificates are of another authority than the one that signs."""


def nodes_standing(root: Path) -> AuthorityChange:
    """Look at the authority of the nodes. Raises NodeError."""
    return standing_of(root / PKI_DIRECTORY, _certificates(root))


def standing_of(directory: Path, certificates: dict[str, Path]) -> AuthorityChange:
    """Look at an authority, and at who stands on it."""
    trusted = tuple(load_certificates(directory / AUTHORITY_FILE))
    signing = trusted[0].subject
    others = [
        name for name, file in certificates.items() if load_certificate(file).issuer != signing
    ]
    return AuthorityChange(phase_of(directory), trusted, tuple(others))


def begin_nodes(root: Path, now: datetime) -> None:
    """Let every node trust the next authority too."""
    cluster = read_cluster_file(root / CLUSTER_FILE)
    begin_rollover(root / PKI_DIRECTORY, cluster.id, now)
    publish_revocations(root, cluster)  # the lists first: where they are asked, each needs one
    publish_bundle(root)


def switch_nodes(root: Path, now: datetime) -> None:
    """Let the next authority sign, and renew the certificates of all nodes."""
    cluster = read_cluster_file(root / CLUSTER_FILE)
    if phase_of(root / PKI_DIRECTORY) is not AuthorityPhase.SWITCHED:
        switch_rollover(root / PKI_DIRECTORY, cluster.id)
    publish_bundle(root)
    renew_nodes(root, (), now)


def finish_nodes(root: Path) -> None:
    """Let every node trust the new authority alone."""
    cluster = read_cluster_file(root / CLUSTER_FILE)
    finish_rollover(root / PKI_DIRECTORY, cluster.id)
    publish_revocations(root, cluster)
    publish_bundle(root)


def publish_bundle(root: Path) -> None:
    """Give every node the cluster's trust bundle."""
    bundle = (root / PKI_DIRECTORY / AUTHORITY_FILE).read_bytes()
    for entry in read_cluster_file(root / CLUSTER_FILE).nodes:
        file = node_directory(root, entry.id) / PKI_DIRECTORY / AUTHORITY_FILE
        if file.parent.exists():
            replace_file(file, bundle, 0o644)


def _certificates(root: Path) -> dict[str, Path]:
    """Return the certificates of all nodes that have one here."""
    files = {
        f"node {entry.node_id}": node_directory(root, entry.id) / PKI_DIRECTORY / CERTIFICATE_FILE
        for entry in read_cluster_file(root / CLUSTER_FILE).nodes
    }
    return {name: file for name, file in files.items() if file.exists()}
