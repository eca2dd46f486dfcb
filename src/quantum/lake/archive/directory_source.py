"""Logs in the data directory of a stopped node, or of all nodes of a stopped cluster.

Opening a partition reads and authenticates all of its log once, in the process that plans; what
was learned travels with the pickle, and every reader authenticates again what it reads itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clustor.log.errors import AuthenticationFailed, KeyUnavailable
from clustor.log.keys import KeyRing
from clustor.log.logmap import LogMap
from clustor.log.reader import LogReader, read_entries
from clustor.log.types import Entry, PartitionId
from clustor.raft.hard_state import HardState
from clustor.raft.membership import Membership
from clustor.raft.types import ReplicaId
from clustor.replica.documents import read_hard_state
from clustor.runtime.cluster_file import CLUSTER_FILE, read_cluster_file
from clustor.runtime.data_directory import NODE_FILE, STATE_DIRECTORY
from clustor.runtime.development import node_directory
from clustor.runtime.disk import DirectoryStorage
from clustor.snapshot.catalog import open_catalog, read_content
from clustor.snapshot.types import SnapshotKind
from quantum.archive.types import Bounds, IndexRange, LogPiece, PrgId, SnapshotRef
from quantum.lake.archive.committed import (
    StoppedReplica,
    committed_index,
    longest,
    newest_configuration,
)
from quantum.lake.archive.keys import DirectoryKeys, KeyProvider, given_by
from quantum.lake.archive.translating import in_readers_words, naming_the_entry
from quantum.lake.errors import BadAddress, DamagedBlock, LogGone, WrongKey
from quantum.tenants.broker_file import BROKER_FILE, read_broker_file
from quantum.tenants.group_ids import group_of


@dataclass(frozen=True, slots=True)
class _Opened:
    """A partition's longest log among the replicas, and how far it is committed."""

    state: str
    entries: LogMap
    last: int
    damage: str = ""
    """What is wrong behind the last entry of `entries`, where that is before `last`."""


