"""Which fates an un-synced file can meet: all of them in order, or one drawn by chance."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random

from clustor.sim.disk.content import SECTOR_BYTES, FileFate, SectorFate, SimFile

TORN_IN_A_HUNDRED = 15


def fraction_kept(rng: Random) -> float:
    """Draw how much of the un-synced work survives: all and nothing are likely on purpose."""
    return rng.choice((0.0, 0.1, 0.5, 0.5, 0.9, 1.0))


def file_fates(file: SimFile) -> Iterator[FileFate]:
    """Yield every fate: each length with each whole version per sector, and with one torn."""
    for size_version in range(len(file.size_versions())):
        numbers: list[int] = []
        wholes: list[list[SectorFate]] = []
        torn: list[list[SectorFate]] = []
        for number, versions in file.sector_versions(size_version):
            numbers.append(number)
            wholes.append([SectorFate(at, at) for at in range(len(versions))])
            torn.append(list(_torn_fates(versions)))
        for fates in product(*wholes):
            yield FileFate(size_version, dict(zip(numbers, fates, strict=True)))
        for at in range(len(numbers)):
            for fates in product(*wholes[:at], torn[at], *wholes[at + 1 :]):
                yield FileFate(size_version, dict(zip(numbers, fates, strict=True)))


def count_file_fates(file: SimFile, limit: int) -> int:
    """Count what `file_fates` yields, and stop counting once that exceeds `limit`."""
    total = 0
    for size_version in range(len(file.size_versions())):
        whole, with_one_torn = 1, 0
        for _, versions in file.sector_versions(size_version):
            torn = sum(1 for _ in _torn_fates(versions))
            with_one_torn = with_one_torn * len(versions) + whole * torn
            whole *= len(versions)
            if whole > limit:
                return whole
        total += whole + with_one_torn
        if total > limit:
            return total
    return total


def newest_fate(file: SimFile) -> FileFate:
    """Return the fate in which every write survives."""
    size_version = len(file.size_versions()) - 1
    sectors = {
        number: SectorFate(len(versions) - 1, len(versions) - 1)
        for number, versions in file.sector_versions(size_version)
    }
    return FileFate(size_version, sectors)


def draw_file_fate(file: SimFile, rng: Random, kept_fraction: float) -> FileFate:
    """Draw a length, then for each sector a version or a mix of two."""
    size_version = _draw_version(len(file.size_versions()), rng, kept_fraction)
    sectors = {
        number: _draw_sector(len(versions), rng, kept_fraction)
        for number, versions in file.sector_versions(size_version)
    }
    return FileFate(size_version, sectors)


def _draw_version(count: int, rng: Random, kept_fraction: float) -> int:
    if rng.random() < kept_fraction:
        return count - 1
    return rng.randrange(count - 1) if count > 1 else 0


def _draw_sector(count: int, rng: Random, kept_fraction: float) -> SectorFate:
    head = _draw_version(count, rng, kept_fraction)
    if count == 1 or rng.randrange(100) >= TORN_IN_A_HUNDRED:
        return SectorFate(head, head)
    return SectorFate(head, rng.randrange(count), rng.randrange(1, SECTOR_BYTES))


def _torn_fates(versions: list[bytes]) -> Iterator[SectorFate]:
    """Tear between neighbouring versions, both ways, where the cut falls among changed bytes."""
    for old in range(len(versions) - 1):
        for cut in _cuts(versions[old], versions[old + 1]):
            yield SectorFate(old + 1, old, cut)
            yield SectorFate(old, old + 1, cut)


def _cuts(old: bytes, new: bytes) -> list[int]:
    """Cut after the first changed byte and in the middle of the changed range."""
    difference = int.from_bytes(old, "big") ^ int.from_bytes(new, "big")
    first = SECTOR_BYTES - (difference.bit_length() + 7) // 8
    last = SECTOR_BYTES - 1 - ((difference & -difference).bit_length() - 1) // 8
    if first >= last:
        return []
    return sorted({first + 1, (first + last + 1) // 2})
