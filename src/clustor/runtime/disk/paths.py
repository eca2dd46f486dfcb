"""Names below a root directory, opened without ever following a link out of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from clustor.runtime.disk.errors import PathRefused

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def parts_of(path: str) -> list[str]:
    """Split a relative path; refuse one that could lead out of its root."""
    parts = path.split("/")
    if "\0" in path or any(part in {"", ".", ".."} for part in parts):
        raise PathRefused("not a path below the partition's directory", path=path)
    return parts


@contextmanager
def opened_directory(root: int, directory: str) -> Iterator[int]:
    """Open `directory` below the directory descriptor `root` (`""` is `root` itself)."""
    descriptor = os.dup(root)
    try:
        for part in parts_of(directory) if directory else []:
            inner = os.open(part, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_parent(root: int, path: str) -> Iterator[tuple[int, str]]:
    """Open the directory that holds `path`; yield it with the last part of the path."""
    name = parts_of(path)[-1]
    with opened_directory(root, path.rpartition("/")[0]) as parent:
        yield parent, name


def open_file(root: int, path: str, flags: int) -> int:
    """Open a file below `root`; a symbolic link anywhere on the way is refused."""
    with opened_parent(root, path) as (parent, name):
        return _open_in(parent, name, flags, path)


def _open_in(parent: int, name: str, flags: int, path: str) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PathRefused("a symbolic link is not followed", path=path) from error
        raise


class Directories:
    """The directories below a root that plans touch, each opened once and kept open.

    No step removes or renames a directory, so a descriptor stays right for as long as it is open.
    """

    def __init__(self, root: int) -> None:
        self._opened: dict[str, int] = {"": root}

    @property
    def root(self) -> int:
        return self._opened[""]

    def open(self, directory: str) -> int:
        """Return the directory's descriptor; it stays ours."""
        descriptor = self._opened.get(directory)
        if descriptor is None:
            with opened_directory(self.root, directory) as found:
                descriptor = self._opened[directory] = os.dup(found)
        return descriptor

    def parent(self, path: str) -> tuple[int, str]:
        """Return the descriptor of the directory that holds `path`, and its last part."""
        name = parts_of(path)[-1]
        return self.open(path.rpartition("/")[0]), name

    def open_file(self, path: str, flags: int) -> int:
        """Open a file; a symbolic link anywhere on the way is refused."""
        parent, name = self.parent(path)
        return _open_in(parent, name, flags, path)

    def close(self) -> None:
        for descriptor in self._opened.values():
            os.close(descriptor)
        self._opened = {}
