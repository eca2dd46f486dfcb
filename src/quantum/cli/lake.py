"""`quantum lake`: the jobs of the lake. Spark and Arrow are imported when a job needs them."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from quantum.cli.credentials import speaking, tell_children
from quantum.cli.exits import Exit, fail
from quantum.cli.lake_running import (
    progress_of,
    rounded,
    running,
    said_plainly,
    say,
    show_rows,
    spark_running,
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


Cluster = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Admin addresses of a running cluster.")
]
Archive = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Its archive; alone, or behind what the cluster has."),
]
Data = Annotated[
    str | None, typer.Option(metavar="DIR", help="The directory of a stopped broker instead.")
]
TablePath = Annotated[
    str, typer.Option("--table", metavar="PATH", help="The table: a directory or a URL.")
]
Keys = Annotated[
    str,
    typer.Option(help="Where keys come from: directory[:PATH], env:NAME or module:NAME."),
]
BrokerDirectory = Annotated[
    str | None,
    typer.Option("--broker", metavar="DIR", help="A directory with the cluster's broker.json."),
]
Master = Annotated[
    str | None,
    typer.Option(help="Spark's master, or `inline` for this process; default: all cores here."),
]
Conf = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark; repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one line for each thing.")]


def where_of(cluster: str | None, archive: str | None, data: str | None) -> str:
    """Return what `open_source` takes."""
    if data is not None and cluster is None and archive is None:
        return data
    if data is not None or (cluster is None and archive is None):
        fail("say where the logs are: --cluster, --archive, both, or --data", Exit.USAGE)
    if cluster is None:
        assert archive is not None
        return archive if "://" in archive else Path(archive).absolute().as_uri()
    tell_children()
    return f"cluster:{cluster}" + (f"+{archive}" if archive else "")


@app.command()
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
@speaking
def verify(  # noqa: PLR0917  # typer
    table: TablePath,
    cluster: Cluster = None,
    archive: Archive = None,
    data: Data = None,
    keys: Keys = "directory",
    broker: BrokerDirectory = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Compare a table with its log, row by row, and print the Merkle root of what was compared.

    Exit code 0: equal. 6: something differs, and is named. 3: equal as far as it could be
    compared; the source cannot judge some offsets any more.
    """
    from quantum.lake.jobs.verify import verify as run

    where = where_of(cluster, archive, data)
    with (
        said_plainly(),
        running(master, "verify", conf) as runner,
        progress_of("verify", as_json) as show,
    ):
        verdict = run(where, table, spark=runner, keys=keys, broker=broker, progress=show)
    for each in verdict.partitions:
        sentence = (
            f"{each.prg}: entries {each.first} to {each.last}, {each.rows_log} rows in the log, "
            f"{each.rows_table} in the table: {'equal' if each.is_equal else 'DIFFERENT'}"
        )
        say(asdict(each) | {"equal": each.is_equal}, as_json, sentence)
    findings = [each for partition in verdict.partitions for each in partition.findings]
    for finding in (*findings, *verdict.strays):
        if not as_json:
            place = (
                f"{finding.prg} at {finding.raft_index}.{finding.sub_index}: "
                if finding.prg
                else ""
            )
            typer.echo(f"  {finding.kind}: {place}{finding.sentence}")
    say(
        {
            "equal": verdict.is_equal,
            "whole": verdict.is_whole,
            "root": verdict.root,
            "version": verdict.version,
            "strays": [asdict(each) for each in verdict.strays],
        },
        as_json,
        f"Merkle root {verdict.root}",
    )
    if not verdict.is_equal:
        fail("the table is not what the log says", Exit.QUARANTINED)
    if not verdict.is_whole:
        fail("some offsets could not be compared: their log is gone", Exit.NOT_FOUND)


