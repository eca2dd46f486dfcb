"""Object stores: the few calls that archives and tables need, on S3 and its like or a directory.

A directory has its own code, not `obstore`'s: a log is deleted once its archive has it, so what
is put there must be on the disk, name and bytes, before the call returns.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from clustor.runtime.data_directory import sync_directory
from quantum.archive.errors import ArchiveMissing, ArchiveMisuse, ArchiveUnreachable

RETRY_SECONDS: Final = 20
_PART_BYTES: Final = 8 << 20
_PARTS_AT_ONCE: Final = 2
_TEMPORARY: Final = ".part-"
_TEMPORARIES: Final = (_TEMPORARY, ".new-")
"""How files begin that are not whole yet; the second in tables of earlier releases."""


class StoredObject(NamedTuple):
    """An object that is there, whole."""

    name: str
    bytes: int
    modified_ms: int


class Objects(Protocol):
    """Raises ArchiveUnreachable where the store fails, ArchiveMissing where an object is not."""

    def create(self, name: str, data: bytes) -> bool:
        """Create an object, whole and durable; False where there is one of this name."""

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write an object, whole and durable or not at all; one that is there is replaced."""

    def get(self, name: str, bytes_max: int) -> bytes:
        """Return a whole object; ArchiveMisuse for a larger one."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the object."""

    def size(self, name: str) -> int | None:
        """Return an object's length, None where there is none."""

    def entries(self, prefix: str) -> list[StoredObject]:
        """List all objects below a prefix that ends in a slash, or is empty; sorted by name."""

    def names(self, prefix: str) -> list[str]:
        """List all names below such a prefix; sorted."""

    def folders(self, prefix: str) -> list[str]:
        """List the folders right below such a prefix, without slashes; sorted."""

    def delete(self, name: str) -> None:
        """Remove an object for good; one that is not there is no error."""


