"""Reading real files, for recovery, scrub and tools."""

from __future__ import annotations

import os
from pathlib import Path

from clustor.log.steps import FileName
from clustor.runtime.disk.paths import open_file, opened_directory


class DirectoryStorage:
    """`clustor.log.steps.Storage` on the files below `root`.

    Every call opens what it reads and closes it again: nothing can go stale after a rename, and
    no more than one file is open at a time.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def again(self) -> DirectoryStorage:
        """Open the same directory once more, for another thread to close when it likes."""
        other = DirectoryStorage.__new__(DirectoryStorage)
        other._root = os.dup(self._root)
        return other

    @property
    def root(self) -> int:
        """The descriptor of the directory, for who opens files below it in another way."""
        return self._root

    def names(self, directory: str) -> list[str]:
        """List the names directly below `directory`, sorted; a missing directory is empty."""
        try:
            with opened_directory(self._root, directory) as descriptor:
                return sorted(os.listdir(descriptor))  # noqa: PTH208  # a Path takes no descriptor
        except FileNotFoundError:
            return []

    def size(self, file: FileName) -> int:
        """Return the file's length in bytes."""
        descriptor = open_file(self._root, file, os.O_RDONLY)
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def read(self, file: FileName, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""
        descriptor = open_file(self._root, file, os.O_RDONLY)
        try:
            return read_within(descriptor, offset, length, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close the root; the storage cannot be used afterwards."""
        os.close(self._root)


def read_within(descriptor: int, offset: int, length: int, size_bytes: int) -> bytes:
    """Read up to `length` bytes of a file that has `size_bytes`, however the kernel divides it."""
    wanted = max(0, min(length, size_bytes - offset))
    pieces: list[bytes] = []
    while wanted:
        piece = os.pread(descriptor, wanted, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        wanted -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