@app.command()
@speaking
def replay(  # noqa: PLR0917  # typer
    cluster: Cluster = None,
    archive: Archive = None,
    data: Data = None,
    keys: Keys = "directory",
    broker: BrokerDirectory = None,
    to_index: Annotated[int | None, typer.Option("--to", min=0, help="The last index.")] = None,
    at_ms: Annotated[
        int | None, typer.Option("--at-ms", min=0, help="The last moment, in ms since 1970.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="Another copy of the logs: a directory or a URL."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Compare with the digests of the running --cluster.")
    ] = False,
    state: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write the state as Parquet tables here.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Apply every log again with the broker's own machine, and print each partition's digest.

    Exit code 6: another copy, or the cluster, has another state; partition and index are named.
    """
    from quantum.lake.jobs.live import live_digests
    from quantum.lake.jobs.replay import Moment, compare_digests, find_divergences
    from quantum.lake.jobs.replay import replay as run
    from quantum.lake.jobs.state_tables import write_state

    where = where_of(cluster, archive, data)
    with (
        said_plainly(),
        running(master, "replay", conf) as runner,
        progress_of("replay", as_json) as show,
    ):
        at = Moment(to_index, at_ms)
        known = live_digests(cluster) if live and cluster is not None else {}
        indexes = {prg: index for prg, (index, _) in known.items()}
        found = run(
            where, spark=runner, keys=keys, broker=broker, at=at, indexes=indexes, progress=show
        )
        diverging = compare_digests(found, known)
        if against is not None:
            diverging += find_divergences(where, against, spark=runner, keys=keys, broker=broker)
        if state is not None:
            write_state(where, state, spark=runner, keys=keys, broker=broker, at=at)
    for each in found:
        say(
            asdict(each),
            as_json,
            f"{each.prg} at {each.index}: {each.digest} "
            f"(from {each.snapshot_index}; {each.sessions} sessions, {each.retained} retained)",
        )
    for divergence in diverging:
        say(
            asdict(divergence),
            as_json,
            f"{divergence.prg} differs {'from' if divergence.is_first else 'at'} index "
            f"{divergence.first_index} on: {divergence.ours} here, {divergence.theirs} there",
        )
    if diverging:
        first = diverging[0]
        fail(f"{first.prg} diverges at index {first.first_index}", Exit.QUARANTINED)


@app.command()
def compact(  # noqa: PLR0917  # typer
    table: TablePath,
    file_bytes: Annotated[int, typer.Option(min=1, help="How large a file becomes.")] = 128 << 20,
    files_min: Annotated[int, typer.Option(min=2, help="Leave fewer small files alone.")] = 4,
    clean: Annotated[
        bool, typer.Option("--clean", help="Delete what no version can name, after a day.")
    ] = False,
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
        done = run(table, spark=runner, file_bytes=file_bytes, files_min=files_min, progress=show)
        gone = clean_table(table) if clean else []
    say(
        asdict(done) | {"cleaned": len(gone)},
        as_json,
        f"{done.files_before} files became {done.files_after}; {len(gone)} were deleted",
    )


@app.command()
def usage(  # noqa: PLR0917  # typer
    table: TablePath,
    limits: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Print what exceeds these limits (TOML).")
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write the rows as Parquet here.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Count messages, bytes, publishers and sessions per tenant, topic and hour.

    Exit code 13: a tenant exceeded one of the limits.
    """
    from quantum.lake.jobs.usage import breaches, read_limits
    from quantum.lake.jobs.usage import usage as run

    with said_plainly(), spark_running(master, "usage", conf) as spark:
        frame = run(spark, table)
        if out is not None:
            frame.write.mode("overwrite").parquet(out)
        rows = [row.asDict() for row in frame.collect()]
        allowed = {} if limits is None else read_limits(limits)
        beyond = [row.asDict() for row in breaches(spark, table, allowed).collect()]
    show_rows("usage", rows, as_json)
    if beyond:
        show_rows("beyond the limits", beyond, as_json)
        fail(f"{len(beyond)} limits were exceeded", Exit.CONFLICT)


@app.command()
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
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Verify the signature chains of audit logs in parallel, and print who did what.

    Exit code 6: a log is not what was written.
    """
    from quantum.lake.jobs.audit import Question
    from quantum.lake.jobs.audit import audit as run

    with (
        said_plainly(),
        running(master, "audit", conf) as runner,
        progress_of("audit", as_json) as show,
    ):
        question = Question(who, what, tenant, outcome, since_ms)
        audited, events = run(
            directories, spark=runner, keys=keys, question=question, progress=show
        )
    show_rows("events", events, as_json)
    for each in audited:
        verdict = "intact" if each.is_intact else f"{each.fault} (line {each.fault_line})"
        say(asdict(each), as_json, f"{each.log}: {each.events} events: {verdict}")
    if not all(each.is_intact for each in audited):
        fail("a log is not what was written", Exit.QUARANTINED)


@app.command()
def simulate(  # noqa: PLR0917  # typer
    sessions: Annotated[int, typer.Option(min=1, help="How many sessions.")] = 100_000_000,
    prgs: Annotated[int, typer.Option(min=1, help="How many partitions.")] = 2_000,
    grown_prgs: Annotated[int, typer.Option(min=1, help="And after growth.")] = 2_100,
    cross_ratio: Annotated[
        float, typer.Option(min=0, max=1, help="Publishes whose topic is in another partition.")
    ] = 0.5,
    nodes: Annotated[int, typer.Option(min=3, help="How many nodes.")] = 300,
    commits: Annotated[int, typer.Option(min=1, help="Commits per second and partition.")] = 500,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Place every session of a fleet on the ring: load, growth, and throughput (quantumqtt §14)."""
    from quantum.lake.jobs.simulate import Fleet
    from quantum.lake.jobs.simulate import simulate as run

    fleet = Fleet(sessions, prgs, grown_prgs, cross_ratio, nodes, commits)
    with (
        said_plainly(),
        running(master, "simulate", conf) as runner,
        progress_of("simulate", as_json) as show,
    ):
        found = run(fleet, spark=runner, progress=show)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    rows = [{"figure": name, "value": rounded(value)} for name, value in asdict(found).items()]
    show_rows(f"{sessions:,} sessions on {prgs:,} partitions", rows, as_json)


@app.command()
def report(
    table: TablePath,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")],
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Write a page about a table, with plots inside it."""
    from quantum.lake.jobs.report import report as run

    with said_plainly(), spark_running(master, "report", conf) as spark:
        page = run(spark, table)
    try:
        out.write_text(page)
    except OSError as error:
        fail(f"cannot write {out}: {error}", Exit.FAILED)
    say({"file": str(out), "bytes": len(page)}, as_json, f"{out}: {len(page):,} bytes")


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
