"""`quantum lake`: the jobs of the lake. Spark and Arrow are imported when a job needs them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.lake_asking import audit, report, simulate, usage
from quantum.cli.lake_comparing import replay, verify
from quantum.cli.lake_options import AgainOptions, LogOptions, RunOptions, TablePath
from quantum.cli.lake_paths import checked_paths
from quantum.cli.lake_running import (
    checked_logs,
    job_of,
    repeat,
    said_plainly,
    say,
    size_of,
    until_told,
)
from quantum.cli.option_groups import grouped

app = typer.Typer(
    help="Logs as tables: ingest, verify, replay, and what can be asked of them.",
    no_args_is_help=True,
)

EXTRA = ("pyarrow", "pyspark", "fastavro", "matplotlib")


@app.callback()
def _needs_the_extra() -> None:
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        fail(
            f"not installed: {', '.join(missing)}; install the extra 'lake' (quantum-mq[lake]), "
            "or in a clone run make setup-dev",
            Exit.FAILED,
        )


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """What is taken from the logs, and what is written beside the table."""

    once: Annotated[bool, typer.Option("--once", help="All that is there, then stop.")] = False
    views: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Typed views to write as well (TOML).")
    ] = None
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="delta|iceberg",
            help="Keep a log of the files in this format, too; repeatable.",
        ),
    ] = None
    delta: Annotated[bool, typer.Option("--delta", help="The same as --format delta.")] = False
    from_earliest: Annotated[
        bool, typer.Option("--from-earliest", help="Begin with what is left of a log.")
    ] = False
    gap_rows: Annotated[
        bool, typer.Option("--gap-rows", help="Write a row where entries are gone, and go on.")
    ] = False
    loose: Annotated[
        bool, typer.Option("--loose", help="Take rows although nobody knows what was refused.")
    ] = False
    batch_bytes: Annotated[int, typer.Option(min=1, help="How much one commit takes in.")] = 1 << 30
    compact_every: Annotated[
        int, typer.Option(min=0, help="Compact after so many commits; 0: never.")
    ] = 64

    def mirrors(self) -> list[str]:
        """Name the formats that the table is kept in, too."""
        return [*(self.formats or []), *(["delta"] if self.delta else [])]


@app.command()
@checked_paths
@speaking
@grouped
def ingest(
    table: TablePath,
    logs: LogOptions,
    options: RunOptions,
    wanted: IngestOptions,
) -> None:
    """Turn the messages of a log into rows of a table, each once, now or continuously.

    How far it got is in the table's commits: run it again, kill it, run two of them.
    """
    from quantum.lake.jobs.compact import compact as compact_table
    from quantum.lake.jobs.ingest import IngestSettings
    from quantum.lake.jobs.ingest import ingest as run
    from quantum.lake.jobs.mirrors import mirrors_of
    from quantum.lake.jobs.views import read_views
    from quantum.lake.planner import BatchLimits, OnGap
    from quantum.lake.table import Table, open_store

    with said_plainly():
        mirrors = mirrors_of(wanted.mirrors())
        described = read_views(wanted.views) if wanted.views is not None else ()
    where, source = checked_logs(logs, waits=not wanted.once)
    with (
        until_told() as told,
        job_of("ingest", options, lambda: size_of(source, table), is_told=not wanted.once) as job,
    ):
        settings = IngestSettings(
            limits=BatchLimits(bytes=wanted.batch_bytes),
            on_gap=OnGap.ROW if wanted.gap_rows else OnGap.FAIL,
            from_earliest=wanted.from_earliest,
            loose=wanted.loose,
            views=described,
        )

        def after_commit(opened: Table) -> None:
            every = wanted.compact_every
            if every and opened.state.version % every == 0:
                compact_table(opened.store, spark=job.runner, progress=job.show)
            for mirror in mirrors:
                mirror(opened)

        report = run(
            where,
            table,
            spark=job.runner,
            keys=logs.keys,
            broker=logs.broker,
            settings=settings,
            once=wanted.once,
            progress=job.show,
            should_stop=told,
            after_commit=after_commit,
        )
        for mirror in mirrors:  # also where nothing was new, and an earlier run died before it
            mirror(Table.open(open_store(table)))
    say(
        asdict(report),
        options.as_json,
        f"{report.rows} rows in {report.commits} commits, {report.dead} dead letters",
    )


@app.command()
@grouped
def compact(  # noqa: PLR0917  # typer
    table: TablePath,
    again: AgainOptions,
    options: RunOptions,
    file_bytes: Annotated[int, typer.Option(min=1, help="How large a file becomes.")] = 128 << 20,
    files_min: Annotated[int, typer.Option(min=2, help="Leave fewer small files alone.")] = 4,
    clean: Annotated[
        bool, typer.Option("--clean", help="Delete what no version can name, after a day.")
    ] = False,
) -> None:
    """Make few large files of many small ones; the rows stay what they are."""
    from quantum.lake.jobs.choosing import table_bytes
    from quantum.lake.jobs.compact import clean as clean_table
    from quantum.lake.jobs.compact import compact as run

    with job_of("compact", options, lambda: table_bytes(table)) as job:

        def one() -> None:
            limits = {"file_bytes": file_bytes, "files_min": files_min}
            done = run(table, spark=job.runner, progress=job.show, **limits)
            gone = clean_table(table) if clean else []
            say(
                asdict(done) | {"cleaned": len(gone)},
                options.as_json,
                f"{done.files_before} files became {done.files_after}; {len(gone)} were deleted",
            )

        repeat(one, again)


for _command in (verify, replay, usage, audit, simulate, report):
    app.command()(checked_paths(_command))


@app.command()
def package(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The zip to write.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write the packages that Spark's workers need, for `--py-files`."""
    from quantum.lake.package import build_package

    try:
        written = build_package(target)
    except OSError as error:
        fail(f"cannot write {target}: {error}", Exit.FAILED)
    size = written.stat().st_size
    say({"file": str(written), "bytes": size}, as_json, f"{written}: {size:,} bytes")
