"""The cluster's own groups out of an archive: the control plane, and the key-value stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from clustor.control import ControlMachine
from clustor.control.calls import decode_call, is_call
from clustor.kv import KvMachine, decode_command
from clustor.log.keys import KeyRing
from clustor.log.types import Entry, EntryKind, PartitionId
from clustor.replica import decode_batch
from clustor.runtime.control.records import new_machine
from clustor.runtime.kv.service import kv_store
from quantum.archive import ArchiveMissing, Listing, Objects, PrgId, archived_prgs, read_listing
from quantum.archive.backups import BackupPoint
from quantum.node.archived_log import GroupHistory, LogPlace, Pace, PointInTime

CONTROL: Final = PrgId("control", 0)
KV: Final = "kv"

Machine = TypeVar("Machine", ControlMachine, KvMachine)


@dataclass(frozen=True, slots=True)
class ArchivedGroup(Generic[Machine]):
    """What one of the cluster's own groups knew behind one entry."""

    prg: PrgId
    machine: Machine
    index: int
    term: int
    digest: str

    @property
    def point(self) -> BackupPoint:
        """Say where it stood, for a backup."""
        return BackupPoint(str(self.prg), self.index, self.digest)


def archived_groups(groups: Objects) -> list[PrgId]:
    """List the cluster's own groups that an archive has; none in those of earlier releases."""
    return [each for each in archived_prgs(groups) if each == CONTROL or each.tenant == KV]


def replay_control(
    groups: Objects, keys: KeyRing, point: PointInTime, pace: Pace = lambda _: None
) -> ArchivedGroup[ControlMachine]:
    """Bring the control plane back as it stood; raises as `replay_archive` does."""
    return _replay(
        _history(groups, CONTROL, keys, point, pace),
        lambda listing: new_machine(listing.cluster),
        lambda machine: machine.kv.now_ms,
    )


def replay_kv(
    groups: Objects, prg: PrgId, keys: KeyRing, point: PointInTime, pace: Pace = lambda _: None
) -> ArchivedGroup[KvMachine]:
    """Bring a key-value store back as it stood; raises as `replay_archive` does."""
    return _replay(
        _history(groups, prg, keys, point, pace),
        lambda listing: KvMachine(kv_store(listing.cluster, PartitionId(prg.number))),
        lambda machine: machine.now_ms,
    )


def replay_group(
    groups: Objects, prg: PrgId, keys: KeyRing, point: PointInTime, pace: Pace = lambda _: None
) -> BackupPoint:
    """Bring any of them back, and say where it stood."""
    if prg == CONTROL:
        return replay_control(groups, keys, point, pace).point
    return replay_kv(groups, prg, keys, point, pace).point


def _history(
    groups: Objects, prg: PrgId, keys: KeyRing, point: PointInTime, pace: Pace
) -> GroupHistory:
    listing = read_listing(groups, prg, keys)
    if listing.seq < 0:
        raise ArchiveMissing("the archive has nothing of it", group=str(prg))
    return GroupHistory(
        groups, listing, keys, point, pace, stamps=group_stamps, believes_times=False
    )


def _replay(
    history: GroupHistory,
    made: Callable[[Listing], Machine],
    newest_ms: Callable[[Machine], int],
) -> ArchivedGroup[Machine]:
    """Begin with the newest snapshot that has seen nothing later than the moment."""
    time_ms = history.point.time_ms
    for row in history.snapshots():
        machine = made(history.listing)
        base: LogPlace = history.restore(machine, row)
        if time_ms is None or row is None or newest_ms(machine) <= time_ms:
            found = history.apply(machine, base)
            digest = machine.digest().hex()
            return ArchivedGroup(history.listing.prg, machine, found.index, found.term, digest)
    raise ArchiveMissing(
        "the archive begins after that place",
        group=str(history.listing.prg),
        first=history.listing.first,
    )


def group_stamps(entry: Entry) -> Iterator[int]:
    """Say when calls and key-value commands were stamped."""
    if entry.kind is not EntryKind.DATA:
        return
    batch: Iterable[bytes] = decode_batch(entry.payload)
    for command in batch:
        try:
            found = decode_call(command) if is_call(command) else decode_command(command)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        yield getattr(found, "now_ms", 0)
