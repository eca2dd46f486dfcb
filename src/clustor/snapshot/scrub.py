"""Read the snapshots that a start stands on again, piece by piece, before they are needed.

A piece is the authorisation log, a manifest, or one chunk. Each is checked against a hash that an
authority has signed or chained, so no key is needed and a mismatch is no matter of luck. What is
superseded is not read: it goes with the next collection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from clustor.log.scrub import COVERAGE_MS, DAY_MS, ROUND_MS
from clustor.log.steps import FileName, Storage
from clustor.log.types import PartitionId
from clustor.snapshot.authorization import SnapshotAuthorizationRecord, read_authorization_log
from clustor.snapshot.catalog import Catalog, read_chunk, read_manifest
from clustor.snapshot.chunks import check_digest
from clustor.snapshot.errors import CorruptSnapshot, SnapshotFileMissing
from clustor.snapshot.layout import AUTHORIZATION_LOG, chunk_file, manifest_file
from clustor.snapshot.manifest import SnapshotChunk

# One round fewer than fit into seven days, as for segments.
_ROUNDS_PER_COVERAGE: Final = COVERAGE_MS // ROUND_MS - 1


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One file of the snapshots, and what it must be."""

    file: FileName
    partition: PartitionId
    record: SnapshotAuthorizationRecord | None = None  # of a manifest
    chunk: SnapshotChunk | None = None


def pieces_of(catalog: Catalog) -> list[SnapshotFile]:
    """Name the files that a start stands on: the newest snapshot's, and its chain's."""
    newest = catalog.newest
    if newest is None:
        return []
    partition = catalog.partition
    found = {AUTHORIZATION_LOG: SnapshotFile(AUTHORIZATION_LOG, partition)}
    for each in catalog.chain(newest):
        record = each.record
        file = manifest_file(record.base_term, record.base_index, record.generation)
        found[file] = SnapshotFile(file, partition, record=record)
        for chunk in each.manifest.chunks:
            file = chunk_file(chunk.chunk_id)
            found[file] = SnapshotFile(file, partition, chunk=chunk)
    return list(found.values())


def read_piece(storage: Storage, piece: SnapshotFile) -> CorruptSnapshot | None:
    """Check one file; return what is wrong with it."""
    try:
        if piece.chunk is not None:
            check_digest(piece.chunk, read_chunk(storage, piece.chunk))
        elif piece.record is not None:
            read_manifest(storage, piece.record)
        elif not read_authorization_log(storage, piece.partition).file_exists:
            raise SnapshotFileMissing("the authorisation log is gone", file=piece.file)
    except CorruptSnapshot as problem:
        return problem
    return None


class SnapshotScrub:
    """Decides which pieces to read when. A piece that was never read here counts as read when it
    is first seen: whoever wrote it, or started from it, has read it back then."""

    def __init__(self) -> None:
        self._read_ms: dict[FileName, int] = {}

    def take_round(self, now_ms: int, pieces: Iterable[SnapshotFile]) -> list[SnapshotFile]:
        """Return the part that one round reads: what was not read for longest."""
        known = self._know(now_ms, pieces)
        count = -(-len(known) // _ROUNDS_PER_COVERAGE)
        return sorted(known, key=lambda each: self._read_ms[each.file])[:count]

    def take_all(self, now_ms: int, pieces: Iterable[SnapshotFile]) -> list[SnapshotFile]:
        """Return everything, to be read now: somebody asks."""
        return self._know(now_ms, pieces)

    def _know(self, now_ms: int, pieces: Iterable[SnapshotFile]) -> list[SnapshotFile]:
        known = list(pieces)
        self._read_ms = {each.file: self._read_ms.get(each.file, now_ms) for each in known}
        return known

    def on_read(self, piece: SnapshotFile, now_ms: int) -> None:
        if piece.file in self._read_ms:
            self._read_ms[piece.file] = now_ms

    def coverage_age_days(self, now_ms: int) -> float:
        """The age of the oldest reading that any piece relies on."""
        return (now_ms - min(self._read_ms.values(), default=now_ms)) / DAY_MS
