"""A writer of numbers: what `ingest` does, with one byte string for each offset."""

from __future__ import annotations

import secrets

from quantum.lake.table import (
    DataFile,
    FileKind,
    OffsetRange,
    StreamName,
    Table,
    TableOperation,
    TableStore,
    VersionProposal,
    digest_of,
    ingested_name,
    leaf_of,
    place_of,
    rewritten_name,
    root_of,
)

STREAM = StreamName("dev/0")
OTHER = StreamName("dev/1")
PLACE = place_of("dev", "2026-11-15")


def write_file(store: TableStore, name: str, stream: StreamName, rows: list[int]) -> DataFile:
    """Write offsets as a file; nobody reads of it before a commit names it."""
    data = "".join(f"{row}\n" for row in rows).encode()
    path = store.data_path(PLACE, name)
    assert store.create(path, data)
    return DataFile(
        path,
        FileKind.ROWS,
        stream,
        rows[0],
        rows[-1],
        len(rows),
        len(data),
        digest_of(data),
        root_of(leaf_of(b"%d" % row) for row in rows).hex(),
        PLACE,
    )


def write_range(store: TableStore, stream: StreamName, first: int, last: int) -> DataFile:
    name = ingested_name(FileKind.ROWS, stream, first, last, secrets.token_hex(8))
    return write_file(store, name, stream, list(range(first, last + 1)))


def proposal(stream: StreamName, first: int, last: int, *files: DataFile) -> VersionProposal:
    return VersionProposal(TableOperation.INGEST, 1, {stream: OffsetRange(first, last)}, add=files)


def add(table: Table, stream: StreamName, first: int, last: int, at_ms: int = 0) -> DataFile:
    """Write and commit offsets."""
    file = write_range(table.store, stream, first, last)
    table.commit(proposal(stream, first, last, file), at_ms=at_ms)
    return file


def compact(table: Table, stream: StreamName, at_ms: int = 0) -> DataFile:
    """Make one file of all files of a stream."""
    state = table.refresh()
    old = [file for file in state.files.values() if file.stream == stream]
    rows = sorted(row for file in old for row in rows_of(table.store, file))
    name = rewritten_name(state.version, secrets.token_hex(8))
    file = write_file(table.store, name, stream, rows)
    removed = tuple(each.path for each in old)
    table.commit(
        VersionProposal(TableOperation.COMPACT, 1, add=(file,), remove=removed, base=state.version),
        at_ms=at_ms,
    )
    return file


def rows_of(store: TableStore, file: DataFile) -> list[int]:
    return [int(line) for line in store.read(file.path).split()]


def all_rows(store: TableStore, stream: StreamName) -> list[int]:
    """Read the rows of a stream as a reader does that has just come."""
    state = Table.open(store).state
    files = [file for file in state.of_kind(FileKind.ROWS) if file.stream == stream]
    return [row for file in files for row in rows_of(store, file)]
