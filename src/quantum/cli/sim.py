"""`quantum sim`: whole clusters on simulated disks, networks and clocks, one seed after another."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from typing import Annotated, Any

import typer

from clustor.sim.run import SeedReport, describe, run_scenario, run_seed, shrink
from clustor.sim.stream_world import run_stream_scenario, run_stream_seed
from quantum.cli.exits import Exit
from quantum.sim import (
    run_broker_scenario,
    run_broker_seed,
    run_topic_scenario,
    run_topic_seed,
)


@dataclass
class _Totals:
    """What all seeds together came to."""

    seeds: int = 0
    simulated_seconds: float = 0.0
    acknowledged_writes: int = 0
    undecided: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failing_seeds: list[int] = field(default_factory=list)

    def add(self, report: SeedReport) -> None:
        self.seeds += 1
        self.simulated_seconds += report.simulated_seconds
        self.acknowledged_writes += report.acknowledged
        self.undecided += report.undecided
        self.faults.update(report.faults)
        if report.violation is not None:
            self.failing_seeds.append(report.seed)

    def summary(self) -> dict[str, Any]:
        return {
            "summary": True,
            "seeds": self.seeds,
            "simulated_hours": round(self.simulated_seconds / 3600, 4),
            "faults": dict(sorted(self.faults.items())),
            "acknowledged_writes": self.acknowledged_writes,
            "linearizability_undecided": self.undecided,
            "violations": len(self.failing_seeds),
            "failing_seeds": self.failing_seeds,
        }


def sim(  # noqa: PLR0917  # typer gives them by name
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, one after another.")] = 100,
    minutes: Annotated[
        float | None, typer.Option(help="Go on with further seeds for so long instead.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each seed, and one for all.")
    ] = False,
    shrink_failures: Annotated[
        bool, typer.Option("--shrink", help="Make each failing seed smaller before it is shown.")
    ] = False,
    broker: Annotated[
        bool,
        typer.Option("--broker", help="The MQTT broker with clients, not the key-value store."),
    ] = False,
    streams: Annotated[
        bool, typer.Option("--streams", help="Groups that append to streams, and who reads them.")
    ] = False,
    topics: Annotated[
        bool,
        typer.Option("--topics", help="Topics of the broker: producers, transactions, readers."),
    ] = False,
    processes: Annotated[
        int, typer.Option(min=1, help="How many processes share the seeds; their order stays.")
    ] = 1,
) -> None:
    """Run clusters of 3 to 7 nodes under drawn faults, and judge them from outside.

    With --broker three nodes serve MQTT to publishers and subscribers that count everything.
    A seed is a whole run: the same seed gives the same trace hash. Exit code 1: a promise broke.
    """
    if broker + streams + topics > 1:
        raise typer.BadParameter("one world at a time: --broker, --streams or --topics")
    run = run_broker_seed if broker else run_stream_seed if streams else run_seed
    run = run_topic_seed if topics else run
    totals = _Totals()
    numbers = iter(range(seed, seed + seeds)) if minutes is None else count(seed)
    end = None if minutes is None else time.monotonic() + minutes * 60
    with closing(_reports(run, numbers, end, processes)) as reports:
        for report in reports:
            totals.add(report)
            _show(report, as_json=as_json)
            if report.violation is not None and shrink_failures:
                _show_smaller(report, as_json=as_json)
    summary = totals.summary()
    typer.echo(json.dumps(summary) if as_json else _sentence(summary))
    raise typer.Exit(Exit.FAILED if totals.failing_seeds else 0)


def _reports(
    run: Callable[[int], SeedReport], numbers: Iterator[int], end: float | None, processes: int
) -> Generator[SeedReport, None, None]:
    """Run seed after seed until they or the time are over; each is a world of its own."""

    def in_time() -> Iterator[int]:
        for number in numbers:
            if end is not None and time.monotonic() >= end:
                return
            yield number

    if processes == 1:
        yield from map(run, in_time())
        return
    with get_context("forkserver").Pool(processes) as pool:
        if end is None:
            yield from pool.imap(run, in_time())
            return
        while block := [number for _, number in zip(range(processes), in_time(), strict=False)]:
            yield from pool.map(run, block)


def _show(report: SeedReport, *, as_json: bool) -> None:
    if as_json:
        line = {
            "seed": report.seed,
            "trace_hash": report.trace_hash,
            "simulated_seconds": report.simulated_seconds,
            "acknowledged_writes": report.acknowledged,
            "faults": report.faults,
            "violation": report.violation,
        }
        typer.echo(json.dumps(line))
    elif report.violation is not None:
        typer.echo(f"seed {report.seed}: {report.violation}")
        typer.echo(report.detail)
    if report.violation is not None:
        typer.echo(f"replay: {report.replay}", err=True)


def _show_smaller(report: SeedReport, *, as_json: bool) -> None:
    assert report.scenario is not None
    worlds = {
        "--broker ": run_broker_scenario,
        "--streams ": run_stream_scenario,
        "--topics ": run_topic_scenario,
    }
    run = worlds.get(report.flags, run_scenario)
    smaller, runs = shrink(report.scenario, fails=lambda each: run(each).violation is not None)
    faults = describe(smaller.faults)
    if as_json:
        found = {"seed": report.seed, "shrunk": True, "runs": runs, "faults": faults}
        found["duration_ms"] = smaller.duration / 1000
        found["operations_max"] = smaller.operations_max
        typer.echo(json.dumps(found))
        return
    duration = smaller.duration / 1_000_000
    typer.echo(f"still fails with {len(faults)} faults in {duration:.2f} s (after {runs} runs):")
    for fault in faults:
        typer.echo(f"  {fault}")


def _sentence(summary: dict[str, Any]) -> str:
    faults = ", ".join(f"{kind} {count}" for kind, count in summary["faults"].items())
    return (
        f"{summary['seeds']} seeds, {summary['simulated_hours']} simulated hours, "
        f"{summary['acknowledged_writes']} acknowledged writes, "
        f"{summary['violations']} violations\nfaults: {faults}"
    )
