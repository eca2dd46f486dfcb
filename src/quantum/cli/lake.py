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
from quantum.cli.lake_options import (
    Archive,
    AsJson,
    BrokerDirectory,
    Cluster,
    Conf,
    Data,
    Every,
    Keys,
    Master,
    Once,
    TablePath,
    where_of,
)
from quantum.cli.lake_paths import checked_paths
from quantum.cli.lake_running import (
    progress_of,
    repeat,
    running,
    said_plainly,
    say,
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
def ingest(  # noqa: PLR0917  # typer
    table: TablePath,
    cluster: Cluster = None,
    archive: Archive = None,
    data: Data = None,
    keys: Keys = "directory",
    broker: BrokerDirectory = None,
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
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
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

    where = where_of(cluster, archive, data)
    with said_plainly():
        mirrors = mirrors_of([*(formats or []), *(["delta"] if delta else [])])
    with (
        until_told() as told,
        said_plainly(),
        running(master, "ingest", conf) as runner,
        progress_of("ingest", as_json) as show,
    ):
        settings = IngestSettings(
            limits=Limits(bytes=batch_bytes),
            on_gap=OnGap.ROW if gap_rows else OnGap.FAIL,
            from_earliest=from_earliest,
            loose=loose,
            views=read_views(views) if views is not None else (),
        )

        def after_commit(opened: Table) -> None:
            if compact_every and opened.state.version % compact_every == 0:
                compact_table(opened.store, spark=runner, progress=show)
            for mirror in mirrors:
                mirror(opened)

        report = run(
            where,
            table,
            spark=runner,
            keys=keys,
            broker=broker,
            settings=settings,
            once=once,
            progress=show,
            should_stop=told,
            after_commit=after_commit,
        )
        for mirror in mirrors:  # also where nothing was new, and an earlier run died before it
            mirror(Table.open(open_store(table)))
    say(
        asdict(report),
        as_json,
        f"{report.rows} rows in {report.commits} commits, {report.dead} dead letters",
    )


@app.command()
def compact(  # noqa: PLR0917  # typer
    table: TablePath,
    file_bytes: Annotated[int, typer.Option(min=1, help="How large a file becomes.")] = 128 << 20,
    files_min: Annotated[int, typer.Option(min=2, help="Leave fewer small files alone.")] = 4,
    clean: Annotated[
        bool, typer.Option("--clean", help="Delete what no version can name, after a day.")
    ] = False,
    once: Once = False,
    every: Every = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Make few large files of many small ones; the rows stay what they are."""
    from quantum.lake.jobs.compact import clean as clean_table
    from quantum.lake.jobs.compact import compact as run

    with (
        said_plainly(),
        running(master, "compact", conf) as runner,
        progress_of("compact", as_json) as show,
    ):

        def one() -> None:
            limits = {"file_bytes": file_bytes, "files_min": files_min}
            done = run(table, spark=runner, progress=show, **limits)
            gone = clean_table(table) if clean else []
            say(
                asdict(done) | {"cleaned": len(gone)},
                as_json,
                f"{done.files_before} files became {done.files_after}; {len(gone)} were deleted",
            )

        repeat(one, once, every)


for _command in (verify, replay, usage, audit, simulate, report):
    app.command()(checked_paths(_command))


@app.command()
def package(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The zip to write.")],
    as_json: AsJson = False,
) -> None:
    """Write the packages that Spark's workers need, for `--py-files`."""
    from quantum.lake.package import build_package

    try:
        written = build_package(target)
    except OSError as error:
        fail(f"cannot write {target}: {error}", Exit.FAILED)
    size = written.stat().st_size
    say({"file": str(written), "bytes": size}, as_json, f"{written}: {size:,} bytes")
