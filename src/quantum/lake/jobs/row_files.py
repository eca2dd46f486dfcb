"""Rows and the files that hold them: Parquet, one file for each day of a task, with its digests."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from quantum.archive.types import PrgId
from quantum.lake.table import (
    DataFile,
    FileKind,
    MerkleTree,
    StreamName,
    TableDamaged,
    TableStore,
    digest_of,
    ingested_name,
    leaf_of,
    place_of,
)

FILE_BYTES_MAX: Final = 128 << 20
_DAY_US: Final = 86_400_000_000
NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"
"""How plain readers write that a partition column has no value."""
DEAD_DIRECTORY: Final = "_dead_letters"
VIEWS_DIRECTORY: Final = "_views"

_encode = msgspec.msgpack.Encoder().encode


def stream_of(prg: PrgId) -> StreamName:
    return StreamName(str(prg))


def encoded_rows(batch: pa.RecordBatch | pa.Table) -> Iterator[bytes]:
    """Write each row in the one form that it has, whichever file it came from."""
    columns: list[list[Any]] = []
    for column in batch.columns:
        plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        columns.append(plain.to_pylist())
    yield from map(_encode, zip(*columns, strict=True))


@dataclass(slots=True)
class _Open:
    """A file on its way."""

    writer: pq.ParquetWriter
    bytes: BytesIO
    tree: MerkleTree = field(default_factory=MerkleTree)
    first: int = 1 << 62
    last: int = 0


class RowSink:
    """Takes the rows of one task in order and writes them to files that nobody knows of yet."""

    def __init__(
        self,
        store: TableStore,
        prg: PrgId,
        *,
        kind: FileKind = FileKind.ROWS,
        view: str = "",
        name_of: Any = None,
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self._store = store
        self._prg = prg
        self._kind = kind
        self._view = view
        self._name_of = name_of or self._ingested
        self._file_bytes_max = file_bytes_max
        self._open: dict[str, _Open] = {}
        self._files: list[DataFile] = []

    def _ingested(self, first: int, last: int) -> str:
        return ingested_name(self._kind, stream_of(self._prg), first, last, secrets.token_hex(8))

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows; they need `raft_index` and `timestamp`."""
        if not batch.num_rows:
            return
        for date, part in _by_date(batch):
            at = self._open.get(date)
            if at is None:
                at = self._open[date] = _begin(part.schema)
            at.writer.write_batch(part)
            for row in encoded_rows(part):
                at.tree.append(leaf_of(row))
            indexes = part.column("raft_index").to_numpy()
            at.first, at.last = min(at.first, int(indexes.min())), max(at.last, int(indexes.max()))
            if at.bytes.tell() >= self._file_bytes_max:
                self._end(date)

    def finish(self) -> list[DataFile]:
        """Write what is left; return all files."""
        for date in list(self._open):
            self._end(date)
        return self._files

    def _end(self, date: str) -> None:
        ended = self._open.pop(date)
        ended.writer.close()
        data = ended.bytes.getvalue()
        place = self._place(date)
        path = self._store.data_path(place, self._name_of(ended.first, ended.last))
        if not self._store.create(path, data):
            raise TableDamaged("a name that nobody has is taken", path=path)
        self._files.append(
            DataFile(
                path,
                self._kind,
                stream_of(self._prg),
                ended.first,
                ended.last,
                ended.tree.leaves,
                len(data),
                digest_of(data),
                ended.tree.root().hex(),
                place,
                self._view,
            )
        )

    def _place(self, date: str) -> str:
        hidden = {
            FileKind.DEAD: DEAD_DIRECTORY,
            FileKind.TYPED: f"{VIEWS_DIRECTORY}/{self._view}",
        }.get(self._kind, "")
        return place_of(self._prg.tenant, date, hidden=hidden)


def _begin(schema: pa.Schema) -> _Open:
    buffer = BytesIO()
    return _Open(pq.ParquetWriter(buffer, schema, compression="zstd"), buffer)


def _by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Part rows by the day of their timestamps; nearly always it is one day."""
    stamps = batch.column("timestamp")
    days = np.floor_divide(stamps.cast(pa.int64()).fill_null(-1).to_numpy(), _DAY_US)
    found = np.unique(days)
    if len(found) == 1:
        yield date_of(int(found[0])), batch
        return
    for day in found:
        yield date_of(int(day)), batch.filter(pa.array(days == day))


def date_of(day: int) -> str:
    """Write the day of a number of days since 1970; before it there is no message."""
    if day < 0:
        return NO_DATE
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()


def read_file(store: TableStore, file: DataFile) -> pa.Table:
    """Read a committed file. Raises TableDamaged if it is not what its commit says."""
    try:
        data = store.read(file.path)
    except FileNotFoundError:
        raise TableDamaged("a committed file is gone", path=file.path) from None
    if digest_of(data) != file.digest:
        raise TableDamaged("a committed file was changed", path=file.path)
    return pq.read_table(BytesIO(data))