def open_objects(url: str, retry_seconds: int = RETRY_SECONDS) -> Objects:
    """Open a store by its URL: `file:///…`, `s3://bucket/prefix` and what else obstore knows.

    Credentials come from the environment, never from the URL. A call is tried again for so long
    before it fails: an archiver waits and says why meanwhile, a job has nobody to say it to.
    Raises ArchiveMisuse.
    """
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise ArchiveMisuse("credentials do not belong into a URL; use the environment")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ArchiveMisuse("a directory is written file:///absolute/path", url=url)
        return DirectoryObjects(Path(unquote(parts.path)))
    if not parts.scheme:
        raise ArchiveMisuse("not a URL", url=url)
    try:
        retries: Any = {
            "max_retries": max(3, retry_seconds // RETRY_SECONDS),
            "retry_timeout": timedelta(seconds=retry_seconds),
        }
        return StoreObjects(
            from_url(url, client_options={"allow_http": True}, retry_config=retries)
        )
    except (BaseError, ValueError, TypeError) as error:
        raise ArchiveMisuse("cannot open this store", url=url, cause=_brief(error)) from error


class DirectoryObjects:
    """Objects as files. Made when first written to; every file and every name is synced."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, name: str, data: bytes) -> bool:
        with _disk(name):
            with self._written(name, [data]) as (temporary, path):
                made = _link(temporary, path)
            # Also where it was there before: whoever made it may have died before this line.
            sync_directory(path.parent)
        return made

    def link(self, name: str, other: str) -> None:
        """Give an object a second name; one that is there stays."""
        with _disk(name):
            path = self._path(other)
            self._make(path.parent)
            _link(self._path(name), path)

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        with _disk(name):
            with self._written(name, pieces) as (temporary, path):
                temporary.replace(path)
            sync_directory(path.parent)

    def get(self, name: str, bytes_max: int) -> bytes:
        with _disk(name):
            path = self._path(name)
            if path.stat().st_size > bytes_max:
                raise ArchiveMisuse("an object is too large to be what it should be", object=name)
            return path.read_bytes()

    def read(self, name: str, offset: int, length: int) -> bytes:
        with _disk(name), self._path(name).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def size(self, name: str) -> int | None:
        with _disk(name):
            try:
                return self._path(name).stat().st_size
            except FileNotFoundError:
                return None

    def entries(self, prefix: str) -> list[StoredObject]:
        with _disk(prefix):
            return sorted(self._found(prefix))

    def _found(self, prefix: str) -> Iterator[StoredObject]:
        for path in (self._root / prefix).rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                status = path.stat()
                if stat.S_ISREG(status.st_mode) and not path.name.startswith(_TEMPORARIES):
                    name = path.relative_to(self._root).as_posix()
                    modified_ms = status.st_mtime_ns // 1_000_000
                    yield StoredObject(name, status.st_size, modified_ms)

    def names(self, prefix: str) -> list[str]:
        return [each.name for each in self.entries(prefix)]

    def folders(self, prefix: str) -> list[str]:
        with _disk(prefix):
            try:
                found = list((self._root / prefix).iterdir())
            except FileNotFoundError:
                return []
            return sorted(path.name for path in found if path.is_dir())

    def delete(self, name: str) -> None:
        with _disk(name):
            path = self._path(name)
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                sync_directory(path.parent)

    def _path(self, name: str) -> Path:
        assert name and ".." not in name.split("/") and not name.startswith("/"), name
        return self._root / name

    @contextmanager
    def _written(self, name: str, pieces: Iterable[bytes]) -> Iterator[tuple[Path, Path]]:
        """Write beside the name, durably; what is left of it goes."""
        path = self._path(name)
        self._make(path.parent)
        temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
        try:
            with temporary.open("xb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            yield temporary, path
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()

    def _make(self, directory: Path) -> None:
        if not directory.is_dir():
            self._make(directory.parent)
            directory.mkdir(exist_ok=True)
            sync_directory(directory.parent)


def _link(existing: Path, name: Path) -> bool:
    try:
        os.link(existing, name)
    except FileExistsError:
        return False
    return True


class StoreObjects:
    """Objects in a store that `obstore` reaches."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def create(self, name: str, data: bytes) -> bool:
        with _store(name):
            try:
                obstore.put(self._store, name, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        with _store(name):
            obstore.put(
                self._store,
                name,
                iter(pieces),
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def get(self, name: str, bytes_max: int) -> bytes:
        with _store(name):
            found = obstore.get(self._store, name)
            if found.meta["size"] > bytes_max:
                raise ArchiveMisuse("an object is too large to be what it should be", object=name)
            return bytes(found.bytes())

    def read(self, name: str, offset: int, length: int) -> bytes:
        size = self.size(name)
        if size is None:
            raise ArchiveMissing("an object is not there", object=name)
        wanted = max(0, min(length, size - offset))
        if not wanted:
            return b""
        with _store(name):
            return bytes(obstore.get_range(self._store, name, start=offset, length=wanted))

    def size(self, name: str) -> int | None:
        with _store(name):
            try:
                return int(obstore.head(self._store, name)["size"])
            except FileNotFoundError:
                return None

    def entries(self, prefix: str) -> list[StoredObject]:
        with _store(prefix):
            found = obstore.list(self._store, prefix or None)
            return sorted(
                StoredObject(
                    str(each["path"]),
                    int(each["size"]),
                    int(each["last_modified"].timestamp() * 1_000),
                )
                for chunk in found
                for each in chunk
            )

    def names(self, prefix: str) -> list[str]:
        return [each.name for each in self.entries(prefix)]

    def folders(self, prefix: str) -> list[str]:
        with _store(prefix):
            found = obstore.list_with_delimiter(self._store, prefix or None)
            return sorted(str(each).rpartition("/")[2] for each in found["common_prefixes"])

    def delete(self, name: str) -> None:
        with _store(name), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, name)


@contextmanager
def _disk(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ArchiveMissing("an object is not there", object=name) from error
    except OSError as error:
        raise ArchiveUnreachable(
            "the archive's directory cannot be used", object=name, cause=error.strerror
        ) from error


@contextmanager
def _store(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ArchiveMissing("an object is not there", object=name) from error
    except (BaseError, NotImplementedError, OSError) as error:
        raise ArchiveUnreachable(
            "the store does not do what it was asked", object=name, cause=_brief(error)
        ) from error


def _brief(error: Exception) -> str:
    """Say the first line of a store's error, without what differs from one attempt to the next."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r" in [0-9.]+[mµn]?s\b.*?( - |$)", r"\1", line)[:200]
