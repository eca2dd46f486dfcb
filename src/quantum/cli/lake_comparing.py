"""`quantum lake verify` and `quantum lake replay`: is it what the log says?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.lake_options import (
    AgainOptions,
    LogOptions,
    Resume,
    RunOptions,
    TablePath,
    moment_of,
)
from quantum.cli.lake_running import checked_logs, job_of, repeat, say, size_of
from quantum.cli.option_groups import grouped

if TYPE_CHECKING:
    from quantum.lake.jobs import Divergence, ReplayedPartition, TableVerdict
    from quantum.lake.jobs.verify import PrgVerdict


@speaking
@grouped
def verify(
    table: TablePath,
    logs: LogOptions,
    again: AgainOptions,
    options: RunOptions,
    resume: Resume = None,
) -> None:
    """Compare a table with its log, row by row, and print the Merkle root of what was compared.

    Exit code 0: equal. 6: something differs, and is named. 15: equal as far as it goes, and it is
    empty or lacks messages that the log has. 3: equal as far as it could be compared; the source
    cannot judge some offsets any more. With --every it ends there, too, except with 15.
    """
    from quantum.lake.jobs.resuming import resuming
    from quantum.lake.jobs.verify import verify as run

    where, source = checked_logs(logs, waits=again.every is not None)
    with job_of("verify", options, lambda: size_of(source)) as job:

        def one() -> None:
            with resuming(job.runner, resume) as runner:
                found = run(
                    where,
                    table,
                    spark=runner,
                    keys=logs.keys,
                    broker=logs.broker,
                    progress=job.show,
                )
            _show_verdict(found, options.as_json)
            _judge(found, again=again.every is not None)

        repeat(one, again)


def _show_verdict(verdict: TableVerdict, as_json: bool) -> None:
    for each in verdict.partitions:
        say(asdict(each) | {"equal": each.is_equal}, as_json, _sentence(each))
    findings = [each for partition in verdict.partitions for each in partition.findings]
    for finding in () if as_json else (*findings, *verdict.strays):
        place = f"{finding.prg} at {finding.raft_index}.{finding.sub_index}: "
        typer.echo(f"  {finding.kind}: {place if finding.prg else ''}{finding.sentence}")
    document = {
        "equal": verdict.is_equal,
        "whole": verdict.is_whole,
        "behind_rows": verdict.behind_rows,
        "root": verdict.root,
        "version": verdict.version,
        "strays": [asdict(each) for each in verdict.strays],
    }
    say(document, as_json, f"Merkle root {verdict.root}")


def _sentence(each: PrgVerdict) -> str:
    behind = f"{each.behind_rows:,} messages in {each.behind_entries:,} entries"
    if not each.is_covered:
        return f"{each.prg}: not in the table, which lacks {behind}"
    later = f"; behind by {behind}" if each.behind_rows else ""
    return (
        f"{each.prg}: entries {each.first} to {each.last}, {each.rows_log} rows in the log, "
        f"{each.rows_table} in the table: {'equal' if each.is_equal else 'DIFFERENT'}{later}"
    )


def _judge(verdict: TableVerdict, *, again: bool) -> None:
    """End where something is wrong; a table that is filled meanwhile may lack some `again`."""
    if not verdict.is_equal:
        fail("the table is not what the log says", Exit.QUARANTINED)
    if (verdict.is_empty or verdict.behind_rows) and not again:
        state = "empty" if verdict.is_empty else "behind"
        lacks = f"the log has {verdict.behind_rows:,} messages that it lacks"
        fail(f"the table is {state}: {lacks}; run quantum lake ingest, then verify", Exit.BEHIND)
    if not verdict.is_whole:
        fail("some offsets could not be compared: their log is gone", Exit.NOT_FOUND)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How far the logs are applied, and what the state is compared with."""

    to_index: Annotated[int | None, typer.Option("--to", min=0, help="The last index.")] = None
    at_ms: Annotated[
        int | None, typer.Option("--at-ms", min=0, help="The last moment, in ms since 1970.")
    ] = None
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="The same as 2026-11-15T20:00:00Z.")
    ] = None
    against: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="Another copy of the logs: a directory or a URL."),
    ] = None
    live: Annotated[
        bool, typer.Option("--live", help="Compare with the digests of the running --cluster.")
    ] = False
    state: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write the state as Parquet tables here.")
    ] = None


@speaking
@grouped
def replay(
    logs: LogOptions,
    again: AgainOptions,
    options: RunOptions,
    wanted: ReplayOptions,
    resume: Resume = None,
) -> None:
    """Apply every log again with the broker's own machine, and print each partition's digest.

    Exit code 6: another copy, or the cluster, has another state; partition and index are named.
    3: the cluster has a partition that these logs do not have. With --every it ends there, too.
    """
    from quantum.lake.jobs.live import live_digests
    from quantum.lake.jobs.replay import ReplayLimit, compare_digests, find_divergences, uncompared
    from quantum.lake.jobs.replay import replay as run
    from quantum.lake.jobs.resuming import resuming
    from quantum.lake.jobs.state_tables import write_state

    moment = ReplayLimit(wanted.to_index, moment_of(wanted.at_ms, wanted.at))
    if wanted.live and (logs.cluster is None or moment != ReplayLimit()):
        fail("--live compares a --cluster as it is now: without --to and --at", Exit.USAGE)
    where, source = checked_logs(logs, waits=again.every is not None)
    keys: dict[str, Any] = {"keys": logs.keys, "broker": logs.broker}
    with job_of("replay", options, lambda: size_of(source)) as job:

        def one() -> None:
            known = live_digests(logs.cluster) if wanted.live and logs.cluster is not None else {}
            indexes = {prg: index for prg, (index, _) in known.items()}
            with resuming(job.runner, resume) as runner:
                found = run(
                    where, spark=runner, at=moment, indexes=indexes, progress=job.show, **keys
                )
                diverging = compare_digests(found, known)
                if wanted.against is not None:
                    diverging += find_divergences(where, wanted.against, spark=runner, **keys)
                if wanted.state is not None:
                    write_state(where, wanted.state, spark=runner, at=moment, **keys)
            _show_replayed(found, diverging, options.as_json)
            if missing := uncompared(found, known):
                fail(f"not in these logs: {', '.join(missing)}", Exit.NOT_FOUND)
            if wanted.live:
                sentence = f"{len(known)} partitions are as the running cluster has them"
                _say_equal(sentence, options.as_json)
            if wanted.against is not None:
                sentence = f"no partition differs from {wanted.against}, as far as both go"
                _say_equal(sentence, options.as_json)

        repeat(one, again)


def _say_equal(sentence: str, as_json: bool) -> None:
    say({"equal": True, "sentence": sentence}, as_json, f"equal: {sentence}")


def _show_replayed(
    found: list[ReplayedPartition], diverging: list[Divergence], as_json: bool
) -> None:
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
