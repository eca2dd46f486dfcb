"""The bytes of one simulated file: what is durable, and what a crash may make of the rest.

A file is kept as 512-byte sectors. Beside the durable ones stand, for every sector written since
the last sync, all the versions it has had, in order: after a crash any of them may be found, or a
mix of two. The length is kept apart, as its own list of versions.

Cutting a file is metadata and survives as a whole: when the shorter length survives, what was
behind the cut is zeros; when it does not, nothing written behind the cut since then survives
either. A cut therefore leaves a *barrier* in the versions of each sector behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

SECTOR_BYTES = 512
PAGE_BYTES = 4096
ZERO_SECTOR = bytes(SECTOR_BYTES)

PLAIN = 0
"""The mark of a version made by a write; the zeros of the n-th cut since the sync carry n."""


@dataclass(frozen=True, slots=True)
class SectorFate:
    """Bytes before `cut` come from version `head`, the others from version `tail`.

    Version 0 is the durable one (or the zeros of the last cut that survives).
    """

    head: int
    tail: int
    cut: int = SECTOR_BYTES


@dataclass(frozen=True, slots=True)
class FileFate:
    """What a crash makes of one file: which length survives, and each un-synced sector's fate.

    A sector that is not named keeps its durable bytes.
    """

    size: int = 0
    sectors: Mapping[int, SectorFate] = field(default_factory=dict)


class SimFile:
    """One file's content. Tuples and bytes are never changed in place, so a copy is shallow."""

    __slots__ = ("cuts", "dropped", "durable", "durable_size", "pending", "sizes")

    def __init__(self) -> None:
        self.durable: dict[int, bytes] = {}
        self.durable_size = 0
        self.pending: dict[int, tuple[tuple[int, bytes], ...]] = {}
        """Versions since the last sync, oldest first: (PLAIN or number of the cut, bytes)."""
        self.sizes: tuple[tuple[int, int], ...] = ()
        """Lengths since the last sync, oldest first: (cuts until then, length)."""
        self.cuts = 0
        self.dropped: frozenset[int] = frozenset()
        """Sectors a failed sync gave up: clean for the kernel, so no later sync writes them."""

    def copy(self) -> SimFile:
        twin = SimFile.__new__(SimFile)
        twin.durable = self.durable.copy()
        twin.durable_size = self.durable_size
        twin.pending = self.pending.copy()
        twin.sizes = self.sizes
        twin.cuts = self.cuts
        twin.dropped = self.dropped
        return twin

    @property
    def size(self) -> int:
        return self.sizes[-1][1] if self.sizes else self.durable_size

    @property
    def is_synced(self) -> bool:
        return not self.pending and not self.sizes

    def sector(self, number: int) -> bytes:
        """Return a sector as a reader sees it now."""
        versions = self.pending.get(number)
        return versions[-1][1] if versions else self.durable.get(number, ZERO_SECTOR)

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        first = offset // SECTOR_BYTES
        last = (end - 1) // SECTOR_BYTES
        joined = b"".join([self.sector(number) for number in range(first, last + 1)])
        start = offset - first * SECTOR_BYTES
        return joined[start : start + end - offset]

    def write(self, offset: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            number, start = divmod(offset + at, SECTOR_BYTES)
            piece = data[at : at + SECTOR_BYTES - start]
            if len(piece) < SECTOR_BYTES:
                old = self.sector(number)
                piece = old[:start] + piece + old[start + len(piece) :]
            self._add_version(number, PLAIN, piece)
            at += SECTOR_BYTES - start
        if data and offset + len(data) > self.size:
            self._grow(offset + len(data))

    def truncate(self, size: int) -> None:
        if size < self.size:
            self._cut(size)
        else:
            self.sizes += ((self.cuts, size),)

    def sync(self) -> None:
        """Make everything durable, except what an earlier failed sync gave up."""
        kept: dict[int, tuple[tuple[int, bytes], ...]] = {}
        for number, versions in self.pending.items():
            if number in self.dropped:
                kept[number] = ((PLAIN, versions[-1][1]),)
            else:
                self.durable[number] = versions[-1][1]
        self.durable_size = self.size
        if self.cuts:
            self._forget_behind_end()
        self.pending, self.sizes, self.cuts = kept, (), 0

    def fail_sync(self, *, evict: bool) -> None:
        """Give up every un-synced sector; with `evict` readers see the old bytes at once."""
        self.dropped |= frozenset(self.pending)
        if evict:
            self.pending = {}
            self.dropped = frozenset()

    def flip_bit(self, offset: int, bit: int) -> None:
        """Flip one bit in the durable sector and in every version of it."""
        number, start = divmod(offset, SECTOR_BYTES)
        self.durable[number] = _flipped(self.durable.get(number, ZERO_SECTOR), start, bit)
        if number in self.pending:
            self.pending[number] = tuple(
                (mark, _flipped(version, start, bit)) for mark, version in self.pending[number]
            )

    def size_versions(self) -> list[int]:
        """List the lengths a crash may leave, the durable one first."""
        return [self.durable_size, *(size for _, size in self.sizes)]

    def sector_versions(self, size_version: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield each un-synced sector with the versions a crash may leave, the oldest first."""
        survived_cuts = self.sizes[size_version - 1][0] if size_version else 0
        for number, versions in self.pending.items():
            candidates = [self.durable.get(number, ZERO_SECTOR)]
            for mark, version in versions:
                if mark > survived_cuts:
                    break
                if mark != PLAIN:
                    candidates = [version]
                elif version != candidates[-1]:
                    candidates.append(version)
            yield number, candidates

    def crashed(self, fate: FileFate) -> SimFile:
        """Return the file that the next start finds, all of it durable."""
        after = SimFile()
        after.durable = self.durable.copy()
        sizes = self.size_versions()
        after.durable_size = sizes[fate.size]
        for number, candidates in self.sector_versions(fate.size):
            chosen = fate.sectors.get(number, _LOST)
            sector = candidates[chosen.head]
            if chosen.tail != chosen.head:
                sector = sector[: chosen.cut] + candidates[chosen.tail][chosen.cut :]
            after.durable[number] = sector
        if after.durable_size < max(sizes):
            after._forget_behind_end()
        return after

    def _add_version(self, number: int, mark: int, sector: bytes) -> None:
        self.pending[number] = (*self.pending.get(number, ()), (mark, sector))
        if number in self.dropped:
            self.dropped -= {number}

    def _grow(self, size: int) -> None:
        """Record the new length, and those at page ends that writeback may stop at."""
        page_end = (self.size // PAGE_BYTES + 1) * PAGE_BYTES
        steps = [*range(page_end, size, PAGE_BYTES), size]
        self.sizes += tuple((self.cuts, step) for step in steps)

    def _cut(self, size: int) -> None:
        self.cuts += 1
        self.sizes += ((self.cuts, size),)
        number, start = divmod(size, SECTOR_BYTES)
        if start:
            # The last partial sector is zeroed in the page cache: an ordinary write.
            old = self.sector(number)
            self._add_version(number, PLAIN, old[:start] + ZERO_SECTOR[start:])
            number += 1
        for behind in sorted({*self.durable, *self.pending}):
            if behind >= number:
                self._add_version(behind, self.cuts, ZERO_SECTOR)

    def _forget_behind_end(self) -> None:
        """Drop durable bytes behind the length: a later extension reads as zeros."""
        first, start = divmod(self.durable_size, SECTOR_BYTES)
        if start:
            if first in self.durable:
                self.durable[first] = self.durable[first][:start] + ZERO_SECTOR[start:]
            first += 1
        for behind in [number for number in self.durable if number >= first]:
            del self.durable[behind]


_LOST = SectorFate(0, 0)


def _flipped(sector: bytes, start: int, bit: int) -> bytes:
    changed = bytearray(sector)
    changed[start] ^= 1 << bit
    return bytes(changed)
