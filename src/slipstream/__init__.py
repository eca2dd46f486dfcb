"""Slipstream: watchable config whose cursor never names what was not applied.

What needs an optional dependency is loaded when it is first named: `NatsConnection` and
`NatsConnectionConfig` (extra `nats`), `RocksDbSnapshot` (extra `rocksdb`); and so is
`ObjectStoreTransport`, because few processes publish artifacts.
"""

from typing import TYPE_CHECKING

from slipstream.applied import watch_applied
from slipstream.artifact import (
    ArtifactTransport,
    ExportLease,
    ExportManifest,
    ExportRequest,
    ExportRound,
    LeaseGuard,
    LeaseRecord,
    PublishOutcome,
    RoundOutcome,
    export_to,
    import_artifact,
    import_remote,
    run_export_round,
)
from slipstream.backends import open_connection
from slipstream.errors import SlipstreamError
from slipstream.folds import AppendLogSnapshot, SnapshotStore, SqliteSnapshot
from slipstream.memory import MemoryConnection
from slipstream.ports import Connection, KvReader, KvStore, KvTtl, KvWatcher, KvWriter, Watch
from slipstream.types import (
    NO_CURSOR,
    AppliedReport,
    BatchConfig,
    CaughtUp,
    ConnectionCapabilities,
    KvEntry,
    KvUpdate,
    StorageType,
    StoreConfig,
    UpdateKind,
    VersionToken,
    WatchCursor,
    WatchEvent,
    WatchScope,
)

if TYPE_CHECKING:
    from slipstream.artifact.transport import ObjectStoreTransport
    from slipstream.folds.rocksdb import RocksDbSnapshot
    from slipstream.nats import NatsConnection, NatsConnectionConfig

__all__ = [
    "NO_CURSOR",
    "AppendLogSnapshot",
    "AppliedReport",
    "ArtifactTransport",
    "BatchConfig",
    "CaughtUp",
    "Connection",
    "ConnectionCapabilities",
    "ExportLease",
    "ExportManifest",
    "ExportRequest",
    "ExportRound",
    "KvEntry",
    "KvReader",
    "KvStore",
    "KvTtl",
    "KvUpdate",
    "KvWatcher",
    "KvWriter",
    "LeaseGuard",
    "LeaseRecord",
    "MemoryConnection",
    "NatsConnection",
    "NatsConnectionConfig",
    "ObjectStoreTransport",
    "PublishOutcome",
    "RocksDbSnapshot",
    "RoundOutcome",
    "SlipstreamError",
    "SnapshotStore",
    "SqliteSnapshot",
    "StorageType",
    "StoreConfig",
    "UpdateKind",
    "VersionToken",
    "Watch",
    "WatchCursor",
    "WatchEvent",
    "WatchScope",
    "export_to",
    "import_artifact",
    "import_remote",
    "open_connection",
    "run_export_round",
    "watch_applied",
]

_LATE = {
    "NatsConnection": "slipstream.nats",
    "NatsConnectionConfig": "slipstream.nats",
    "ObjectStoreTransport": "slipstream.artifact.transport",
    "RocksDbSnapshot": "slipstream.folds.rocksdb",
}


def __getattr__(name: str) -> object:
    """Load what is named late."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
