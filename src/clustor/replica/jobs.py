"""What is read from disk while the replica runs: jobs that a driver may run on any thread."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from clustor.log.keys import KeyRing
from clustor.log.logmap import LogMap
from clustor.log.reader import read_entries
from clustor.log.steps import Plan, Storage
from clustor.log.types import Entry, LogIndex, PartitionId
from clustor.raft.memory_log import ENTRY_OVERHEAD_BYTES
from clustor.snapshot.catalog import Catalog, Relisted, read_content, relist
from clustor.snapshot.chunks import sealed_bytes
from clustor.snapshot.emission import Emission
from clustor.snapshot.garbage import plan_collect_garbage
from clustor.snapshot.layout import chunk_file
from clustor.snapshot.manifest import Manifest, SnapshotChunk


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read entries that are durable, up to a number of bytes but at least one."""

    keys: KeyRing
    entries: LogMap  # a copy: the log goes on while the job runs
    first_index: LogIndex
    last_index: LogIndex
    bytes_max: int

    def run(self, storage: Storage) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        for entry in read_entries(
            storage, self.keys, self.entries, self.first_index, self.last_index
        ):
            size += len(entry.payload) + ENTRY_OVERHEAD_BYTES
            if found and size > self.bytes_max:
                break
            found.append(entry)
        return found


def frozen_map(entries: LogMap) -> LogMap:
    """Copy a map: its extents are few, one for a segment or a truncation."""
    return copy.deepcopy(entries)


@dataclass(frozen=True, slots=True)
class Relist:
    """Read a written snapshot back, and check every byte of it."""

    manifest: Manifest
    generation: int

    def run(self, storage: Storage) -> Relisted:
        return relist(storage, self.manifest, self.generation)


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """Read a staged snapshot's content, each chunk authenticated."""

    manifest: Manifest
    keys: KeyRing
    partition_id: PartitionId

    def run(self, storage: Storage) -> list[bytes]:
        pieces = read_content(storage, self.manifest, self.keys, self.partition_id)
        return [bytes(piece) for piece in pieces]


@dataclass(frozen=True, slots=True)
class LoadChain:
    """Read a staged full snapshot's content and that of its deltas, each chunk authenticated."""

    manifests: tuple[Manifest, ...]
    keys: KeyRing
    partition_id: PartitionId

    def run(self, storage: Storage) -> list[list[bytes]]:
        loads = (LoadSnapshot(each, self.keys, self.partition_id) for each in self.manifests)
        return [load.run(storage) for load in loads]


@dataclass(frozen=True, slots=True)
class NextChunk:
    """Encode and seal the next chunk of an emission. It reads nothing: it only takes long.

    One at a time: the next is asked for when the plan of this one is carried out.
    """

    emission: Emission

    def run(self, storage: Storage) -> Plan | None:
        del storage
        return next(self.emission, None)


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """Read one chunk as it is, for a peer; the peer authenticates it."""

    chunk: SnapshotChunk

    def run(self, storage: Storage) -> bytes:
        return storage.read(chunk_file(self.chunk.chunk_id), 0, sealed_bytes(self.chunk.len))


@dataclass(frozen=True, slots=True)
class FindGarbage:
    """Find the files that no snapshot needs, and plan to delete them."""

    catalog: Catalog

    def run(self, storage: Storage) -> Plan:
        return plan_collect_garbage(storage, self.catalog)
