"""A fold on disk in RocksDB, for folds far beyond memory; needs the extra `rocksdb`."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from slipstream.errors import (
    Corrupted,
    FoldInUse,
    InvalidFormat,
    MissingExtra,
    SnapshotError,
    SnapshotIo,
)
from slipstream.folds.log_format import key_bytes
from slipstream.folds.record import decode_record, encode_record
from slipstream.folds.store import SnapshotStore
from slipstream.types import KvEntry, KvUpdate, UpdateKind, WatchCursor

if TYPE_CHECKING:
    from rocksdict import Rdict

_MIB: Final = 1024 * 1024
_CURSOR: Final = b"cursor"
_FORMAT: Final = b"format"


class RocksDbSnapshot(SnapshotStore):
    """One atomic write batch per `apply`, data and cursor together; the WAL is always on."""

    backend: ClassVar[str] = "rocksdb"
    format_generation: ClassVar[int] = 1
    artifact_member: ClassVar[str | None] = None

    def __init__(self, database: Rdict, path: Path, *, sync: bool) -> None:
        rocksdict = _rocksdict()
        self._database: Rdict | None = database
        self._path = path
        self._batch_type = rocksdict.WriteBatch
        self._write_options = rocksdict.WriteOptions()
        self._write_options.sync = sync
        # The engine's stubs know no raw mode, in which keys and values are bytes.
        self._data: Any = database.get_column_family("data")
        self._meta: Any = database.get_column_family("meta")
        self._data_handle: Any = database.get_column_family_handle("data")
        self._meta_handle: Any = database.get_column_family_handle("meta")
        self._check_format()
        self._cursor = WatchCursor.decode(self._meta.get(_CURSOR) or b"")

    @classmethod
    def load(cls, path: Path | str, *, sync: bool = False) -> Self:
        """Open the fold, or make an empty one."""
        path = Path(path)
        rocksdict = _rocksdict()
        with _spoken(path):
            families = {"data": _data_options(rocksdict), "meta": _meta_options(rocksdict)}
            options = _meta_options(rocksdict)
            options.create_if_missing(create_if_missing=True)
            options.create_missing_column_families(create_missing_cfs=True)
            options.set_keep_log_file_num(2)
            return cls(rocksdict.Rdict(str(path), options, families), path, sync=sync)

    def _check_format(self) -> None:
        stated = self._meta.get(_FORMAT)
        wanted = self.format_generation.to_bytes(2, "little")
        if stated is None:
            self._meta.put(_FORMAT, wanted)
        elif stated != wanted:
            raise InvalidFormat("a fold of an unknown version", file=str(self._path))

    @property
    def cursor(self) -> WatchCursor:
        return self._cursor

    def apply(self, batch: Sequence[KvUpdate], cursor: WatchCursor) -> None:
        database = self._open()
        writes = self._batch_type(raw_mode=True)
        writes.set_default_column_family(self._data_handle)
        for update in batch:
            if update.kind is UpdateKind.PUT:
                writes[key_bytes(update.key)] = encode_record(update.value, update.version)
            else:
                del writes[key_bytes(update.key)]
        writes.put(_CURSOR, cursor.encode(), self._meta_handle)
        with _spoken(self._path):
            database.write(writes, self._write_options)
        self._cursor = cursor

    def get(self, key: str) -> KvEntry | None:
        with _spoken(self._path):
            record = self._data.get(key.encode())
        return None if record is None else decode_record(key, record)

    def iterate(self, prefix: str = "") -> Iterator[KvEntry]:
        wanted = prefix.encode()
        for key, record in self._data.items(from_key=wanted):
            if not key.startswith(wanted):
                return
            yield decode_record(key.decode(), record)

    def keys(self, prefix: str = "") -> Iterator[str]:
        wanted = prefix.encode()
        found = itertools.takewhile(
            lambda key: key.startswith(wanted), self._data.keys(from_key=wanted)
        )
        return (key.decode() for key in found)

    def write_copy(self, directory: Path) -> None:
        checkpoint = directory / "checkpoint"
        with _spoken(self._path):
            _rocksdict().Checkpoint(self._open()).create_checkpoint(str(checkpoint))
        for file in checkpoint.iterdir():
            file.rename(directory / file.name)
        shutil.rmtree(checkpoint)

    def close(self) -> None:
        if self._database is not None:
            self._data.close()
            self._meta.close()
            self._database.close()
            # A column family's handle holds the database, and so its lock.
            self._database = self._data_handle = self._meta_handle = None

    def _open(self) -> Rdict:
        if self._database is None:
            raise SnapshotIo("the fold is closed", file=str(self._path))
        return self._database


def _rocksdict() -> Any:
    try:
        import rocksdict
    except ImportError as error:
        raise MissingExtra("rocksdb") from error
    return rocksdict


def _data_options(rocksdict: Any) -> Any:
    """Tune for large folds read by key: filters for hits, a partitioned index, zstd at the end.

    What is held in memory is bounded, whatever the fold's size: two write buffers and one cache
    that index and filter blocks share.
    """
    options = rocksdict.Options(raw_mode=True)
    options.set_write_buffer_size(32 * _MIB)
    options.set_max_write_buffer_number(2)
    options.set_optimize_filters_for_hits(True)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_bottommost_compression_type(rocksdict.DBCompressionType.zstd())
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(32 * _MIB))
    table.set_bloom_filter(10, False)  # noqa: FBT003 - whole-key filters, not per block
    table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options.set_block_based_table_factory(table)
    return options


def _meta_options(rocksdict: Any) -> Any:
    options = rocksdict.Options(raw_mode=True)
    options.set_write_buffer_size(1 * _MIB)
    return options


@contextmanager
def _spoken(path: Path) -> Iterator[None]:
    """Speak of the engine's errors in the fold's words; it tells them apart by text alone."""
    try:
        yield
    except SnapshotError:
        raise
    except Exception as error:
        said = str(error)
        if "lock" in said.lower() and "LOCK" in said:
            raise FoldInUse("another process follows into this fold", file=str(path)) from error
        kind = Corrupted if "Corruption" in said else SnapshotIo
        raise kind("the fold's database refused", file=str(path), cause=said) from error
