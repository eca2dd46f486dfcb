"""Open files, at most so many at a time: the least recently used clean one is closed first."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

NO_SLOT = -1
_LOOKS_MAX = 64
UNKNOWN = -1

FileKey: TypeAlias = tuple[int, str]
"""A partition's number and the name of a file in it."""


@dataclass(slots=True)
class OpenFile:
    """A descriptor and what we know of the file behind it."""

    descriptor: int
    dirty: bool
    """Whether bytes may lie in the page cache that no sync has covered.

    A file that was there before us counts as dirty until its first whole sync: whoever wrote it
    last may have died before syncing. A dirty file stays open, since the kernel reports a failed
    writeback surely only to a descriptor that was open when it happened.
    """
    length: int = 0
    """While it is not dirty: its length. A write that begins behind it leaves a gap to fill."""
    reach: int = UNKNOWN
    """Its length with all that was written to it; UNKNOWN where others may have changed it."""
    reserved: int = 0
    """Up to here the disk holds room for it, as far as we reserved it."""
    reserve_to: int = 0
    """So far room is reserved ahead of its writes, step by step; 0: it is not."""
    slot: int = NO_SLOT
    """Its place in the ring's table of registered files."""

    def on_synced(self) -> None:
        """Note that a sync has covered the whole file."""
        if self.reach == UNKNOWN:
            self.reach = os.fstat(self.descriptor).st_size
        self.length = self.reach
        self.dirty = False

    def on_range_synced(self, end: int) -> None:
        """Note that the one write since then, which ended at `end`, was synced with it."""
        self.length = max(self.length, end)
        self.dirty = False


class FileTable:
    """The open files of all partitions on one disk."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._files: OrderedDict[FileKey, OpenFile] = OrderedDict()
        self.before_close: Callable[[OpenFile], None] = lambda _: None
        self.close_descriptor: Callable[[int], None] = os.close
        """To close a large file that was deleted frees all its blocks, and takes that long."""

    def __len__(self) -> int:
        return len(self._files)

    def get(self, key: FileKey) -> OpenFile | None:
        """Return the open file and count it as used now."""
        file = self._files.get(key)
        if file is not None:
            self._files.move_to_end(key)
        return file

    def add(self, key: FileKey, file: OpenFile) -> None:
        """Keep an open file; close clean ones beyond the limit."""
        self.discard(key)
        self._files[key] = file
        # Only so many are looked at: where thousands are dirty, each would look at all of them.
        for _ in range(min(_LOOKS_MAX, len(self._files) - 1)):
            if len(self._files) <= self._limit:
                break
            oldest = next(iter(self._files))
            if oldest == key or self._files[oldest].dirty:
                self._files.move_to_end(oldest)
            else:
                self.discard(oldest)

    def move(self, source: FileKey, target: FileKey) -> None:
        """Follow a rename."""
        self.discard(target)
        file = self._files.pop(source, None)
        if file is not None:
            self._files[target] = file

    def discard(self, key: FileKey) -> None:
        """Close the file, if it is open."""
        file = self._files.pop(key, None)
        if file is not None:
            self.before_close(file)
            self.close_descriptor(file.descriptor)

    def discard_partition(self, number: int) -> None:
        """Close all files of one partition."""
        for key in [key for key in self._files if key[0] == number]:
            self.discard(key)
