"""Disk work as data: a plan is an ordered list of steps, and nobody here carries one out.

`clustor.runtime.disk` executes a plan on real files, `clustor.sim.disk` on a simulated disk
that can lose power between any two steps. What each step promises is therefore written here,
once, and both keep to it:

- Steps run in order; a step that fails ends the plan, and the rest is not run.
- `WriteFile` promises nothing about durability: after a crash any subset of its sectors may be on
  disk, and one sector may hold any mix of its old and new bytes.
- `Sync` returns when every byte and the length that earlier steps gave this file are durable.
- `SyncFiles` promises for each of its files what `Sync` promises for one, in no order: a crash
  before it returns may have kept any of them.
- `Create`, `Rename` and `DeleteFile` change the directory; a crash may forget any of them until
  `SyncDirectory` of the containing directory returns. `Rename` is atomic.
- A failed `Sync` or `SyncFiles` is never tried again: the kernel may have dropped the dirty pages
  and would report success over lost bytes. The owner of the files fences them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, Protocol, TypeAlias

FileName = NewType("FileName", str)
"""A path below the partition's directory, with `/` between its parts."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make an empty file that must not exist yet and will grow to `reserve_bytes`.

    A disk reserves room for it ahead of its writes, in steps of its choice. The file's length
    stays 0: reservation is room, not zeros.
    """

    file: FileName
    reserve_bytes: int = 0


@dataclass(slots=True)
class WriteFile:
    """Write `data` at `offset`; the file grows when that is past its end."""

    file: FileName
    offset: int
    data: bytes


@dataclass(slots=True)
class Sync:
    """Make the file's bytes and length durable (fdatasync)."""

    file: FileName


@dataclass(frozen=True, slots=True)
class SyncFiles:
    """Make the bytes and lengths of many files durable, at less cost than one by one.

    It promises nothing of files that it does not name, however a disk goes about it.
    """

    files: tuple[FileName, ...]


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """Make the directory's entries durable. `directory` is relative, `""` is the partition's."""

    directory: str


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Make a directory, and those above it, where they are missing."""

    directory: str


@dataclass(frozen=True, slots=True)
class Rename:
    """Put `source` in the place of `target`, atomically; `target` may exist."""

    source: FileName
    target: FileName


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut or extend the file to `size_bytes`; an extension reads as zeros."""

    file: FileName
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """Remove the file; one that is not there is no error, so that a plan can be run again."""

    file: FileName


Step: TypeAlias = (
    Create
    | WriteFile
    | Sync
    | SyncFiles
    | SyncDirectory
    | MakeDirectory
    | Rename
    | Truncate
    | DeleteFile
)
Plan: TypeAlias = tuple[Step, ...]


class Storage(Protocol):
    """Reading, for recovery, scrub and tools. A missing file raises FileNotFoundError."""

    def names(self, directory: str) -> Sequence[str]:
        """List the names directly below `directory`, sorted; a missing directory is empty."""

    def size(self, file: FileName) -> int:
        """Return the file's length in bytes."""

    def read(self, file: FileName, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""


def plan_replace(file: FileName, data: bytes) -> Plan:
    """Plan the atomic replacement of a whole file: old or new after a crash, never a mixture."""
    temporary = FileName(file + ".tmp")
    return (
        DeleteFile(temporary),
        Create(temporary),
        WriteFile(temporary, 0, data),
        Sync(temporary),
        Rename(temporary, file),
        SyncDirectory(directory_of(file)),
    )


def directory_of(file: FileName) -> str:
    """Name the directory that holds `file`; `""` is the partition's own."""
    return file.rpartition("/")[0]
