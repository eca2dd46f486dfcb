"""Backups, taken and verified out of the store alone: for a node's schedule and for people.

What a backup says is what the archived log gives when it is applied again, so one that exists was
restored once, in memory, one group after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import UNSET

from clustor.log.keys import KeyRing
from quantum.archive import PrgId
from quantum.archive.backups import Backup, BackupPoint, write_backup
from quantum.archive.roots import ArchiveRoots
from quantum.node.archived_groups import archived_groups, replay_group
from quantum.node.archived_log import Pace, PointInTime
from quantum.node.archived_state import replay_archive
from quantum.node.archived_tenant import cut_of
from quantum.node.restoring import wanted_prgs

KeysOf = Callable[[PrgId], KeyRing]


@dataclass(frozen=True, slots=True)
class TakenBackup:
    """A backup, and what is not in it."""

    backup: Backup
    keys: KeyRing
    """Those of the first partition, which vouch for it."""
    without_streams: tuple[str, ...]
    """Partitions whose streams hold records that are in no archived entry: a restore refuses."""


def take_backup(
    roots: ArchiveRoots, keys_of: KeysOf, made_ms: int, pace: Pace = lambda _: None
) -> TakenBackup:
    """Apply every group's archived log again, and say what came out; nothing is written.

    Raises ArchiveError, LogError and SnapshotFailure.
    """
    points: list[BackupPoint] = []
    without: list[str] = []
    prgs = wanted_prgs(roots.tenants, ())
    for tenant in dict.fromkeys(prg.tenant for prg in prgs):
        own = [prg for prg in prgs if prg.tenant == tenant]
        cut = cut_of(roots.tenants, keys_of, own, lambda _: PointInTime(), pace)
        points += cut.points
        without += cut.without_streams
    groups = tuple(
        replay_group(roots.groups, prg, keys_of(prg), PointInTime(), pace)
        for prg in archived_groups(roots.groups)
    )
    keys = keys_of(prgs[0])
    backup = Backup(made_ms, tuple(points), int(keys.mac_epoch), groups=groups or UNSET)
    return TakenBackup(backup, keys, tuple(without))


def keep_backup(roots: ArchiveRoots, taken: TakenBackup) -> None:
    """Write a backup down, sealed."""
    write_backup(roots.tenants, taken.backup, taken.keys)


def differing(
    roots: ArchiveRoots, keys_of: KeysOf, backup: Backup, pace: Pace = lambda _: None
) -> list[str]:
    """Read back all that a backup needs, apply it again, and say what is not as it says.

    Raises ArchiveError, LogError and SnapshotFailure.
    """
    wrong = []
    for point in backup.points:
        prg = PrgId.parse(point.prg)
        place = PointInTime(index=point.index)
        state = replay_archive(roots.tenants, prg, keys_of(prg), place, pace)
        if state.digest != point.digest:
            wrong.append(f"{point.prg}: another state behind entry {point.index}")
    for point in backup.group_points:
        prg = PrgId.parse(point.prg)
        place = PointInTime(index=point.index)
        if replay_group(roots.groups, prg, keys_of(prg), place, pace) != point:
            wrong.append(f"{point.prg}: another state behind entry {point.index}")
    return wrong
