"""A fold on disk in SQLite, with nothing but the standard library: for folds beyond memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final, Self

from slipstream.errors import Corrupted, InvalidFormat, SnapshotError, SnapshotIo
from slipstream.folds.lock import FoldLock
from slipstream.folds.log_format import key_bytes
from slipstream.folds.store import SnapshotStore, prefix_end
from slipstream.types import KvEntry, KvUpdate, UpdateKind, VersionToken, WatchCursor

APPLICATION_ID: Final = int.from_bytes(b"PGSQ", "big")
_PAGE: Final = 1_000  # entries read at a time by an iteration
_CACHE_KIB: Final = 16 * 1024

_SCHEMA: Final = """
CREATE TABLE data (key BLOB PRIMARY KEY, version BLOB NOT NULL, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""
_PUT: Final = "INSERT OR REPLACE INTO data (key, version, value) VALUES (?, ?, ?)"
_DELETE: Final = "DELETE FROM data WHERE key = ?"
_MOVE: Final = "INSERT OR REPLACE INTO meta (name, value) VALUES ('cursor', ?)"


class SqliteSnapshot(SnapshotStore):
    """One transaction per `apply`; `sync=True` makes each one survive power loss."""

    backend: ClassVar[str] = "sqlite"
    format_generation: ClassVar[int] = 1
    artifact_member: ClassVar[str | None] = "fold.sqlite"

    def __init__(self, lock: FoldLock, database: sqlite3.Connection, path: Path) -> None:
        self._lock = lock
        self._database = database
        self._path = path
        row = database.execute("SELECT value FROM meta WHERE name = 'cursor'").fetchone()
        self._cursor = WatchCursor.decode(row[0]) if row is not None else WatchCursor()

    @classmethod
    def load(cls, path: Path | str, *, sync: bool = False) -> Self:
        """Open the fold, or make an empty one."""
        path = Path(path)
        lock = FoldLock(path)
        try:
            return cls._load(path, lock, sync=sync)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _load(cls, path: Path, lock: FoldLock, *, sync: bool) -> Self:
        with _spoken(path):
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                _prepare(database, path, sync=sync)
                return cls(lock, database, path)
            except BaseException:
                database.close()
                raise

    @property
    def cursor(self) -> WatchCursor:
        return self._cursor

    def apply(self, batch: Sequence[KvUpdate], cursor: WatchCursor) -> None:
        with _spoken(self._path):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._write(batch)
                self._database.execute(_MOVE, (cursor.encode(),))
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
        self._cursor = cursor

    def _write(self, batch: Sequence[KvUpdate]) -> None:
        """Write the last update of each key: runs of one kind go in one call."""
        last: dict[bytes, KvUpdate] = {key_bytes(update.key): update for update in batch}
        puts = [
            (key, update.version.raw, update.value)
            for key, update in last.items()
            if update.kind is UpdateKind.PUT
        ]
        gone = [(key,) for key, update in last.items() if update.kind is not UpdateKind.PUT]
        if puts:
            self._database.executemany(_PUT, puts)
        if gone:
            self._database.executemany(_DELETE, gone)

    def get(self, key: str) -> KvEntry | None:
        with _spoken(self._path):
            row = self._database.execute(
                "SELECT version, value FROM data WHERE key = ?", (key.encode(),)
            ).fetchone()
        return None if row is None else KvEntry(key, row[1], VersionToken(row[0]))

    def iterate(self, prefix: str = "") -> Iterator[KvEntry]:
        for key, version, value in self._pages("key, version, value", prefix.encode()):
            yield KvEntry(key.decode(), value, VersionToken(version))

    def keys(self, prefix: str = "") -> Iterator[str]:
        return (row[0].decode() for row in self._pages("key", prefix.encode()))

    def _pages(self, columns: str, prefix: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Read page by page from the last key on: bounded memory, no cursor held open."""
        end = prefix_end(prefix)
        start, comparison = prefix, ">="
        while True:
            bound = "" if end is None else " AND key < ?2"
            query = f"SELECT {columns} FROM data WHERE key {comparison} ?1{bound} ORDER BY key LIMIT {_PAGE}"  # noqa: S608, E501 - made of constants
            with _spoken(self._path):
                values = (start,) if end is None else (start, end)
                rows = self._database.execute(query, values).fetchall()
            yield from rows
            if len(rows) < _PAGE:
                return
            start, comparison = rows[-1][0], ">"

    def write_copy(self, directory: Path) -> None:
        assert self.artifact_member is not None
        with _spoken(self._path):
            self._database.execute("VACUUM INTO ?", (str(directory / self.artifact_member),))

    def close(self) -> None:
        self._database.close()
        self._lock.release()


def _prepare(database: sqlite3.Connection, path: Path, *, sync: bool) -> None:
    """Check whose file it is, and set it up."""
    stated = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    empty = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if not empty and stated != APPLICATION_ID:
        raise InvalidFormat("not a fold", file=str(path))
    if not empty and version != SqliteSnapshot.format_generation:
        raise InvalidFormat("a fold of an unknown version", file=str(path), version=version)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {'FULL' if sync else 'OFF'}")
    database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    if empty:
        database.executescript(
            f"BEGIN; PRAGMA application_id = {APPLICATION_ID};"
            f"PRAGMA user_version = {SqliteSnapshot.format_generation}; {_SCHEMA} COMMIT;"
        )


@contextmanager
def _spoken(path: Path) -> Iterator[None]:
    """Speak of SQLite's errors in the fold's words."""
    try:
        yield
    except SnapshotError:
        raise
    except sqlite3.OperationalError as error:
        raise SnapshotIo("the fold's database refused", file=str(path), cause=str(error)) from error
    except sqlite3.DatabaseError as error:
        kind = InvalidFormat if "not a database" in str(error) else Corrupted
        raise kind("the fold's database is damaged", file=str(path), cause=str(error)) from error
