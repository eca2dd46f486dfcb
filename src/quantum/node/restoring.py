"""A cluster from nothing but an archive and its keys: directories that nodes start with.

The restored cluster is a new one: it has keys, certificates and a control plane of its own, and
as many nodes as are asked for. Each tenant's partitions begin behind the entry that was asked for,
with the state that every replica had there; what was acknowledged through it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from clustor.log.keys import KeyRing
from clustor.raft.types import ReplicaId
from clustor.runtime.cluster_file import ClusterFile
from clustor.runtime.data_directory import (
    IDENTITY_DIRECTORY,
    STATE_DIRECTORY,
    open_data_directory,
    write_durably,
)
from clustor.runtime.development import node_directory, prepare_cluster
from clustor.runtime.errors import DataDirectoryRefused
from clustor.runtime.keys.snapshot_key import load_signer
from clustor.runtime.keys.store import KEYS_DIRECTORY, load_keyring
from clustor.runtime.pki.identity import cluster_id, utc_now
from clustor.runtime.seeding import ReplicaSeed, seed_replica
from quantum.archive import ArchiveMissing, Objects, PrgId, archived_prgs
from quantum.node.archived_state import ArchivedState, PointInTime, replay_archive
from quantum.tenants.broker_file import BROKER_FILE, BrokerFile, TenantEntry
from quantum.tenants.group_ids import group_of

KeysOf = Callable[[PrgId], KeyRing]


@dataclass(frozen=True, slots=True)
class RestoredPartition:
    """One partition that was brought back."""

    prg: str
    index: int
    commands: int
    digest: str


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What to bring back: which tenants (none: all), as they stood where, on how many nodes."""

    point: PointInTime = PointInTime()
    points: Mapping[str, int] = field(default_factory=dict)
    """Where single partitions stop, by their names: a backup's entries."""
    tenants: frozenset[str] = frozenset()
    nodes: int = 1
    base_port: int = 7000
    name: str = "restored"

    def point_of(self, prg: PrgId) -> PointInTime:
        """Say where a partition stops."""
        index = self.points.get(str(prg))
        return self.point if index is None else PointInTime(index=index)


def restore_into(
    objects: Objects,
    keys_of: KeysOf,
    into: Path,
    plan: RestorePlan,
    *,
    now_ms: int,
    progress: Callable[[RestoredPartition], None] = lambda _: None,
) -> list[RestoredPartition]:
    """Make the directory of a cluster out of an archive.

    Raises DataDirectoryRefused where something is there, ArchiveMissing where the archive does not
    reach so far, and what reading it raises. The description of the tenants comes last: a directory
    without it was not restored to the end.
    """
    if into.exists() and any(into.iterdir()):
        raise DataDirectoryRefused("the directory is not empty", directory=str(into))
    prgs = wanted_prgs(objects, plan.tenants)
    now = utc_now()
    cluster = prepare_cluster(
        into,
        cluster_id(plan.name),
        nodes=plan.nodes,
        base_port=plan.base_port,
        groups=1,
        now=now,
    )
    for entry in cluster.nodes:
        open_data_directory(node_directory(into, entry.id), cluster.id, entry.id).close()
    names = list(dict.fromkeys(prg.tenant for prg in prgs))
    tenants: dict[str, TenantEntry] = {}
    done: list[RestoredPartition] = []
    for prg in prgs:
        state = replay_archive(objects, prg, keys_of(prg), plan.point_of(prg))
        require_whole(state)
        tenants[prg.tenant] = state.tenant
        _seed(into, cluster, state, names.index(prg.tenant), now_ms)
        done.append(RestoredPartition(str(prg), state.index, state.commands, state.digest))
        progress(done[-1])
    described = BrokerFile(tuple(tenants[name] for name in names))
    write_durably(into / BROKER_FILE, msgspec.json.encode(described) + b"\n", 0o644)
    return done


def wanted_prgs(objects: Objects, tenants: Iterable[str]) -> list[PrgId]:
    """Return the partitions of these tenants (none: of all); raises ArchiveMissing."""
    found = archived_prgs(objects)
    chosen = set(tenants)
    missing = chosen - {prg.tenant for prg in found}
    if missing or not found:
        wanted = ", ".join(sorted(missing)) or "any tenant"
        raise ArchiveMissing("the archive has nothing of it", tenant=wanted)
    return [prg for prg in found if not chosen or prg.tenant in chosen]


def require_whole(state: ArchivedState) -> None:
    """What streams hold is in files that the archive has no copy of: half of it is no restore."""
    kept = len(list(state.broker.stream_extents()))
    if kept:
        raise DataDirectoryRefused(
            "a partition holds streams, which archives have no copy of",
            prg=str(state.prg),
            streams=kept,
        )


def _seed(
    into: Path, cluster: ClusterFile, state: ArchivedState, ordinal: int, now_ms: int
) -> None:
    partition = group_of(ordinal, state.prg.number)
    voters = frozenset(ReplicaId(entry.node_id) for entry in cluster.nodes)
    seed = ReplicaSeed(partition, state.broker, state.index, state.term, voters)
    for entry in cluster.nodes:
        directory = node_directory(into, entry.id)
        keys = directory / KEYS_DIRECTORY
        seed_replica(
            seed,
            ReplicaId(entry.node_id),
            load_keyring(keys),
            load_signer(keys),
            state=directory / STATE_DIRECTORY / str(partition),
            identity=directory / IDENTITY_DIRECTORY / str(partition),
            segment_bytes=cluster.segment_bytes,
            now_ms=now_ms,
        )
