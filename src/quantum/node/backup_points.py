"""Backups, taken and verified out of the store alone: for a node's schedule and for people.

What a backup says is what the archived log gives when it is applied again, so one that exists was
restored once, in memory, one partition after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clustor.log.keys import KeyRing
from quantum.archive import Objects, PrgId
from quantum.archive.backups import Backup, BackupPoint, write_backup
from quantum.node.archived_state import Pace, PointInTime, replay_archive
from quantum.node.restoring import wanted_prgs

KeysOf = Callable[[PrgId], KeyRing]


@dataclass(frozen=True, slots=True)
class TakenBackup:
    """A backup, and what is not in it."""

    backup: Backup
    keys: KeyRing
    """Those of the first partition, which vouch for it."""
    without_streams: tuple[str, ...]
    """Partitions that hold streams: archives have no copy of their files, and a restore refuses."""


def take_backup(
    objects: Objects, keys_of: KeysOf, made_ms: int, pace: Pace = lambda _: None
) -> TakenBackup:
    """Apply every partition's archived log again, and say what came out; nothing is written.

    Raises ArchiveError, LogError and SnapshotFailure.
    """
    points: list[BackupPoint] = []
    without: list[str] = []
    prgs = wanted_prgs(objects, ())
    for prg in prgs:
        state = replay_archive(objects, prg, keys_of(prg), PointInTime(), pace)
        points.append(BackupPoint(str(prg), int(state.index), state.digest))
        if any(True for _ in state.broker.stream_extents()):
            without.append(str(prg))
    keys = keys_of(prgs[0])
    return TakenBackup(Backup(made_ms, tuple(points), int(keys.mac_epoch)), keys, tuple(without))


def keep_backup(objects: Objects, taken: TakenBackup) -> None:
    """Write a backup down, sealed."""
    write_backup(objects, taken.backup, taken.keys)


def differing(
    objects: Objects, keys_of: KeysOf, backup: Backup, pace: Pace = lambda _: None
) -> list[str]:
    """Read back all that a backup needs, apply it again, and say what is not as it says.

    Raises ArchiveError, LogError and SnapshotFailure.
    """
    wrong = []
    for point in backup.points:
        prg = PrgId.parse(point.prg)
        place = PointInTime(index=point.index)
        state = replay_archive(objects, prg, keys_of(prg), place, pace)
        if state.digest != point.digest:
            wrong.append(f"{point.prg}: another state behind entry {point.index}")
    return wrong
