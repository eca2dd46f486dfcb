"""Tables for tests: filled from a log and read back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from quantum.lake.jobs.ingest import IngestReport, IngestSettings, ingest
from quantum.lake.jobs.row_files import read_file
from quantum.lake.planner import BatchLimits
from quantum.lake.table import FileKind, Table, TableStore
from tests.quantum.lake.jobs.logs import MemorySource


def filled(
    source: MemorySource, store: TableStore, *, entries: int | None = None, **more: Any
) -> IngestReport:
    """Ingest what is there, so many entries to a batch."""
    settings = IngestSettings(limits=BatchLimits(records=entries), **more)
    return ingest(source, store, settings=settings)


def rows(store: TableStore, kind: FileKind = FileKind.ROWS, view: str = "") -> list[dict[str, Any]]:
    """Read all rows as a reader does that has just come, in the order of partitions and offsets."""
    files = Table.open(store).state.of_kind(kind, view)
    if not files:
        return []
    table = pa.concat_tables([read_file(store, file) for file in files])
    found: list[dict[str, Any]] = table.to_pylist()
    return sorted(found, key=lambda row: (row["prg"], row["raft_index"], row["sub_index"] or 0))


def payloads(store: TableStore) -> list[bytes]:
    return [row["payload"] for row in rows(store)]
