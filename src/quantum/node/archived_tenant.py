"""Where all partitions of a tenant stand at one place, out of an archive (`consistent_cut`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from clustor.log.keys import KeyRing
from quantum.archive import Objects, PrgId
from quantum.archive.backups import BackupPoint
from quantum.node.archived_log import Pace, PointInTime
from quantum.node.archived_state import (
    ArchivedState,
    lacks_streams,
    replay_archive,
    replay_further,
)
from quantum.node.consistent_cut import ChannelMarks, marks_of, settle


@dataclass(frozen=True, slots=True)
class TenantCut:
    """A place of a tenant."""

    points: tuple[BackupPoint, ...]
    without_streams: tuple[str, ...]
    """Partitions whose streams hold records that are in no archived entry."""


def cut_of(
    objects: Objects,
    keys_of: Callable[[PrgId], KeyRing],
    prgs: Iterable[PrgId],
    point_of: Callable[[PrgId], PointInTime],
    pace: Pace = lambda _: None,
) -> TenantCut:
    """Find where each of a tenant's partitions stands; one at a time is in memory.

    Raises what `replay_archive` raises; ArchiveMissing where the archive does not reach so far.
    """
    by_number = {prg.number: prg for prg in prgs}
    found: dict[int, BackupPoint] = {}
    without: set[int] = set()

    def note(state: ArchivedState) -> ChannelMarks:
        prg = state.prg
        found[prg.number] = BackupPoint(str(prg), int(state.index), state.digest)
        without.discard(prg.number)
        if state.extents and lacks_streams(objects, state, keys_of(prg), pace):
            without.add(prg.number)
        return marks_of(state.broker)

    def first(number: int) -> ChannelMarks:
        prg = by_number[number]
        return note(replay_archive(objects, prg, keys_of(prg), point_of(prg), pace))

    def further(number: int, counted: Mapping[int, int]) -> ChannelMarks:
        prg, known = by_number[number], PointInTime(index=found[number].index)
        state = replay_archive(objects, prg, keys_of(prg), known, pace)
        return note(replay_further(objects, keys_of(prg), state, counted, pace))

    settle(sorted(by_number), first, further)
    points = tuple(found[number] for number in sorted(found))
    return TenantCut(points, tuple(str(by_number[number]) for number in sorted(without)))
