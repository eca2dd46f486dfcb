"""`compact`: many small files become few large ones; the rows stay what they are.

A rewriting commit names the version that it was made from and is refused behind any other, so it
never meets an `ingest` half way; the loser's work is thrown away and done again later.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from clustor.wall_clock import wall_clock_ms
from quantum.archive.types import PrgId
from quantum.lake.jobs.progress import Progress, Step, silence
from quantum.lake.jobs.reading import table_state
from quantum.lake.jobs.row_files import FILE_BYTES_MAX, RowSink, read_file
from quantum.lake.jobs.runner import Runner, runner_of
from quantum.lake.table import (
    GRACE_MS,
    DataFile,
    FileGone,
    FileKind,
    TableDamaged,
    TableOperation,
    TableState,
    TableStore,
    VersionProposal,
    plan_cleaning,
    rewritten_name,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "compact"
FILES_MIN: Final = 4
_KINDS: Final = (FileKind.ROWS, FileKind.DEAD, FileKind.TYPED)


@dataclass(frozen=True, slots=True)
class CompactedFiles:
    """What became of how many files."""

    files_before: int
    files_after: int
    rows: int
    cleaned: int = 0


def compact(
    table: str | TableStore,
    *,
    spark: SparkSession | Runner | None = None,
    file_bytes: int = FILE_BYTES_MAX,
    files_min: int = FILES_MIN,
    progress: Progress = silence,
) -> CompactedFiles:
    """Rewrite what is small. Gives up quietly where another writer was quicker."""
    opened, state = table_state(table)
    groups = plan_compaction(state, file_bytes=file_bytes, files_min=files_min)
    work = partial(rewrite, opened.store, int(state.version), file_bytes)
    made = [file for files in runner_of(spark).run(work, groups) for file in files]
    before = [file for group in groups for file in group]
    if not made:
        return CompactedFiles(0, 0, 0)
    proposal = VersionProposal(
        TableOperation.COMPACT,
        state.schema_version,
        add=tuple(made),
        remove=tuple(file.path for file in before),
        base=int(state.version),
    )
    try:
        opened.commit(proposal, at_ms=wall_clock_ms())
    except FileGone:
        progress(Step(JOB, "another writer was quicker: nothing was changed"))
        return CompactedFiles(0, 0, 0)
    rows = sum(file.rows for file in made)
    progress(Step(JOB, f"{len(before)} files became {len(made)}, with {rows} rows as before"))
    return CompactedFiles(len(before), len(made), rows)


def plan_compaction(
    state: TableState, *, file_bytes: int = FILE_BYTES_MAX, files_min: int = FILES_MIN
) -> list[list[DataFile]]:
    """Name groups of small files that belong together and follow each other. Pure."""
    places: dict[tuple[str, ...], list[DataFile]] = {}
    for file in sorted(state.files.values(), key=lambda each: (each.first, each.path)):
        if file.kind in _KINDS and file.bytes < file_bytes // 2:
            key = (file.kind, file.view, file.stream, file.place)
            places.setdefault(key, []).append(file)
    groups: list[list[DataFile]] = []
    for files in places.values():
        groups += [each for each in _filled(files, file_bytes) if len(each) >= files_min]
    return groups


def _filled(files: Iterable[DataFile], file_bytes: int) -> Iterable[list[DataFile]]:
    group: list[DataFile] = []
    size = 0
    for file in files:
        if group and size + file.bytes > file_bytes:
            yield group
            group, size = [], 0
        group.append(file)
        size += file.bytes
    if group:
        yield group


def rewrite(store: TableStore, base: int, file_bytes: int, group: list[DataFile]) -> list[DataFile]:
    """Write the rows of some files to one, in the order of offsets. Runs where Spark says."""
    first = group[0]
    table = pa.concat_tables([read_file(store, file) for file in group], promote_options="default")
    table = table.sort_by([("raft_index", "ascending"), ("sub_index", "ascending")])
    if table.num_rows != sum(file.rows for file in group):
        raise TableDamaged("a file has not as many rows as its commit says", path=first.path)
    sink = RowSink(
        store,
        PrgId.parse(first.stream),
        kind=first.kind,
        view=first.view,
        name_of=lambda *_: rewritten_name(base, secrets.token_hex(8)),
        file_bytes_max=file_bytes * 2,
    )
    for batch in table.combine_chunks().to_batches():
        sink.write(batch)
    return sink.finish()


def clean(table: str | TableStore, *, grace_ms: int = GRACE_MS, dry: bool = False) -> list[str]:
    """Delete what no version can name any more and is older than the grace; return the names."""
    opened, _ = table_state(table)
    stored = [each for each in opened.store.names("") if "_quantum_log" not in each.name]
    state = opened.refresh()  # after the listing: see `plan_cleaning`
    now_ms = wall_clock_ms()
    names = plan_cleaning(state, opened.history(), stored, now_ms=now_ms, grace_ms=grace_ms)
    if not dry:
        for name in names:
            opened.store.delete(name)
    return names
