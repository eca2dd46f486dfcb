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
        try:
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise PathRefused("a symbolic link is not followed", path=path) from error
            raise
