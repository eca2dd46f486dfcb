"""The folds under test: a new backend is one more line here, and gets the whole suite."""

from __future__ import annotations

from slipstream.folds import AppendLogSnapshot, SnapshotStore, SqliteSnapshot
from slipstream.folds.rocksdb import RocksDbSnapshot
from slipstream.types import KvUpdate, UpdateKind, VersionToken, WatchCursor

FOLDS: dict[str, type[SnapshotStore]] = {
    "append-log": AppendLogSnapshot,
    "sqlite": SqliteSnapshot,
    "rocksdb": RocksDbSnapshot,
}


def put(key: str, value: bytes, revision: int) -> KvUpdate:
    """A put at a revision."""
    return KvUpdate(UpdateKind.PUT, key, value, VersionToken.from_u64(revision))


def delete(key: str, revision: int) -> KvUpdate:
    """A delete at a revision."""
    return KvUpdate(UpdateKind.DELETE, key, b"", VersionToken.from_u64(revision))


def at(revision: int) -> WatchCursor:
    """An unbound cursor."""
    return WatchCursor.from_u64(revision)


def contents(fold: SnapshotStore) -> dict[str, bytes]:
    """Everything that a fold holds."""
    return {entry.key: entry.value for entry in fold.iterate()}
