"""The entries that arrive while a snapshot is imported: counted against three limits.

The counting is here, the entries are with the driver; it may spill them to disk. The effective
limit is the lower of the partition's own and what is left of the node's (clustor §9.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from clustor.snapshot.errors import SnapshotImportNodePressure

NODE_BUFFER_BYTES_MAX: Final = 32 * 2**30


def node_buffer_bytes(ram_bytes: int) -> int:
    """Return `snapshot.import_node_buffer_hard_cap_bytes_profile`: min(32 GiB, 15 % of RAM)."""
    return min(NODE_BUFFER_BYTES_MAX, ram_bytes * 15 // 100)


class BufferLimit(StrEnum):
    PARTITION_ENTRIES = "PartitionEntries"
    PARTITION_BYTES = "PartitionBytes"
    NODE_BYTES = "NodeBytes"


@dataclass(frozen=True, slots=True)
class Buffered:
    """The entries count; the driver keeps them."""

    backlog_entries: int
    backlog_bytes: int


@dataclass(frozen=True, slots=True)
class ImportThrottle:
    """The entries were refused: `ThrottleEnvelope{reason=SnapshotImport}`; nothing was counted."""

    limit: BufferLimit
    limit_value: int
    backlog_entries: int
    backlog_bytes: int
    reason: str = "SnapshotImport"


BufferOutcome: TypeAlias = Buffered | ImportThrottle


@dataclass(slots=True)
class NodeBudget:
    """Bytes that all imports of a node hold together. `used_bytes` never exceeds the cap."""

    cap_bytes: int
    used_bytes: int = 0

    @property
    def room_bytes(self) -> int:
        return self.cap_bytes - self.used_bytes


class ImportBuffer:
    """The account of one partition's import; `release` returns its share of the node's budget."""

    def __init__(
        self, node: NodeBudget, *, entries_max: int = 8192, bytes_max: int = 8 * 2**30
    ) -> None:
        if node.room_bytes <= 0:
            raise SnapshotImportNodePressure(
                "the node's import budget is spent", cap_bytes=node.cap_bytes
            )
        self.entries = 0
        self.bytes = 0
        self._node = node
        self._entries_max = entries_max
        self._bytes_max = bytes_max

    def admit(self, entries: int, entry_bytes: int) -> BufferOutcome:
        """Count one AppendEntries, all of it or none."""
        assert entries >= 0 and entry_bytes >= 0, (entries, entry_bytes)
        if self.entries + entries > self._entries_max:
            return self._refuse(BufferLimit.PARTITION_ENTRIES, self._entries_max)
        if self.bytes + entry_bytes > self._bytes_max:
            return self._refuse(BufferLimit.PARTITION_BYTES, self._bytes_max)
        if entry_bytes > self._node.room_bytes:
            return self._refuse(BufferLimit.NODE_BYTES, self._node.cap_bytes)
        self.entries += entries
        self.bytes += entry_bytes
        self._node.used_bytes += entry_bytes
        return Buffered(self.entries, self.bytes)

    def release(self) -> None:
        """Give everything back: the entries were applied, or the import was given up."""
        self._node.used_bytes -= self.bytes
        self.entries = self.bytes = 0

    def _refuse(self, limit: BufferLimit, value: int) -> ImportThrottle:
        return ImportThrottle(limit, value, self.entries, self.bytes)
