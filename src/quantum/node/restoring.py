"""A cluster from nothing but an archive and its keys: directories that nodes start with.

The restored cluster is a new one: it has keys, certificates and nodes of its own, as many as are
asked for. Each tenant's partitions begin behind the entry that was asked for, with the state that
every replica had there, and with all that its streams and queues hold; its control plane begins
with the records that stood then (`restored_records`), its key-value stores with what they held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from clustor.control import ControlMachine
from clustor.kv import KvMachine
from clustor.log.keys import KeyRing
from clustor.log.types import LogIndex, PartitionId, Term
from clustor.raft.types import ReplicaId
from clustor.replica import StateMachine
from clustor.runtime.cluster_file import ClusterFile
from clustor.runtime.control.records import CONTROL_PARTITION
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
from clustor.runtime.kv.service import kv_store
from clustor.runtime.pki.identity import cluster_id, utc_now
from clustor.runtime.seeding import ReplicaPlace, ReplicaSeed, ReplicaSeeding
from clustor.streams.changes import StreamChange, StreamExtent
from quantum.archive import ArchiveMissing, Objects, PrgId, archived_prgs
from quantum.archive.backups import Backup, BackupPoint
from quantum.archive.roots import ArchiveRoots
from quantum.node.archived_groups import (
    CONTROL,
    KV,
    ArchivedGroup,
    archived_groups,
    replay_control,
    replay_kv,
)
from quantum.node.archived_log import PointInTime
from quantum.node.archived_state import ArchivedState, replay_archive, replay_streams
from quantum.node.archived_tenant import cut_of
from quantum.node.restored_records import begun_with_records, tenants_at
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
    streams: int = 0
    """How many partitions of streams and queues it has, all of them whole."""


@dataclass(slots=True)
class RestoredCluster:
    """What was brought back."""

    partitions: list[RestoredPartition] = field(default_factory=list)
    groups: list[BackupPoint] = field(default_factory=list)
    """The cluster's own: as they stood, before their records began a new one."""
    lives: Mapping[str, str] = field(default_factory=dict)
    """Its tenants, each with its name in the archive."""


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What to bring back: which tenants (none: all), as they stood where, on how many nodes."""

    point: PointInTime = PointInTime()
    points: Mapping[str, int] = field(default_factory=dict)
    """Where single partitions stop, by their names: a backup's entries."""
    group_points: Mapping[str, int] = field(default_factory=dict)
    """The same of the cluster's own groups."""
    tenants: frozenset[str] = frozenset()
    nodes: int = 1
    base_port: int = 7000
    name: str = "restored"

    def point_of(self, prg: PrgId) -> PointInTime:
        """Say where a partition stops."""
        index = self.points.get(str(prg))
        return self.point if index is None else PointInTime(index=index)

    def group_point_of(self, prg: PrgId) -> PointInTime:
        """Say where one of the cluster's own groups stops; a tenant's entry means nothing to it."""
        index = self.group_points.get(str(prg))
        return PointInTime(index, None if index is not None else self.point.time_ms)

    def settled(self, objects: Objects, keys_of: KeysOf, prgs: list[PrgId]) -> RestorePlan:
        """Return the same with entries of a tenant's partitions that fit together.

        Entries that were asked for one by one stay as they are.
        """
        if (
            self.point.index is not None
            or len(prgs) == 1
            or any(str(prg) in self.points for prg in prgs)
        ):
            return self
        cut = cut_of(objects, keys_of, prgs, self.point_of)
        return replace(self, points={each.prg: each.index for each in cut.points})

    def at_backup(self, backup: Backup) -> RestorePlan:
        """Return the same for a backup's entries."""
        points = {each.prg: each.index for each in backup.points}
        groups = {each.prg: each.index for each in backup.group_points}
        return replace(self, points=points, group_points=groups)


def restore_into(
    roots: ArchiveRoots,
    keys_of: KeysOf,
    into: Path,
    plan: RestorePlan,
    *,
    now_ms: int,
    progress: Callable[[RestoredPartition], None] = lambda _: None,
) -> RestoredCluster:
    """Make the directory of a cluster out of an archive.

    Raises DataDirectoryRefused where something is there, ArchiveMissing where the archive does not
    reach so far, and what reading it raises. The description of the tenants comes last: a directory
    without it was not restored to the end.
    """
    if into.exists() and any(into.iterdir()):
        raise DataDirectoryRefused("the directory is not empty", directory=str(into))
    own = archived_groups(roots.groups)
    control = None
    if CONTROL in own:
        control = replay_control(roots.groups, keys_of(CONTROL), plan.group_point_of(CONTROL))
    archived = archived_prgs(roots.tenants)
    lives = tenants_at(None if control is None else control.machine.kv, archived, plan.tenants)
    stores = [each for each in own if each.tenant == KV]
    making = _Making(into, plan, max((each.number for each in stores), default=1), now_ms)
    done = RestoredCluster(lives=lives)
    entries: list[TenantEntry] = []
    for ordinal, (name, life) in enumerate(lives.items()):
        own_prgs = [each for each in archived if each.tenant == life]
        settled = plan.settled(roots.tenants, keys_of, own_prgs)
        for prg in own_prgs:
            keys = keys_of(prg)
            state = replay_archive(roots.tenants, prg, keys, settled.point_of(prg))
            with making.replicas(group_of(ordinal, prg.number), keeps_streams=True) as made:
                if state.extents:
                    replay_streams(roots.tenants, keys, state, made)
                made.finish(state.broker, state.index, state.term)
            done.partitions.append(_restored(prg, state))
            progress(done.partitions[-1])
            if prg.number == 0:
                entries.append(msgspec.structs.replace(state.tenant, name=name))
    for prg in stores:
        found = replay_kv(roots.groups, prg, keys_of(prg), plan.group_point_of(prg))
        making.key_values(found)
        done.groups.append(found.point)
    if control is not None:
        making.control_plane(begun_with_records(making.cluster, control.machine.kv, lives, now_ms))
        done.groups.append(control.point)
    described = BrokerFile(tuple(entries))
    write_durably(into / BROKER_FILE, msgspec.json.encode(described) + b"\n", 0o644)
    return done


