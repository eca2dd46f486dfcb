"""What the log decided about the compaction of a topic's partition: how far, and since when.

A pass says two offsets. Below `through` only the last record of each key is to stay, and nothing of
what was aborted. Below `purged` the records that only say that a key is gone are to go as well, and
the markers of commits: every one of them was in an earlier pass, long enough ago. What is left is a
function of these two and of what was appended, whoever works it out and however late, and a later
pass says all that an earlier one said. So each replica rewrites its own files when it comes to it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from quantum.broker.streams.coding import decode_state, encode_state
from quantum.broker.streams.errors import SnapshotUnreadable

_NAME: Final = "quantum.streams.compaction"
_VERSION: Final = 1
PASSES_MAX: Final = 64
"""Passes whose times are remembered; without an older one its tombstones wait for the next."""
_ROW: Final = struct.Struct("<QIqq")
_ROWS_MAX: Final = 65_536


class CompactionPass(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """When the log first said that all below an offset is to be compacted."""

    through: int
    since_ms: int


class PartitionCompaction(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Where a partition stands. Part of the state; offsets never go back."""

    through: int = 0
    purged: int = 0
    passes: list[CompactionPass] = []
    """Those whose tombstones are still there, oldest first."""

    @property
    def mark(self) -> tuple[int, int]:
        return self.through, self.purged

    def take(self, through: int, purged: int, stable: int, now_ms: int) -> bool:
        """Take a pass; False, and nothing, where it goes back or further than anything allows."""
        is_sound = self.through <= through <= stable and self.purged <= purged <= self.through
        if not is_sound or (through, purged) == self.mark:
            return False
        if through > self.through:
            self.passes.append(CompactionPass(through, now_ms))
            del self.passes[:-PASSES_MAX]
        self.through, self.purged = through, purged
        self.passes = [each for each in self.passes if each.through > purged]
        return True

    def freeze(self) -> bytes:
        """Encode it; equal states give equal bytes."""
        return encode_state(_NAME, _VERSION, self)

    @classmethod
    def thaw(cls, data: bytes) -> PartitionCompaction:
        """Make it again. Raises SnapshotUnreadable."""
        found = decode_state(_NAME, _VERSION, cls, data)
        if not 0 <= found.purged <= found.through:
            raise SnapshotUnreadable("a compaction that purged more than it looked at")
        return found


def encode_passes(passes: Iterable[tuple[int, int, int, int]]) -> bytes:
    """Encode (topic number, partition, through, purged), without the head of a command."""
    return b"".join(_ROW.pack(*each) for each in passes)


def read_passes(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Walk the passes of a command; bytes that are none are no passes."""
    if len(data) % _ROW.size or len(data) > _ROWS_MAX * _ROW.size:
        return iter(())
    return _ROW.iter_unpack(data)
