"""`quantum lake usage`, `audit`, `simulate` and `report`: what can be asked."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from quantum.cli.exits import Exit, fail
from quantum.cli.lake_options import AsJson, Conf, Every, Master, Once, Resume, TablePath
from quantum.cli.lake_running import (
    progress_of,
    repeat,
    rounded,
    running,
    said_plainly,
    say,
    show_rows,
    spark_running,
)

Limits = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Show what exceeds these limits (TOML).")
]


def usage(  # noqa: PLR0917  # typer
    table: TablePath,
    limits: Limits = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write the rows as Parquet here.")
    ] = None,
    once: Once = False,
    every: Every = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Count messages, bytes, publishers and sessions per tenant, topic and hour.

    Exit code 13: a tenant exceeded one of the limits. With --every it ends there, too.
    """
    from quantum.lake.jobs.usage import breaches, read_limits
    from quantum.lake.jobs.usage import usage as run
    from quantum.lake.jobs.watching import watching

    with (
        said_plainly(),
        spark_running(master, "usage", conf) as spark,
        progress_of("usage", as_json) as show,
    ):
        allowed = {} if limits is None else read_limits(limits)

        def one() -> None:
            with watching(spark, "usage", show):
                frame = run(spark, table)
                if out is not None:
                    frame.write.mode("overwrite").parquet(out)
                rows = [row.asDict() for row in frame.collect()]
                beyond = [row.asDict() for row in breaches(spark, table, allowed).collect()]
            show_rows("usage", rows, as_json)
            if beyond:
                show_rows("beyond the limits", beyond, as_json)
                fail(f"{len(beyond)} limits were exceeded", Exit.CONFLICT)

        repeat(one, once, every)


def audit(  # noqa: PLR0917  # typer
    directories: Annotated[
        list[str], typer.Argument(metavar="DIR…", help="Audit logs, or nodes' data directories.")
    ],
    keys: Annotated[
        str | None, typer.Option(help="Public keys to trust: an audit-keys.json.")
    ] = None,
    who: Annotated[str, typer.Option(help="Only identities that contain this.")] = "",
    what: Annotated[str, typer.Option(help="Only actions that contain this.")] = "",
    tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "",
    outcome: Annotated[str, typer.Option(help="Only outcomes that contain this.")] = "",
    since_ms: Annotated[int, typer.Option(min=0, help="Only from this moment on.")] = 0,
    once: Once = False,
    every: Every = None,
    resume: Resume = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Verify the signature chains of audit logs in parallel, and print who did what.

    Exit code 6: a log is not what was written. With --every it ends there, too.
    """
    from quantum.lake.jobs.audit import Question
    from quantum.lake.jobs.audit import audit as run
    from quantum.lake.jobs.resuming import resuming

    question = Question(who, what, tenant, outcome, since_ms)
    with (
        said_plainly(),
        running(master, "audit", conf) as runner,
        progress_of("audit", as_json) as show,
    ):

        def one() -> None:
            with resuming(runner, resume) as each:
                audited, events = run(
                    directories, spark=each, keys=keys, question=question, progress=show
                )
            show_rows("events", events, as_json)
            for log in audited:
                verdict = "intact" if log.is_intact else f"{log.fault} (line {log.fault_line})"
                say(asdict(log), as_json, f"{log.log}: {log.events} events: {verdict}")
            if not all(log.is_intact for log in audited):
                fail("a log is not what was written", Exit.QUARANTINED)

        repeat(one, once, every)


def simulate(  # noqa: PLR0917  # typer
    sessions: Annotated[int, typer.Option(min=1, help="How many sessions.")] = 100_000_000,
    prgs: Annotated[int, typer.Option(min=1, help="How many partitions.")] = 2_000,
    grown_prgs: Annotated[int, typer.Option(min=1, help="And after growth.")] = 2_100,
    cross_ratio: Annotated[
        float, typer.Option(min=0, max=1, help="Publishes whose topic is in another partition.")
    ] = 0.5,
    nodes: Annotated[int, typer.Option(min=3, help="How many nodes.")] = 300,
    commits: Annotated[int, typer.Option(min=1, help="Commits per second and partition.")] = 500,
    loads: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write each partition's load as Parquet.")
    ] = None,
    resume: Resume = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Place every session of a fleet on the ring: load, growth, and throughput (quantumqtt §14)."""
    import pyarrow.parquet as pq

    from quantum.lake.jobs.resuming import resuming
    from quantum.lake.jobs.simulate import Fleet, loads_of
    from quantum.lake.jobs.simulate import simulate as run

    fleet = Fleet(sessions, prgs, grown_prgs, cross_ratio, nodes, commits)
    with (
        said_plainly(),
        running(master, "simulate", conf) as runner,
        progress_of("simulate", as_json) as show,
        resuming(runner, resume) as each,
    ):
        found = run(fleet, spark=each, progress=show)
        if loads is not None:
            pq.write_table(loads_of(found), loads)
    figures = {name: value for name, value in asdict(found).items() if name != "loads"}
    if as_json:
        typer.echo(json.dumps(figures))
        return
    rows = [{"figure": name, "value": rounded(value)} for name, value in figures.items()]
    show_rows(f"{sessions:,} sessions on {prgs:,} partitions", rows, as_json)


def report(  # noqa: PLR0917  # typer
    table: TablePath,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")],
    limits: Limits = None,
    loads: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plot what `simulate --loads` wrote, too.")
    ] = None,
    once: Once = False,
    every: Every = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Write a page about a table, with plots inside it."""
    import pyarrow.parquet as pq

    from quantum.lake.jobs.report import report as run
    from quantum.lake.jobs.usage import read_limits
    from quantum.lake.jobs.watching import watching

    with (
        said_plainly(),
        spark_running(master, "report", conf) as spark,
        progress_of("report", as_json) as show,
    ):
        allowed = {} if limits is None else read_limits(limits)
        fleet = None if loads is None else pq.read_table(loads)

        def one() -> None:
            with watching(spark, "report", show):
                page = run(spark, table, limits=allowed, loads=fleet)
            out.write_text(page)
            say({"file": str(out), "bytes": len(page)}, as_json, f"{out}: {len(page):,} bytes")

        repeat(one, once, every)