def _restored(prg: PrgId, state: ArchivedState) -> RestoredPartition:
    return RestoredPartition(
        str(prg), state.index, state.commands, state.digest, len(state.extents)
    )


def wanted_prgs(objects: Objects, tenants: Iterable[str]) -> list[PrgId]:
    """Return the partitions of these tenants (none: of all); raises ArchiveMissing."""
    found = archived_prgs(objects)
    chosen = set(tenants)
    missing = chosen - {prg.tenant for prg in found}
    if missing or not found:
        wanted = ", ".join(sorted(missing)) or "any tenant"
        raise ArchiveMissing("the archive has nothing of it", tenant=wanted)
    return [prg for prg in found if not chosen or prg.tenant in chosen]


class _Making:
    """A new cluster's directory, and what its groups begin with."""

    def __init__(self, into: Path, plan: RestorePlan, groups: int, now_ms: int) -> None:
        self._into, self._now_ms = into, now_ms
        self.cluster = prepare_cluster(
            into,
            cluster_id(plan.name),
            nodes=plan.nodes,
            base_port=plan.base_port,
            groups=groups,
            now=utc_now(),
        )
        for entry in self.cluster.nodes:
            directory = node_directory(into, entry.id)
            open_data_directory(directory, self.cluster.id, entry.id).close()

    @contextmanager
    def replicas(self, partition: PartitionId, *, keeps_streams: bool) -> Iterator[_Replicas]:
        """Make a group's replicas, one on each node."""
        with ExitStack() as stack:
            made = []
            for place in _places(self._into, self.cluster, partition):
                made.append(ReplicaSeeding(partition, place, keeps_streams=keeps_streams))
                stack.callback(made[-1].close)
            yield _Replicas(self.cluster, partition, made, self._now_ms)

    def key_values(self, found: ArchivedGroup[KvMachine]) -> None:
        partition = PartitionId(found.prg.number)
        found.machine.begin_anew(kv_store(self.cluster.birth, partition))
        with self.replicas(partition, keeps_streams=False) as made:
            made.finish(found.machine, LogIndex(found.index), Term(max(1, found.term)))

    def control_plane(self, machine: ControlMachine) -> None:
        with self.replicas(CONTROL_PARTITION, keeps_streams=False) as made:
            made.finish(machine, LogIndex(machine.applied_index), Term(1))


class _Replicas:
    """The replicas of one group under way: each is told the same."""

    def __init__(
        self,
        cluster: ClusterFile,
        partition: PartitionId,
        made: list[ReplicaSeeding],
        now_ms: int,
    ) -> None:
        self._cluster, self._partition = cluster, partition
        self._made, self._now_ms = made, now_ms

    def begin(self, raft_index: int, extents: Iterable[StreamExtent]) -> None:
        held = list(extents)
        for each in self._made:
            each.begin(raft_index, held)

    def feed(self, raft_index: int, changes: Iterable[StreamChange]) -> None:
        held = list(changes)
        for each in self._made:
            each.feed(raft_index, held)

    def finish(self, machine: StateMachine, index: LogIndex, term: Term) -> None:
        """Write the state that the group begins with."""
        voters = frozenset(ReplicaId(entry.node_id) for entry in self._cluster.nodes)
        seed = ReplicaSeed(self._partition, machine, index, term, voters)
        for each in self._made:
            each.finish(seed, self._now_ms)


def _places(into: Path, cluster: ClusterFile, partition: PartitionId) -> Iterator[ReplicaPlace]:
    for entry in cluster.nodes:
        directory = node_directory(into, entry.id)
        keys = directory / KEYS_DIRECTORY
        yield ReplicaPlace(
            ReplicaId(entry.node_id),
            load_keyring(keys),
            load_signer(keys),
            state=directory / STATE_DIRECTORY / str(partition),
            identity=directory / IDENTITY_DIRECTORY / str(partition),
            segment_bytes=cluster.segment_bytes,
        )
