"""Find a fold backend by the name that a person or a manifest gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from slipstream.errors import Misuse
from slipstream.folds.append_log import AppendLogSnapshot
from slipstream.folds.sqlite import SqliteSnapshot
from slipstream.folds.store import SnapshotStore


def _rocksdb() -> type[SnapshotStore]:
    from slipstream.folds.rocksdb import RocksDbSnapshot

    return RocksDbSnapshot


# Late, because the engine of the last one is an optional dependency.
FOLD_BACKENDS: Final[dict[str, Callable[[], type[SnapshotStore]]]] = {
    "log": lambda: AppendLogSnapshot,
    "sqlite": lambda: SqliteSnapshot,
    "rocksdb": _rocksdb,
}


def fold_backend(name: str) -> type[SnapshotStore]:
    """Give the backend called `name` (`log`, `sqlite`, `rocksdb`)."""
    found = FOLD_BACKENDS.get(name)
    if found is None:
        raise Misuse("no such fold backend", name=name, known=", ".join(FOLD_BACKENDS))
    return found()
