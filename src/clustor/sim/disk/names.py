"""The names of a simulated disk: a journal of directory operations that a crash may cut short.

Every change of a directory is an operation in one ordered journal until the directory is synced.
An operation *needs* earlier ones; a crash keeps any set that holds all its own needs:

- ordered (the default): each needs the one before it in the same directory, so that of every
  directory's operations a prefix survives;
- reordered: each needs only those that touched one of its own names.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

FileNumber: TypeAlias = int
DIRECTORY: FileNumber = -1
"""What an entry holds when it is a directory."""


@dataclass(frozen=True, slots=True)
class DirectoryOperation:
    """`path` now holds `entry` (None: nothing), and `source` (of a rename) is gone."""

    path: str
    entry: FileNumber | None
    source: str | None = None

    @property
    def directories(self) -> frozenset[str]:
        return frozenset(parent_of(path) for path in self.paths)

    @property
    def paths(self) -> frozenset[str]:
        return frozenset({self.path} if self.source is None else {self.path, self.source})

    def apply(self, entries: dict[str, FileNumber]) -> None:
        if self.source is not None:
            entries.pop(self.source, None)
        if self.entry is None:
            entries.pop(self.path, None)
        else:
            entries[self.path] = self.entry


class SimNames:
    """Durable entries, visible entries, and the journal that lies between them."""

    __slots__ = ("durable", "journal", "reorder", "visible")

    def __init__(self, *, reorder: bool) -> None:
        self.durable: dict[str, FileNumber] = {}
        self.visible: dict[str, FileNumber] = {}
        self.journal: tuple[DirectoryOperation, ...] = ()
        self.reorder = reorder

    def copy(self) -> SimNames:
        twin = SimNames.__new__(SimNames)
        twin.durable = self.durable.copy()
        twin.visible = self.visible.copy()
        twin.journal = self.journal
        twin.reorder = self.reorder
        return twin

    def file(self, path: str) -> FileNumber:
        """Return the number of the file at `path`; raise what the kernel would."""
        check_path(path)
        entry = self.visible.get(path)
        if entry is None:
            self.require_directory(parent_of(path))
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if entry == DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return entry

    def require_directory(self, directory: str) -> None:
        if directory == "":
            return
        check_path(directory)
        entry = self.visible.get(directory)
        if entry is None:
            self.require_directory(parent_of(directory))
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
        if entry != DIRECTORY:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)

    def create(self, path: str, number: FileNumber) -> None:
        check_path(path)
        self.require_directory(parent_of(path))
        if path in self.visible:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._do(DirectoryOperation(path, number))

    def make_directory(self, directory: str) -> None:
        if directory == "":
            return
        check_path(directory)
        self.make_directory(parent_of(directory))
        entry = self.visible.get(directory)
        if entry is None:
            self._do(DirectoryOperation(directory, DIRECTORY))
        elif entry != DIRECTORY:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)

    def rename(self, source: str, target: str) -> None:
        check_path(source)
        check_path(target)
        self.require_directory(parent_of(source))
        self.require_directory(parent_of(target))
        number = self.file(source)
        if self.visible.get(target) == DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
        if source != target:
            self._do(DirectoryOperation(target, number, source))

    def delete(self, path: str) -> None:
        try:
            self.file(path)
        except FileNotFoundError:
            return
        self._do(DirectoryOperation(path, None))

    def sync(self, directory: str) -> None:
        """Make the directory's operations durable, and those which they need."""
        self.require_directory(directory)
        needs = self.needs()
        wanted: set[int] = set()
        for at in reversed(range(len(self.journal))):
            if at in wanted or directory in self.journal[at].directories:
                wanted |= {at, *needs[at]}
        for at in sorted(wanted):
            self.journal[at].apply(self.durable)
        self.journal = tuple(op for at, op in enumerate(self.journal) if at not in wanted)

    def needs(self) -> list[frozenset[int]]:
        """Say for each operation of the journal which earlier ones it needs directly."""
        keys = [op.paths if self.reorder else op.directories for op in self.journal]
        return [
            frozenset(before for before in range(at) if keys[before] & keys[at])
            for at in range(len(keys))
        ]

    def survivor_sets(self) -> Iterator[frozenset[int]]:
        """Yield every set of operations that a crash may keep."""
        needs = self.needs()

        def extend(at: int, kept: frozenset[int]) -> Iterator[frozenset[int]]:
            if at == len(needs):
                yield kept
                return
            yield from extend(at + 1, kept)
            if needs[at] <= kept:
                yield from extend(at + 1, kept | {at})

        return extend(0, frozenset())

    def crashed(self, kept: frozenset[int]) -> SimNames:
        """Return the names that the next start finds, all of them durable."""
        after = SimNames(reorder=self.reorder)
        entries = self.durable.copy()
        for at in sorted(kept):
            self.journal[at].apply(entries)
        # What lies in a directory whose own name was lost is lost with it.
        for path in sorted(entries):
            parent = parent_of(path)
            if parent == "" or after.durable.get(parent) == DIRECTORY:
                after.durable[path] = entries[path]
        after.visible = after.durable.copy()
        return after

    def reachable(self) -> set[FileNumber]:
        """Return the files that some outcome of a crash can still name."""
        pending = {op.entry for op in self.journal if op.entry is not None}
        return {*self.durable.values(), *self.visible.values(), *pending}

    def _do(self, operation: DirectoryOperation) -> None:
        operation.apply(self.visible)
        self.journal += (operation,)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


def check_path(path: str) -> None:
    """Refuse a path that could lead out of the partition's directory."""
    if "\0" in path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise ValueError(f"not a path below the partition's directory: {path!r}")
