"""Making a development cluster: every node's directory, certificate and keys, on one machine.

The nodes share one key ring, because a snapshot travels between them as it is on disk.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from clustor.runtime.audit.writer import SECURITY_DIRECTORY
from clustor.runtime.cluster_file import (
    ADMIN_ROLE,
    CLUSTER_FILE,
    LOOPBACK,
    PEER_ROLE,
    ClusterFile,
    NodeEntry,
    encode_cluster_file,
    port_of,
    read_cluster_file,
)
from clustor.runtime.data_directory import write_durably
from clustor.runtime.errors import DataDirectoryRefused
from clustor.runtime.keys.snapshot_key import SIGNER_FILE, create_signer, load_signer, public_hex
from clustor.runtime.keys.store import (
    KEK_FILE,
    KEYRING_FILE,
    KEYS_DIRECTORY,
    STAGED_FILE,
    create_keyring,
    newest_store,
)
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    AUTHORITY_KEY_FILE,
    PKI_DIRECTORY,
    ClusterId,
    DevelopmentAuthority,
    NodeId,
    create_authority,
    issue_node,
    load_authority,
    needs_certificate,
)

NODES_MAX: Final = 9
PORT_MAX: Final = 65_535


def node_directory(root: Path, node: NodeId) -> Path:
    """Return where a node of the cluster below `root` keeps its data."""
    return root / f"node-{node}"


def prepare_cluster(
    root: Path, cluster: ClusterId, *, nodes: int, base_port: int, groups: int, now: datetime
) -> ClusterFile:
    """Make the cluster below `root`, or take up the one that is there.

    Raises DataDirectoryRefused where `root` holds another cluster, or something else.
    """
    path = root / CLUSTER_FILE
    if path.exists():
        known = read_cluster_file(path)
        _require_same(known, root, nodes, groups)
        moved = tuple(_moved(entry, base_port) for entry in known.nodes)
        wanted = msgspec.structs.replace(known, nodes=moved)
    else:
        if root.exists() and _foreign(root, nodes):
            raise DataDirectoryRefused("not a cluster's directory", directory=str(root))
        root.mkdir(parents=True, mode=0o700, exist_ok=True)
        _prepare_keys(root, nodes)
        wanted = _describe(root, cluster, nodes, base_port, groups)
    wanted = _with_control_plane(wanted)
    _prepare_certificates(root, wanted, now)
    write_durably(path, encode_cluster_file(wanted), 0o644)
    return wanted


def _with_control_plane(cluster: ClusterFile) -> ClusterFile:
    """Name the first voters of the control plane, once: also in a cluster that had none.

    They must be the same on every node for ever, whoever joins or leaves; no node runs now.
    """
    if cluster.control_founders:
        return cluster
    voters = tuple(entry.node_id for entry in cluster.nodes)
    return msgspec.structs.replace(cluster, control_founders=voters)


def prepare_node(root: Path, now: datetime) -> NodeEntry:
    """Make the directory, the certificate and the keys of one more node, and list it.

    It has no vote in any group: a change of members gives it one. Raises DataDirectoryRefused.
    """
    cluster = read_cluster_file(root / CLUSTER_FILE)
    node_id = cluster.next_node_id()
    known = cluster.nodes[0]
    base_port = known.peer_port - port_of(0, known.node_id, PEER_ROLE)
    _prepare_node_keys(root, node_id)
    entry = _entry(root, node_id, base_port, founder=False)
    if entry.admin_port > PORT_MAX:
        raise DataDirectoryRefused("there is no port left for another node", port=entry.admin_port)
    wanted = cluster.with_node(entry)
    _prepare_certificates(root, wanted, now)
    write_durably(root / CLUSTER_FILE, encode_cluster_file(wanted), 0o644)
    return entry


def forget_node(root: Path, node_id: NodeId) -> None:
    """Take a node off the list; its directory stays. Raises DataDirectoryRefused."""
    wanted = read_cluster_file(root / CLUSTER_FILE).without_node(node_id)
    write_durably(root / CLUSTER_FILE, encode_cluster_file(wanted), 0o644)


def _require_same(known: ClusterFile, root: Path, nodes: int, groups: int) -> None:
    """The command that made the cluster also takes it up, whoever joined or left since."""
    founded = sum(entry.founder for entry in (*known.nodes, *known.removed))
    if nodes not in (len(known.nodes), founded) or groups != known.groups:
        raise DataDirectoryRefused(
            "the directory holds a cluster of another shape",
            directory=str(root),
            nodes=len(known.nodes),
            groups=known.groups,
        )


def _foreign(root: Path, nodes: int) -> list[Path]:
    """List what an interrupted preparation cannot have left."""
    ours = {PKI_DIRECTORY, KEYS_DIRECTORY, SECURITY_DIRECTORY, CLUSTER_FILE + ".tmp"}
    ours |= {node_directory(root, NodeId(number)).name for number in range(1, nodes + 1)}
    return [entry for entry in root.iterdir() if entry.name not in ours]


def _prepare_keys(root: Path, nodes: int) -> None:
    """Give every node the cluster's key ring and a signing key of its own."""
    if not (root / KEYS_DIRECTORY / KEYRING_FILE).exists():
        create_keyring(root)
    for number in range(1, nodes + 1):
        _prepare_node_keys(root, NodeId(number))


