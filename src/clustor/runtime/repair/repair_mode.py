"""Repair mode: look at every replica without changing a byte, and say what is there."""

from __future__ import annotations

from pathlib import Path

from clustor.log.errors import LogError
from clustor.log.image import read_identity, read_image
from clustor.log.keys import KeyRing
from clustor.log.types import IoWriterMode, PartitionId
from clustor.replica import ReplicaError, read_hard_state
from clustor.runtime.admin.status_shapes import GroupStatus, NodeAddress, NodeStatus
from clustor.runtime.cluster_file import ClusterFile
from clustor.runtime.data_directory import (
    IDENTITY_DIRECTORY,
    STATE_DIRECTORY,
    DataDirectory,
)
from clustor.runtime.disk import DirectoryStorage
from clustor.runtime.pki.identity import NodeId


def repair_status(
    cluster: ClusterFile, node: NodeId, data: DataDirectory, keys: KeyRing, pid: int
) -> NodeStatus:
    """Read every replica below the data directory, once."""
    groups = [_look(data.root, number, node, keys) for number in _numbers(cluster, data.root)]
    return NodeStatus(
        cluster_id=cluster.cluster_id,
        node_id=node,
        pid=pid,
        mode="Repair",
        connected_to=[],
        nodes=[
            NodeAddress(entry.node_id, str(entry.peer), str(entry.admin)) for entry in cluster.nodes
        ],
        groups=groups,
    )


def _numbers(cluster: ClusterFile, root: Path) -> list[PartitionId]:
    """Name every group that is or was here: of the file, of tenants, of the control plane."""
    found = set(range(1, cluster.groups + 1))
    for directory in (root / STATE_DIRECTORY, root / IDENTITY_DIRECTORY):
        if directory.is_dir():
            found |= {int(each.name) for each in directory.iterdir() if each.name.isdecimal()}
    return [PartitionId(number) for number in sorted(found)]


def _look(root: Path, partition: PartitionId, node: NodeId, keys: KeyRing) -> GroupStatus:
    directory = root / STATE_DIRECTORY / str(partition)
    if not directory.is_dir():
        return _found(partition, node, state="Absent", problem="there is no such directory")
    storage = DirectoryStorage(directory)
    try:
        hard = read_hard_state(storage)
        identity = read_identity(storage)
        if identity is None:
            return _found(partition, node, state="Absent", problem="there is no log here")
        image = read_image(storage, keys, identity)
    except (LogError, ReplicaError, FileNotFoundError) as error:
        return _found(partition, node, state="Unreadable", problem=str(error))
    finally:
        storage.close()
    return _found(
        partition,
        node,
        state=str(image.state),
        problem=None if image.problem is None else str(image.problem),
        term=0 if hard is None else hard.term,
        voters=[] if hard is None else sorted(hard.membership.voters),
        durable_index=image.facts.proven_index,
        last_index=image.entries.last_index,
    )


def _found(
    partition: PartitionId,
    node: NodeId,
    *,
    state: str,
    problem: str | None,
    term: int = 0,
    voters: list[int] | None = None,
    durable_index: int = 0,
    last_index: int = 0,
) -> GroupStatus:
    return GroupStatus(
        partition_id=partition,
        replica_id=node,
        state=state,
        role="None",
        term=term,
        leader_id=None,
        voters=voters or [],
        commit_index=0,
        wal_committed_index=0,
        durable_index=durable_index,
        applied_index=0,
        last_index=last_index,
        durability_mode="STRICT",
        gate="Shut",
        failed_clause="RepairMode",
        io_writer_mode=IoWriterMode.BLOCKING.name,
        syncs=0,
        problem=problem,
    )
