"""Where a table lies: a directory, or a bucket of an object store.

All that the commit protocol asks of it: a name is created whole, by one caller only, and is
durable when `create` returns. Nothing is ever overwritten.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from clustor.runtime.data_directory import sync_directory
from quantum.lake.table.errors import TableError, TableMisuse

if TYPE_CHECKING:
    from obstore.store import ObjectStore

DATA_DIRECTORY: Final = "_data"
"""Spark, Hive and Arrow leave names alone that begin with an underscore."""
_TEMPORARY: Final = ".new-"


class Stored(NamedTuple):
    """A name that is there."""

    name: str
    bytes: int
    modified_ms: int


class TableStore(Protocol):
    """A place that holds one table. Every name is relative to it."""

    def create(self, name: str, data: bytes) -> bool:
        """Make a name with all of its bytes, durably; False if the name is there already."""
        ...

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        ...

    def names(self, directory: str) -> Iterator[Stored]:
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


class DirectoryStore:
    """A table in a directory.

    Files are written below `_data`, where plain readers do not look. `show` gives a committed
    file a second name, `tenant=…/date=…/…`: a hard link, which costs nothing. So what was never
    committed is never seen, and what was replaced stays for those who read an older version.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self._directory)!r})"

    def create(self, name: str, data: bytes) -> bool:
        path = self._directory / name
        _make_directories(path.parent)
        temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            made = _link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        # Also where it was there before: whoever made it may have died before this line.
        sync_directory(path.parent)
        return made

    def read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def names(self, directory: str) -> Iterator[Stored]:
        for base, _, names in os.walk(self._directory / directory):
            for name in sorted(names):
                path = Path(base, name)
                if name.startswith(_TEMPORARY) or not path.exists():
                    continue
                status = path.stat()
                relative = path.relative_to(self._directory).as_posix()
                yield Stored(relative, status.st_size, status.st_mtime_ns // 1_000_000)

    def delete(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    def data_path(self, place: str, name: str) -> str:  # noqa: ARG002  # a bucket's needs it
        return f"{DATA_DIRECTORY}/{name}"

    def show(self, path: str, place: str) -> None:
        shown = self._directory / place / Path(path).name
        _make_directories(shown.parent)
        _link(self._directory / path, shown)

    def hide(self, path: str, place: str) -> None:
        (self._directory / place / Path(path).name).unlink(missing_ok=True)

    def uri(self, name: str) -> str:
        return f"file://{self._directory / name}"  # Spark unescapes nothing


def _link(existing: Path, name: Path) -> bool:
    try:
        name.hardlink_to(existing)
    except FileExistsError:
        return False
    return True


def _make_directories(directory: Path) -> None:
    if not directory.is_dir():
        _make_directories(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


class BucketStore:
    """A table in an object store with conditional writes.

    There are no second names there, so files lie where plain readers look, and those see what
    is not committed yet. `read_table` does not.
    """

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store: Any = store
        self._url = url.rstrip("/")

    def __repr__(self) -> str:
        return f"BucketStore({self._url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as an address: workers connect with the credentials of their own environment."""
        return BucketStore.open, (self._url,)

    @classmethod
    def open(cls, url: str) -> BucketStore:
        """Connect with the credentials of the environment; raises TableMisuse for no such URL."""
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        try:
            return cls(from_url(url), url)
        except (BaseError, ValueError) as error:
            raise TableMisuse("not the address of a table", url=url, cause=error) from error

    def create(self, name: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            self._store.put(name, data, mode="create")
        except AlreadyExistsError:
            return False
        except BaseError as error:
            raise TableError("the object store failed", cause=error) from error
        return True

    def read(self, name: str) -> bytes:
        return bytes(self._ask(lambda: self._store.get(name).bytes()))

    def names(self, directory: str) -> Iterator[Stored]:
        pages = self._ask(lambda: list(self._store.list(directory or None)))
        for page in pages:
            for found in page:
                modified_ms = int(found["last_modified"].timestamp() * 1_000)
                yield Stored(found["path"], found["size"], modified_ms)

    def delete(self, name: str) -> None:
        self._ask(lambda: self._store.delete(name))

    def data_path(self, place: str, name: str) -> str:
        return f"{place}/{name}" if place else f"{DATA_DIRECTORY}/{name}"

    def show(self, path: str, place: str) -> None:
        """It is in sight already."""

    def hide(self, path: str, place: str) -> None:
        """It stays in sight until it is cleaned away."""

    def uri(self, name: str) -> str:
        return f"{self._url}/{name}".replace("s3://", "s3a://", 1)

    def _ask(self, call: Callable[[], Any]) -> Any:
        from obstore.exceptions import BaseError

        try:
            return call()
        except BaseError as error:
            raise TableError("the object store failed", cause=error) from error