def _prepare_node_keys(root: Path, node: NodeId) -> None:
    keys = node_directory(root, node) / KEYS_DIRECTORY
    keys.mkdir(parents=True, mode=0o700, exist_ok=True)
    source = newest_store(root)
    if source != keys:
        for name in (KEK_FILE, KEYRING_FILE):
            write_durably(keys / name, (source / name).read_bytes())
        if (source / STAGED_FILE).exists():
            write_durably(keys / STAGED_FILE, (source / STAGED_FILE).read_bytes())
    if not (keys / SIGNER_FILE).exists():
        create_signer(keys)


def _describe(
    root: Path, cluster: ClusterId, nodes: int, base_port: int, groups: int
) -> ClusterFile:
    numbers = range(1, nodes + 1)
    entries = (_entry(root, NodeId(number), base_port, founder=True) for number in numbers)
    return ClusterFile(
        cluster,
        groups,
        tuple(entries),
        birth_id=os.urandom(16).hex(),
        disk_override="development",
    )


def _entry(root: Path, node: NodeId, base_port: int, *, founder: bool) -> NodeEntry:
    signer = load_signer(node_directory(root, node) / KEYS_DIRECTORY)
    return NodeEntry(
        node,
        LOOPBACK,
        port_of(base_port, node, PEER_ROLE),
        port_of(base_port, node, ADMIN_ROLE),
        public_hex(signer),
        founder,
    )


def _moved(entry: NodeEntry, base_port: int) -> NodeEntry:
    return msgspec.structs.replace(
        entry,
        peer_port=port_of(base_port, entry.node_id, PEER_ROLE),
        admin_port=port_of(base_port, entry.node_id, ADMIN_ROLE),
    )


def _prepare_certificates(root: Path, cluster: ClusterFile, now: datetime) -> None:
    directory = root / PKI_DIRECTORY
    authority: DevelopmentAuthority | None = None
    for entry in cluster.nodes:
        pki = node_directory(root, entry.id) / PKI_DIRECTORY
        if needs_certificate(pki, now):
            authority = authority or _authority(directory, cluster.id, now)
            issue_node(authority, entry.id, pki, now)


def _authority(directory: Path, cluster: ClusterId, now: datetime) -> DevelopmentAuthority:
    if (directory / AUTHORITY_FILE).exists():
        return load_authority(directory, cluster)
    # A key without its certificate signed nothing. What is beside it may be others'.
    (directory / AUTHORITY_KEY_FILE).unlink(missing_ok=True)
    return create_authority(directory, cluster, now)
