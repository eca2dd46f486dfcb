"""The words of the archive: partitions, ranges of their logs, pieces, snapshots."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clustor.log.types import LogIndex, PartitionId

_TEXT = re.compile(r"([^/\x00-\x1f]+)/(0|[1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True, order=True)
class PrgId:
    """One partition of a tenant; its text is `tenant/number`."""

    tenant: str
    number: int

    def __str__(self) -> str:
        return f"{self.tenant}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> PrgId:
        """Read `tenant/number`; ValueError for anything else."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"a partition is written tenant/number, not {text!r}")
        return cls(found[1], int(found[2]))


@dataclass(frozen=True, slots=True)
class IndexRange:
    """The entries from `first` through `last`, both of them too."""

    prg: PrgId
    first: int
    last: int

    def __len__(self) -> int:
        return max(0, self.last - self.first + 1)


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A stretch of a log that is cheap to read as a whole; times are None where not known.

    Where they are known, every command in it was stamped within them, both included.
    """

    first: int
    last: int
    bytes: int
    first_time_ms: int | None = None
    last_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What can be read of a log: committed and durable entries, `last < first` where none are.

    Pieces ascend and do not overlap. Where two of them do not touch, what lies between is gone.
    """

    prg: PrgId
    first: int
    last: int
    pieces: tuple[LogPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """The state of a partition after `base_index`; `name` is for the source that gave it."""

    prg: PrgId
    base_index: LogIndex
    base_term: int
    bytes: int
    name: str
    partition: PartitionId
