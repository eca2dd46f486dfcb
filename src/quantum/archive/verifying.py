"""Is the archive what it says? Every record, every object, every entry read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from blake3 import blake3

from clustor.log.errors import CorruptLog, KeyUnavailable, LogError
from clustor.log.keys import KeyRing
from clustor.log.types import PartitionId
from clustor.snapshot.errors import SnapshotFailure
from quantum.archive.chain import read_record
from quantum.archive.errors import ArchiveDamaged, ArchiveFormatUnknown, ArchiveMissing
from quantum.archive.listing import Listing, follow
from quantum.archive.names import folder, record_name, record_of
from quantum.archive.objects import Objects
from quantum.archive.records import GapRow, SegmentRow, SnapshotRow, check_mac
from quantum.archive.segments import read_row
from quantum.archive.snapshots import read_snapshot
from quantum.archive.types import PrgId

_READ_BYTES: Final = 8 << 20


class ArchiveFindingKind(StrEnum):
    MISSING = "missing"
    ALTERED = "altered"
    WRONG_KEY = "wrong key"
    UNKNOWN_FORMAT = "unknown format"
    UNLISTED = "unlisted"  # an interrupted archiver leaves these; they harm nobody
    GAP = "gap"  # written down when no replica had the entries any more


HARMLESS: Final = frozenset({ArchiveFindingKind.UNLISTED, ArchiveFindingKind.GAP})


@dataclass(frozen=True, slots=True)
class ArchiveFinding:
    """Something about an archive; `index` is the first entry that it touches."""

    prg: PrgId
    kind: ArchiveFindingKind
    object: str
    index: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What one partition's archive holds, and what is wrong with it."""

    listing: Listing
    entries: int
    findings: tuple[ArchiveFinding, ...]

    @property
    def sound(self) -> bool:
        return all(finding.kind in HARMLESS for finding in self.findings)


def verify_prg(
    objects: Objects,
    prg: PrgId,
    keys: KeyRing | None,
    progress: Callable[[int], None] = lambda _: None,
) -> Verified:
    """Read everything again; without keys nothing is decrypted and no MAC is checked.

    `progress` is told the bytes of every object. Raises ArchiveUnreachable only.
    """
    return _Verifying(objects, prg, keys, progress).run()


class _Verifying:
    def __init__(
        self,
        objects: Objects,
        prg: PrgId,
        keys: KeyRing | None,
        progress: Callable[[int], None],
    ) -> None:
        self._objects = objects
        self._prg = prg
        self._keys = keys
        self._progress = progress
        self._findings: list[ArchiveFinding] = []
        self._entries = 0

    def run(self) -> Verified:
        names = self._objects.names(folder(self._prg))
        listing = self._chain(names)
        whole = not self._findings  # behind a break nobody knows what was listed
        for row in listing.rows:
            if isinstance(row, GapRow):
                self._find(
                    ArchiveFindingKind.GAP, "", row.first, f"through {row.last}: {row.reason}"
                )
            else:
                self._object(listing, row)
        listed = {row.object for row in listing.rows if not isinstance(row, GapRow)}
        for name in names if whole else ():
            if name not in listed and record_of(name) is None:
                self._find(ArchiveFindingKind.UNLISTED, name, None, "no record lists it")
        return Verified(listing, self._entries, tuple(self._findings))

    def _find(self, kind: ArchiveFindingKind, name: str, index: int | None, detail: str) -> None:
        self._findings.append(ArchiveFinding(self._prg, kind, name, index, detail))

    def _chain(self, names: list[str]) -> Listing:
        """Follow the chain from its first record, and stop where it breaks."""
        listing = Listing(self._prg)
        seqs = [found[1] for found in map(record_of, names) if found is not None]
        for seq in range(max(seqs, default=-1) + 1):
            name = record_name(self._prg, seq)
            try:
                record, digest = read_record(self._objects, self._prg, seq)
                if self._keys is not None:
                    check_mac(record, self._keys)
                listing = follow(listing, record, digest)
            except ArchiveMissing as error:
                self._find(ArchiveFindingKind.MISSING, name, listing.last + 1, error.reason)
                break
            except ArchiveFormatUnknown as error:
                self._find(ArchiveFindingKind.UNKNOWN_FORMAT, name, listing.last + 1, str(error))
                break
            except (ArchiveDamaged, KeyUnavailable) as error:
                self._blame(name, listing.last + 1, error)
                break
        return listing

    def _object(self, listing: Listing, row: SegmentRow | SnapshotRow) -> None:
        index = row.first if isinstance(row, SegmentRow) else row.base_index
        try:
            if self._digest(row.object) != row.blake3:
                self._find(ArchiveFindingKind.ALTERED, row.object, index, "its digest differs")
                return
            self._decrypt(listing, row)
        except ArchiveMissing as error:
            self._find(ArchiveFindingKind.MISSING, row.object, index, error.reason)
        except (ArchiveDamaged, LogError, SnapshotFailure) as error:
            self._blame(row.object, index, error)

    def _blame(self, name: str, index: int, error: Exception) -> None:
        kind = (
            ArchiveFindingKind.WRONG_KEY
            if isinstance(error, KeyUnavailable)
            else ArchiveFindingKind.ALTERED
        )
        self._find(kind, name, index, str(error))

    def _digest(self, name: str) -> str:
        digest = blake3()
        offset = 0
        while piece := self._objects.read(name, offset, _READ_BYTES):
            digest.update(piece)
            offset += len(piece)
            self._progress(len(piece))
        if not offset:
            raise ArchiveMissing("an object is empty", object=name)
        return digest.hexdigest()

    def _decrypt(self, listing: Listing, row: SegmentRow | SnapshotRow) -> None:
        if self._keys is None:
            return
        if isinstance(row, SegmentRow):
            self._entries += sum(1 for _ in self._checked_entries(row, self._keys))
        else:
            partition = PartitionId(listing.partition)
            for _ in read_snapshot(self._objects, row.object, self._keys, partition):
                pass

    def _checked_entries(self, row: SegmentRow, keys: KeyRing) -> Iterator[int]:
        """Read all entries that a row stands for, and compare the terms that it names."""
        term = row.first_term
        for entry in read_row(self._objects, row, keys, row.first, row.last):
            first_differs = entry.index == row.first and entry.term != row.first_term
            last_differs = entry.index == row.last and entry.term != row.last_term
            if entry.term < term or first_differs or last_differs:
                raise CorruptLog("an entry of another term", index=entry.index, term=entry.term)
            term = entry.term
            yield entry.index
