"""`quantum lake usage`, `audit`, `simulate` and `report`: what can be asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from quantum.cli.exits import Exit, fail
from quantum.cli.lake_options import AgainOptions, Resume, RunOptions, TablePath
from quantum.cli.lake_running import Job, job_of, repeat, rounded, say, show_rows
from quantum.cli.option_groups import grouped

Limits = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Show what exceeds these limits (TOML).")
]


@grouped
def usage(
    table: TablePath,
    again: AgainOptions,
    options: RunOptions,
    limits: Limits = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write the rows as Parquet here.")
    ] = None,
) -> None:
    """Count messages, bytes, publishers and sessions per tenant, topic and hour.

    Exit code 13: a tenant exceeded one of the limits. With --every it ends there, too.
    """
    from quantum.lake.jobs.choosing import table_bytes
    from quantum.lake.jobs.measuring import breach_rows, usage_rows, write_usage
    from quantum.lake.jobs.usage import read_limits

    with job_of("usage", options, lambda: table_bytes(table)) as job:
        allowed = {} if limits is None else read_limits(limits)

        def one() -> None:
            with _watched("usage", job):
                rows = usage_rows(job.spark, table, progress=job.show)
                if out is not None:
                    write_usage(job.spark, table, rows, out)
                beyond = breach_rows(job.spark, table, allowed)
            show_rows("usage", rows, options.as_json)
            if beyond:
                show_rows("beyond the limits", beyond, options.as_json)
                fail(f"{len(beyond)} limits were exceeded", Exit.CONFLICT)

        repeat(one, again)


@contextmanager
def _watched(name: str, job: Job) -> Iterator[None]:
    """Tell how far Spark is, where it is Spark that works."""
    from quantum.lake.jobs.watching import watching

    if job.spark is None:
        yield
        return
    with watching(job.spark, name, job.show):
        yield


@grouped
def audit(  # noqa: PLR0917  # typer
    directories: Annotated[
        list[str], typer.Argument(metavar="DIR…", help="Audit logs, or nodes' data directories.")
    ],
    again: AgainOptions,
    options: RunOptions,
    keys: Annotated[
        str | None, typer.Option(help="Public keys to trust: an audit-keys.json.")
    ] = None,
    who: Annotated[str, typer.Option(help="Only identities that contain this.")] = "",
    what: Annotated[str, typer.Option(help="Only actions that contain this.")] = "",
    tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "",
    outcome: Annotated[str, typer.Option(help="Only outcomes that contain this.")] = "",
    since_ms: Annotated[int, typer.Option(min=0, help="Only from this moment on.")] = 0,
    resume: Resume = None,
) -> None:
    """Verify the signature chains of audit logs in parallel, and print who did what.

    Exit code 6: a log is not what was written. With --every it ends there, too.
    """
    from quantum.lake.jobs.audit import EventQuestion
    from quantum.lake.jobs.audit import audit as run
    from quantum.lake.jobs.choosing import audit_bytes
    from quantum.lake.jobs.resuming import resuming

    question = EventQuestion(who, what, tenant, outcome, since_ms)
    with job_of("audit", options, lambda: audit_bytes(directories)) as job:

        def one() -> None:
            with resuming(job.runner, resume) as runner:
                audited, events = run(
                    directories, spark=runner, keys=keys, question=question, progress=job.show
                )
            show_rows("events", events, options.as_json)
            for log in audited:
                verdict = "intact" if log.is_intact else f"{log.fault} (line {log.fault_line})"
                say(asdict(log), options.as_json, f"{log.log}: {log.events} events: {verdict}")
            if not all(log.is_intact for log in audited):
                fail("a log is not what was written", Exit.QUARANTINED)

        repeat(one, again)


@grouped
def simulate(  # noqa: PLR0917  # typer
    options: RunOptions,
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
) -> None:
    """Place every session of a fleet on the ring: load, growth, and throughput (quantumqtt §14)."""
    import pyarrow.parquet as pq

    from quantum.lake.jobs.choosing import SESSION_BYTES
    from quantum.lake.jobs.resuming import resuming
    from quantum.lake.jobs.simulate import Fleet, loads_of
    from quantum.lake.jobs.simulate import simulate as run

    fleet = Fleet(sessions, prgs, grown_prgs, cross_ratio, nodes, commits)
    with (
        job_of("simulate", options, lambda: sessions * SESSION_BYTES) as job,
        resuming(job.runner, resume) as runner,
    ):
        found = run(fleet, spark=runner, progress=job.show)
        if loads is not None:
            pq.write_table(loads_of(found), loads)
    figures = {name: value for name, value in asdict(found).items() if name != "loads"}
    if options.as_json:
        typer.echo(json.dumps(figures))
        return
    rows = [{"figure": name, "value": rounded(value)} for name, value in figures.items()]
    show_rows(f"{sessions:,} sessions on {prgs:,} partitions", rows, options.as_json)


@grouped
def report(  # noqa: PLR0917  # typer
    table: TablePath,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")],
    again: AgainOptions,
    options: RunOptions,
    limits: Limits = None,
    loads: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plot what `simulate --loads` wrote, too.")
    ] = None,
) -> None:
    """Write a page about a table, with plots inside it."""
    import pyarrow.parquet as pq

    from quantum.lake.jobs.choosing import table_bytes
    from quantum.lake.jobs.report import report as run
    from quantum.lake.jobs.usage import read_limits

    with job_of("report", options, lambda: table_bytes(table)) as job:
        allowed = {} if limits is None else read_limits(limits)
        fleet = None if loads is None else pq.read_table(loads)

        def one() -> None:
            with _watched("report", job):
                page = run(job.spark, table, limits=allowed, loads=fleet, progress=job.show)
            out.write_text(page)
            document = {"file": str(out), "bytes": len(page)}
            say(document, options.as_json, f"{out}: {len(page):,} bytes")

        repeat(one, again)
