"""Durable folds: data and the cursor that names it, changed together or not at all."""

from slipstream.folds.append_log import AppendLogSnapshot, SnapshotWriter, WriterState
from slipstream.folds.registry import FOLD_BACKENDS, fold_backend
from slipstream.folds.sqlite import SqliteSnapshot
from slipstream.folds.store import SnapshotStore, stale_keys

__all__ = [
    "FOLD_BACKENDS",
    "AppendLogSnapshot",
    "SnapshotStore",
    "SnapshotWriter",
    "SqliteSnapshot",
    "WriterState",
    "fold_backend",
    "stale_keys",
]
