"""Where a table lies: a directory, or a bucket of an object store.

All that the commit protocol asks of it: a name is created whole, by one caller only, and is
durable when `create` returns. Nothing is ever overwritten.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from quantum.archive.errors import ArchiveMissing, ArchiveMisuse, ArchiveUnreachable
from quantum.archive.objects import DirectoryObjects, Objects, StoredObject, open_objects
from quantum.lake.table.errors import TableError, TableMisuse

DATA_DIRECTORY: Final = "_data"
"""Spark, Hive and Arrow leave names alone that begin with an underscore."""
RETRY_SECONDS: Final = 180


class TableStore(Protocol):
    """A place that holds one table. Every name is relative to it."""

    def create(self, name: str, data: bytes) -> bool:
        """Make a name with all of its bytes, durably; False if the name is there already."""
        ...

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        ...

    def names(self, directory: str) -> Iterable[StoredObject]:
        """List what is below a directory ("": everything) and whole."""
        ...

    def delete(self, name: str) -> None:
        """Remove a name if it is there."""
        ...

    def data_path(self, place: str, name: str) -> str:
        """Say where a data file that belongs to `place` is written."""
        ...

    def show(self, path: str, place: str) -> None:
        """Let readers of plain Parquet find a file; doing it twice does no harm."""
        ...

    def hide(self, path: str, place: str) -> None:
        """Let them find it no longer."""
        ...

    def uri(self, name: str) -> str:
        """Name a file for Spark."""
        ...


def open_store(url: str) -> TableStore:
    """Open a directory (a path, or `file://…`) or a bucket (`s3://`, `gs://`, `az://`, …)."""
    if url.startswith("file://"):
        return DirectoryStore(Path(url.removeprefix("file://")))
    if "://" in url:
        return BucketStore.open(url)
    return DirectoryStore(Path(url))


class _NamedObjects:
    """What a directory and a bucket do alike."""

    _objects: Objects

    def create(self, name: str, data: bytes) -> bool:
        with _asked():
            return self._objects.create(name, data)

    def read(self, name: str) -> bytes:
        with _asked():
            return self._objects.get(name, sys.maxsize)

    def names(self, directory: str) -> list[StoredObject]:
        with _asked():
            return self._objects.entries(directory)

    def delete(self, name: str) -> None:
        with _asked():
            self._objects.delete(name)


class DirectoryStore(_NamedObjects):
    """A table in a directory.

    Files are written below `_data`, where plain readers do not look. `show` gives a committed
    file a second name, `tenant=…/date=…/…`: a hard link, which costs nothing. So what was never
    committed is never seen, and what was replaced stays for those who read an older version.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._objects = self._files = DirectoryObjects(self._directory)

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self._directory)!r})"

    def data_path(self, place: str, name: str) -> str:  # noqa: ARG002  # a bucket's needs it
        return f"{DATA_DIRECTORY}/{name}"

    def show(self, path: str, place: str) -> None:
        with _asked():
            self._files.link(path, _shown(path, place))

    def hide(self, path: str, place: str) -> None:
        with _asked():
            self._objects.delete(_shown(path, place))

    def uri(self, name: str) -> str:
        return f"file://{self._directory / name}"  # Spark unescapes nothing


def _shown(path: str, place: str) -> str:
    return f"{place}/{Path(path).name}" if place else Path(path).name


class BucketStore(_NamedObjects):
    """A table in an object store with conditional writes.

    There are no second names there, so files lie where plain readers look, and those see what
    is not committed yet. `read_table` does not.
    """

    def __init__(self, objects: Objects, url: str) -> None:
        self._objects = objects
        self._url = url.rstrip("/")

    def __repr__(self) -> str:
        return f"BucketStore({self._url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as an address: workers connect with the credentials of their own environment."""
        return BucketStore.open, (self._url,)

    @classmethod
    def open(cls, url: str) -> BucketStore:
        """Connect with the credentials of the environment; raises TableMisuse for no such URL."""
        try:
            return cls(open_objects(url, RETRY_SECONDS), url)
        except ArchiveMisuse as error:
            raise TableMisuse("not the address of a table", url=url, cause=error.reason) from error

    def data_path(self, place: str, name: str) -> str:
        return f"{place}/{name}" if place else f"{DATA_DIRECTORY}/{name}"

    def show(self, path: str, place: str) -> None:
        """It is in sight already."""

    def hide(self, path: str, place: str) -> None:
        """It stays in sight until it is cleaned away."""

    def uri(self, name: str) -> str:
        return f"{self._url}/{name}".replace("s3://", "s3a://", 1)


@contextmanager
def _asked() -> Iterator[None]:
    """Say in a table's words what a store could not do."""
    try:
        yield
    except ArchiveMissing as error:
        raise FileNotFoundError(str(error)) from error
    except ArchiveUnreachable as error:
        raise TableError("the object store failed", cause=error) from error
