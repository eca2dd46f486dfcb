"""`quantum lake`: the jobs of the lake. Spark and Arrow are imported when a job needs them."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.lake_asking import audit, report, simulate, usage
from quantum.cli.lake_comparing import replay, verify
from quantum.cli.lake_options import AgainOptions, LogOptions, RunOptions, TablePath, grouped
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


@app.command()
@checked_paths
@speaking
@grouped
def ingest(  # noqa: PLR0917  # typer
    table: TablePath,
    logs: LogOptions,
    options: RunOptions,
    once: Annotated[bool, typer.Option("--once", help="All that is there, then stop.")] = False,
    views: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Typed views to write as well (TOML).")
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="delta|iceberg",
            help="Keep a log of the files in this format, too; repeatable.",
        ),
    ] = None,
    delta: Annotated[bool, typer.Option("--delta", help="The same as --format delta.")] = False,
    from_earliest: Annotated[
        bool, typer.Option("--from-earliest", help="Begin with what is left of a log.")
    ] = False,
    gap_rows: Annotated[
        bool, typer.Option("--gap-rows", help="Write a row where entries are gone, and go on.")
    ] = False,
    loose: Annotated[
        bool, typer.Option("--loose", help="Take rows although nobody knows what was refused.")
    ] = False,
    batch_bytes: Annotated[int, typer.Option(min=1, help="How much one commit takes in.")] = 1
    << 30,
    compact_every: Annotated[
        int, typer.Option(min=0, help="Compact after so many commits; 0: never.")
    ] = 64,
) -> None:
    """Turn the messages of a log into rows of a table, each once, now or continuously.

    How far it got is in the table's commits: run it again, kill it, run two of them.
    """
    from quantum.lake.jobs.compact import compact as compact_table
    from quantum.lake.jobs.ingest import IngestSettings
    from quantum.lake.jobs.ingest import ingest as run
    from quantum.lake.jobs.mirrors import mirrors_of
    from quantum.lake.jobs.views import read_views
    from quantum.lake.planner import Limits, OnGap
    from quantum.lake.table import Table, open_store

    with said_plainly():
        mirrors = mirrors_of([*(formats or []), *(["delta"] if delta else [])])
        described = read_views(views) if views is not None else ()
    where, source = checked_logs(logs, waits=not once)
    with (
        until_told() as told,
        job_of("ingest", options, lambda: size_of(source, table), is_told=not once) as job,
    ):
        settings = IngestSettings(
            limits=Limits(bytes=batch_bytes),
            on_gap=OnGap.ROW if gap_rows else OnGap.FAIL,
            from_earliest=from_earliest,
            loose=loose,
            views=described,
        )

        def after_commit(opened: Table) -> None:
            if compact_every and opened.state.version % compact_every == 0:
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
            once=once,
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
