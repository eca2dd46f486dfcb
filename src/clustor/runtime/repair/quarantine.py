"""Which of this node's replicas are in quarantine: one small file each, beside the data.

`quarantine/<group>.json` is durable before a repair begins and goes when it is over, so that a
node that dies in between goes on where it was, and a log that failed authentication once is not
believed because it happens to read well at the next start (clustor §9.4).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from clustor.log.steps import Storage
from clustor.log.types import PartitionId
from clustor.replica import RepairPhase, ReplicaDamaged, read_hard_state
from clustor.runtime.data_directory import sync_directory, write_durably
from clustor.runtime.group import QuarantineView

QUARANTINE_DIRECTORY: Final = "quarantine"
DETAIL_CHARACTERS_MAX: Final = 500

journal = logging.getLogger("clustor.node")


class QuarantineRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One quarantine, as it outlives the process."""

    partition_id: int
    cause: str  # Integrity, Administrative or ApplyFault (clustor §11.2)
    detail: str
    since_ms: int  # on the wall clock
    phase: RepairPhase = RepairPhase.QUARANTINED

    def view(self) -> QuarantineView:
        return QuarantineView(str(self.phase), self.cause, self.detail, self.since_ms)


class QuarantineRecords:
    """The records of one node. Few, or none: they are held in memory and written through."""

    def __init__(self, root: Path) -> None:
        self._directory = root / QUARANTINE_DIRECTORY
        self._records = {record.partition_id: record for record in self._read()}
        self._damaged: dict[PartitionId, None] = {}

    def note_damage(self, partition: PartitionId) -> None:
        """Take note that a replica has stopped because its bytes are not believed."""
        self._damaged[partition] = None

    def take_damaged(self) -> list[PartitionId]:
        damaged, self._damaged = self._damaged, {}
        return list(damaged)

    def _read(self) -> list[QuarantineRecord]:
        if not self._directory.is_dir():
            return []
        return [_record(path) for path in sorted(self._directory.glob("*.json"))]

    def find(self, partition: PartitionId) -> QuarantineRecord | None:
        return self._records.get(int(partition))

    def view(self, partition: PartitionId) -> QuarantineView | None:
        """Return what people are told of a group's quarantine; None: it is in none."""
        record = self.find(partition)
        return None if record is None else record.view()

    def partitions(self) -> list[PartitionId]:
        return [PartitionId(number) for number in sorted(self._records)]

    def held(self, storage: Storage, partition: PartitionId) -> str | None:
        """Say why a start must not open a group; None: it may.

        From the moment on at which its hard state says that it rejoins, what is on its disk is
        the new log: the old one is set aside, or the rejoin did not get that far and `open`
        refuses what it finds.
        """
        record = self.find(partition)
        if record is None or record.phase is not RepairPhase.QUARANTINED:
            return None
        try:
            hard = read_hard_state(storage)
        except ReplicaDamaged:
            hard = None
        return None if hard is not None and hard.rejoining else record.detail

    def write(self, record: QuarantineRecord) -> QuarantineRecord:
        """Make a record durable: the repair may do now what it says."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        sync_directory(self._directory.parent)
        write_durably(self._path(record.partition_id), msgspec.json.encode(record) + b"\n")
        self._records[record.partition_id] = record
        return record

    def forget(self, partition: PartitionId) -> None:
        """Remove the record of a quarantine that is over."""
        if self._records.pop(int(partition), None) is not None:
            self._path(int(partition)).unlink(missing_ok=True)
            sync_directory(self._directory)

    def _path(self, partition: int) -> Path:
        return self._directory / f"{partition}.json"


def _record(path: Path) -> QuarantineRecord:
    """Read a record; one that cannot be read still holds its group."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=QuarantineRecord)
        if path.stem == str(found.partition_id):
            return found
    except msgspec.MsgspecError:
        pass
    number = int(path.stem) if path.stem.isdecimal() else 0
    journal.warning("quarantine of group %d: its record cannot be read, and holds", number)
    return QuarantineRecord(number, "Integrity", "its quarantine's record cannot be read", 0)