@dataclass
class DirectorySource:
    """`LogSource` over files. A log that grows is seen anew only by a new source."""

    root: str
    node: int | None
    keys: KeyProvider
    _opened: dict[PrgId, _Opened] = field(default_factory=dict, repr=False)

    @classmethod
    def at(cls, path: Path, keys: KeyProvider) -> DirectorySource:
        """Take a broker's directory, or the directory of one of its nodes."""
        path = path.resolve()
        if (path / BROKER_FILE).is_file():
            return cls(str(path), None, keys)
        name, _, number = path.name.rpartition("-")
        if (path / NODE_FILE).is_file() and name and number.isdigit():
            return cls(str(path.parent), int(number), keys)
        raise BadAddress("neither a broker's nor a node's directory", directory=str(path))

    def prgs(self) -> list[PrgId]:
        return sorted(self._groups())

    def bounds(self, prg: PrgId) -> Bounds:
        opened = self._open(prg)
        pieces = tuple(self._pieces(prg, opened))
        first = opened.entries.base_index + 1
        return Bounds(prg, first, max(opened.last, first - 1), pieces)

    def entries(self, span: IndexRange) -> Iterator[Entry]:
        opened = self._open(span.prg)
        first = opened.entries.base_index + 1
        if span.first < first:
            missing = min(span.last, first - 1)
            after = first if opened.last >= first else None
            raise LogGone(
                "compacted", prg=span.prg, first=span.first, last=missing, readable_from=after
            )
        index = span.first
        with self._storage(opened.state) as storage, in_readers_words(span.prg, index):
            stop = min(span.last, opened.last, opened.entries.last_index)
            found = read_entries(storage, self._ring(span.prg), opened.entries, index, stop)
            for entry in naming_the_entry(found, span.prg, index):
                yield entry
                index = entry.index + 1
        if index <= min(span.last, opened.last):
            raise DamagedBlock(opened.damage, prg=span.prg, index=index)
        if index <= span.last:
            raise LogGone("not committed", prg=span.prg, first=index, last=span.last)

    def snapshots(self, prg: PrgId) -> list[SnapshotRef]:
        state, partition = self._open(prg).state, self._groups()[prg]
        with self._storage(state) as storage, in_readers_words(prg):
            return [
                SnapshotRef(
                    prg,
                    each.manifest.base_index,
                    each.manifest.base_term,
                    each.manifest.content_bytes,
                    str(each.manifest.manifest_id),
                    partition,
                )
                for each in open_catalog(storage, partition).snapshots
                if each.manifest.snapshot_kind is SnapshotKind.FULL
            ]

    def open_snapshot(self, ref: SnapshotRef) -> Iterator[bytes]:
        state = self._open(ref.prg).state
        with self._storage(state) as storage, in_readers_words(ref.prg, ref.base_index):
            for each in open_catalog(storage, ref.partition).snapshots:
                if str(each.manifest.manifest_id) == ref.name:
                    ring = self._ring(ref.prg)
                    for piece in read_content(storage, each.manifest, ring, ref.partition):
                        yield bytes(piece)
                    return
        at = ref.base_index
        raise LogGone("this snapshot is not here any more", prg=ref.prg, first=at, last=at)

    # Opening.

    def _groups(self) -> dict[PrgId, PartitionId]:
        with in_readers_words():
            tenants = read_broker_file(Path(self.root)).tenants
        return {
            PrgId(tenant.name, number): group_of(ordinal, number)
            for ordinal, tenant in enumerate(tenants)
            for number in range(tenant.prg_count)
        }

    def _nodes(self) -> list[tuple[ReplicaId, Path]]:
        with in_readers_words():
            cluster = read_cluster_file(Path(self.root) / CLUSTER_FILE)
        return [
            (ReplicaId(entry.node_id), node_directory(Path(self.root), entry.id))
            for entry in cluster.nodes
            if self.node in (None, entry.node_id)
        ]

    def _ring(self, prg: PrgId) -> KeyRing:
        return self.keys.keyring(prg)

    def _open(self, prg: PrgId) -> _Opened:
        if prg not in self._opened:
            group = self._groups().get(prg)
            if group is None:
                raise BadAddress("no such partition", prg=prg)
            try:
                with in_readers_words(prg):
                    self._opened[prg] = self._read(prg, group)
            except WrongKey as error:
                beside = given_by(DirectoryKeys(self.root), prg)
                told: dict[str, Any] = {"wanted": beside, "given": given_by(self.keys, prg)}
                raise WrongKey(error.reason, prg=prg, **(told | error.facts)) from error
        return self._opened[prg]

    def _read(self, prg: PrgId, group: PartitionId) -> _Opened:
        ring = self._ring(prg)
        found: dict[ReplicaId, tuple[str, StoppedReplica]] = {}
        for replica_id, directory in self._nodes():
            state = directory / STATE_DIRECTORY / str(group)
            if state.is_dir():
                found[replica_id] = (str(state), _stopped(state, ring))
        if not found:
            raise BadAddress("no replica of this partition is here", prg=prg, directory=self.root)
        replicas = {replica_id: stopped for replica_id, (_, stopped) in found.items()}
        committed = committed_index(replicas, self._voters(found, replicas, ring))

        def reach(replica: tuple[str, StoppedReplica]) -> tuple[int, int]:
            _, stopped = replica
            return min(stopped.entries.last_index, committed), -stopped.entries.base_index

        state_of, chosen = max(found.values(), key=reach)
        last = min(chosen.proven_index, committed)
        damage = "" if chosen.problem is None else str(chosen.problem)
        return _Opened(state_of, chosen.entries, last, damage)

    def _voters(
        self,
        found: dict[ReplicaId, tuple[str, StoppedReplica]],
        replicas: dict[ReplicaId, StoppedReplica],
        ring: KeyRing,
    ) -> Membership:
        """Read who votes; of a partition that never had more than one member it is known."""
        state, stopped = found[longest(replicas)]
        hard, entries = stopped.hard, stopped.entries
        if len(self._nodes()) == 1 and self.node is None:
            return hard.membership
        first = max(hard.membership_index, entries.base_index) + 1
        with self._storage(state) as storage:
            changes = read_entries(storage, ring, entries, first, entries.last_index)
            return newest_configuration(hard, changes)

    def _pieces(self, prg: PrgId, opened: _Opened) -> Iterator[LogPiece]:
        with self._storage(opened.state), in_readers_words(prg):
            for extent in opened.entries.extents:
                last = min(extent.last_index, opened.last)
                start = extent.offsets[0]
                size = (extent.end_offset if extent.end_offset > 0 else extent.offsets[-1]) - start
                if extent.first_index <= last:
                    yield LogPiece(extent.first_index, last, max(size, 1))

    @contextmanager
    def _storage(self, state: str) -> Iterator[DirectoryStorage]:
        with in_readers_words():
            storage = DirectoryStorage(Path(state))
        try:
            yield storage
        finally:
            storage.close()


def _stopped(state: Path, ring: KeyRing) -> StoppedReplica:
    storage = DirectoryStorage(state)
    try:
        image = LogReader.open(storage, ring).image
        if image.problem is not None and image.ledger.damaged_at is not None:
            raise image.problem  # a truncation may be lost in the ledger
        nothing = image.entries.last_index == image.entries.base_index < image.facts.proven_index
        if nothing and isinstance(image.problem, AuthenticationFailed):
            raise KeyUnavailable("these keys did not write this log")
        hard = read_hard_state(storage) or HardState()
        return StoppedReplica(hard, image.facts.proven_index, image.entries, image.problem)
    finally:
        storage.close()
