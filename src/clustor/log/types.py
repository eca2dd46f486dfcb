"""The words of the log: identifiers, entries, modes and states."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NewType

from clustor.wire import (
    DurabilityMode,
    DurabilityModeEpoch,
    IoWriterMode,
    LogIndex,
    PartitionId,
    SegmentSeq,
    Term,
)

__all__ = [
    "BlockCounter",
    "DekEpoch",
    "DurabilityMode",
    "DurabilityModeEpoch",
    "Entry",
    "EntryKind",
    "IoWriterMode",
    "LogId",
    "LogIndex",
    "LogState",
    "MacEpoch",
    "PartitionId",
    "SegmentSeq",
    "Term",
]

BlockCounter = NewType("BlockCounter", int)  # u64, starts at 0 in every segment
DekEpoch = NewType("DekEpoch", int)  # u32
MacEpoch = NewType("MacEpoch", int)  # u32, clustor's `integrity_mac_epoch`
LogId = NewType("LogId", bytes)  # 16 random bytes drawn when a log is created


class EntryKind(IntEnum):
    """What an entry is; it stands in the frame's `codec` byte. 0x01–0x05 are clustor §8.2."""

    DATA = 0x00
    MEMBERSHIP_CHANGE = 0x01
    MEMBERSHIP_ROLLBACK = 0x02
    DURABILITY_TRANSITION = 0x03
    FENCE_COMMIT = 0x04
    DEFINE_ACTIVATE = 0x05
    NO_OP = 0x10  # what a new leader commits to close the terms before its own


class LogState(StrEnum):
    """What the log may do (clustor §9.4)."""

    HEALTHY = "Healthy"
    NEEDS_REPAIR = "NeedsRepair"  # damaged bytes that no key had to vouch for; read-only
    QUARANTINED = "Quarantine"  # authentication failed, or the disk refused a sync; read-only


@dataclass(slots=True)
class Entry:
    """One entry of a Raft log. `index` of consecutive entries is consecutive."""

    term: Term
    index: LogIndex
    payload: bytes
    kind: EntryKind = EntryKind.DATA
