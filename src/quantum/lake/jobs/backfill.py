"""Typed views of rows that are in the table already.

A view may be described long after its messages came, be described anew, or have been left out of a
run. What it lacks is read from the table's own rows, which are all there, and becomes part of the
table by one commit behind which the view is whole. Where a description changed, the rows that it
had under the old one are replaced, and so are its dead letters.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from clustor.wall_clock import wall_clock_ms
from quantum.archive.types import PrgId
from quantum.lake.jobs.progress import Progress, Step, silence
from quantum.lake.jobs.reading import table_state
from quantum.lake.jobs.row_files import RowSink, read_file
from quantum.lake.jobs.runner import Runner, runner_of
from quantum.lake.jobs.views import View, ViewWriter, checked
from quantum.lake.table import (
    DataFile,
    FileGone,
    FileKind,
    StreamName,
    Table,
    TableOperation,
    TableState,
    TableStore,
    VersionProposal,
    digest_of,
    rewritten_name,
    uncovered,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "backfill"
_ATTEMPTS: Final = 16


@dataclass(frozen=True, slots=True)
class Missing:
    """One view, and from which offset on it lacks the rows of one stream, through the last."""

    view: View
    stream: StreamName
    first: int
    last: int
    rows: tuple[DataFile, ...]
    """The files that hold these rows."""
    replaced: tuple[DataFile, ...]
    """What the view has of them already, under another description or with holes."""
    dead: tuple[DataFile, ...]
    """Dead letters of these offsets, of any view."""


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What was written."""

    rows: int = 0
    dead: int = 0
    views: tuple[str, ...] = ()


def digest_of_view(view: View) -> str:
    """Tell one description of a view from every other."""
    return digest_of(msgspec.json.encode(view, order="deterministic"))


def digests_of(views: Sequence[View]) -> dict[str, str]:
    return {view.name: digest_of_view(view) for view in views}


def backfill(
    table: str | TableStore | Table,
    views: Sequence[View],
    *,
    spark: SparkSession | Runner | None = None,
    progress: Progress = silence,
) -> Backfilled:
    """Make views whole. Does nothing for those that are; another writer's commit means again.

    Raises TableError.
    """
    checked(tuple(views))
    opened = table if isinstance(table, Table) else table_state(table)[0]
    for _ in range(_ATTEMPTS):
        state = opened.refresh()
        missing = plan_backfill(state, views)
        if not missing:
            return Backfilled()
        try:
            return _write(opened, state, missing, runner_of(spark), progress)
        except FileGone:
            progress(Step(JOB, "another writer was quicker: once more"))
    return Backfilled()


def plan_backfill(state: TableState, views: Sequence[View]) -> list[Missing]:
    """Say what views lack. Pure.

    A file of a view that reaches into what is missing is replaced as a whole, so what it holds is
    written again from its first offset on.
    """
    found: list[Missing] = []
    for view in views:
        wanted = uncovered(state.views, state.ranges, view.name, digest_of_view(view))
        for stream, each in sorted(wanted.items()):
            mine = [
                file for file in state.of_kind(FileKind.TYPED, view.name) if file.stream == stream
            ]
            replaced = [file for file in mine if file.last >= each.first]
            first = min([each.first, *(file.first for file in replaced)])
            replaced = [file for file in mine if file.last >= first]
            found.append(
                Missing(
                    view,
                    stream,
                    first,
                    each.last,
                    _within(state, FileKind.ROWS, stream, first),
                    tuple(replaced),
                    _within(state, FileKind.DEAD, stream, first),
                )
            )
    return found


def _within(
    state: TableState, kind: FileKind, stream: StreamName, first: int
) -> tuple[DataFile, ...]:
    files = state.of_kind(kind)
    return tuple(file for file in files if file.stream == stream and file.last >= first)


def _write(
    table: Table, state: TableState, missing: list[Missing], runner: Runner, progress: Progress
) -> Backfilled:
    work = partial(write_views, table.store, int(state.version))
    made = [file for files in runner.run(work, by_stream(missing)) for file in files]
    gone = {file.path for each in missing for file in (*each.replaced, *each.dead)}
    views = tuple({each.view.name: each.view for each in missing}.values())
    table.commit(
        VersionProposal(
            TableOperation.BACKFILL,
            state.schema_version,
            add=tuple(made),
            remove=tuple(sorted(gone)),
            base=int(state.version),
            views=digests_of(views),
        ),
        at_ms=wall_clock_ms(),
    )
    done = Backfilled(
        sum(file.rows for file in made if file.kind == FileKind.TYPED),
        sum(file.rows for file in made if file.kind == FileKind.DEAD),
        tuple(view.name for view in views),
    )
    names = ", ".join(done.views)
    progress(Step(JOB, f"{names}: {done.rows} rows and {done.dead} dead letters are written"))
    return done


def by_stream(missing: Sequence[Missing]) -> list[list[Missing]]:
    """One task for each stream: its dead letters are rewritten once, for all views."""
    streams: dict[StreamName, list[Missing]] = {}
    for each in missing:
        streams.setdefault(each.stream, []).append(each)
    return list(streams.values())


def write_views(store: TableStore, base: int, missing: list[Missing]) -> list[DataFile]:
    """Write what the views of one stream lack. Runs where Spark says."""
    prg = PrgId.parse(missing[0].stream)

    def name_of(*_: int) -> str:
        return rewritten_name(base, secrets.token_hex(8))

    made = _kept_dead_letters(store, prg, missing, name_of)
    for each in missing:
        writer = ViewWriter(store, prg, (each.view,), name_of)
        for file in each.rows:
            rows = read_file(store, file)
            rows = rows.filter(pc.field("raft_index") >= each.first)
            for batch in rows.combine_chunks().to_batches():
                writer.write(batch)
        made += writer.finish()
    return made


def _kept_dead_letters(
    store: TableStore, prg: PrgId, missing: list[Missing], name_of: object
) -> list[DataFile]:
    """Write dead letters again, but for those of offsets that a view is written for now."""
    first = {each.view.name: each.first for each in missing}
    sink = RowSink(store, prg, kind=FileKind.DEAD, name_of=name_of)
    files = {file.path: file for each in missing for file in each.dead}
    for file in sorted(files.values(), key=lambda each: (each.first, each.path)):
        letters = read_file(store, file)
        keep = [
            view not in first or index < first[view]
            for view, index in zip(
                letters.column("view").to_pylist(),
                letters.column("raft_index").to_pylist(),
                strict=True,
            )
        ]
        for batch in letters.filter(pa.array(keep, pa.bool_())).combine_chunks().to_batches():
            sink.write(batch)
    return sink.finish()
