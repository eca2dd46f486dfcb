"""Captured publishes beside the same publishes without a capture, and reads beside `cat`.

    python -m bench.streams [--seconds 3] [--rounds 3] [--sizes 256 4096 65536] [--streams 10000]

One broker, one run, turn by turn; medians are printed. A captured publish goes into a stream of its
partition by the same entry of the log: it should cost no second sync. Reads are `quantum streams
read` of everything that was captured, once as lines and once as JSON; `cat` reads the files of the
same streams. The last table is as many streams of one partition each on one node.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.raft import cpu_seconds
from quantum.client.client import Endpoint
from quantum.client.load import LoadPlan, LoadRun, percentile
from tests.interop.broker_process import HOST, BrokerProcess
from tests.interop.many_streams import measure, syncs

PARTITIONS = 3
PUBLISHERS = 16
WINDOW = 20
STREAM = "kept"
MEGA = 1e6
TOPICS = {"without capture": "free", "captured": STREAM}

Figures = dict[str, float]


async def load(broker: BrokerProcess, topic: str, size: int, seconds: float) -> Figures:
    """Publish in a closed loop, and return what it gave and what it cost."""
    plan = LoadPlan(PUBLISHERS, 0, 1, size, seconds, WINDOW, topic=topic)
    run = LoadRun(Endpoint(HOST, broker.mqtt), plan)
    cpu, synced = cpu_seconds([broker.pid]), syncs(broker)
    await run.run(lambda _run: None)
    done = run.counts.acknowledged
    return {
        "messages/s": done / run.elapsed,
        "MB/s": done * size / run.elapsed / MEGA,
        "p50 ms": 1000 * percentile(sorted(run.counts.latencies), 0.5),
        "CPU µs/publish": 1e6 * (cpu_seconds([broker.pid]) - cpu) / done,
        "syncs/publish": (syncs(broker) - synced) / done,
    }


def captures(broker: BrokerProcess, sizes: list[int], seconds: float, rounds: int) -> Table:
    """Compare publishes with and without a capture, turn by turn."""
    table = Table(title=f"QoS 1, {PUBLISHERS} publishers with {WINDOW} in flight each, one node")
    for heading in ("payload", "publishes"):
        table.add_column(heading)
    for size in sizes:
        found: dict[str, list[Figures]] = {name: [] for name in TOPICS}
        for _ in range(rounds):
            for name, topic in TOPICS.items():
                found[name].append(asyncio.run(load(broker, topic, size, seconds)))
        _add_rows(table, f"{size:,} B", found)
    return table


def _add_rows(table: Table, label: str, found: dict[str, list[Figures]]) -> None:
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in found.items()
    }
    if len(table.columns) == 2:
        for heading in (*next(iter(medians.values())), "ratio"):
            table.add_column(heading, justify="right")
    base = next(iter(medians.values()))["messages/s"]
    for name, row in medians.items():
        ratio = f"{row['messages/s'] / base:.2f}"
        table.add_row(label, name, *(f"{value:,.2f}" for value in row.values()), ratio)


def reads(broker: BrokerProcess, rounds: int) -> Table:
    """Read everything that was captured, and the files that hold it."""
    stream = [sys.executable, "-m", "quantum.cli", "streams", "read", STREAM]
    stream += ["--admin", str(broker.admin)]
    files = sorted(map(str, broker.data.glob("node-1/state/*/streams/parts/*")))
    size = sum(Path(each).stat().st_size for each in files)
    table = Table(title=f"{size / MEGA:,.1f} MB of stream files, read whole")
    table.add_column("reader")
    for heading in ("seconds", "MB/s of the files", "printed MB/s", "ratio"):
        table.add_column(heading, justify="right")
    ways = {
        "cat": ["cat", *files],
        "streams read": stream,
        "streams read --json": [*stream, "--json"],
    }
    base = 0.0
    for name, command in ways.items():
        runs = [_read(command) for _ in range(rounds)]
        seconds = statistics.median(each for each, _ in runs)
        base = base or size / seconds
        printed = f"{runs[0][1] / seconds / MEGA:,.1f}"
        rate = size / seconds
        table.add_row(name, f"{seconds:.2f}", f"{rate / MEGA:,.1f}", printed, f"{rate / base:.3f}")
    return table


def _read(command: list[str]) -> tuple[float, int]:
    """Run a reader to its end; return the seconds that it took, and how much it printed."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as printed:
        subprocess.run(command, stdout=printed, check=True, timeout=600)
        return time.monotonic() - began, printed.tell()


def in_a_broker(partitions: int, then: Callable[[BrokerProcess], None]) -> None:
    with (
        tempfile.TemporaryDirectory() as place,
        BrokerProcess(Path(place, "var"), partitions=partitions) as broker,
    ):
        then(broker)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_AsWritten)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 4_096, 65_536])
    parser.add_argument("--streams", type=int, default=10_000, help="0: leave that out")
    options = parser.parse_args()
    console = Console(width=140)

    def capture_and_read(broker: BrokerProcess) -> None:
        command = [sys.executable, "-m", "quantum.cli", "streams", "create", STREAM]
        command += ["--capture", f"{STREAM}/#", "--admin", str(broker.admin)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
        console.print(captures(broker, options.sizes, options.seconds, options.rounds))
        console.print(reads(broker, options.rounds))

    in_a_broker(PARTITIONS, capture_and_read)
    for count in (10, options.streams) if options.streams else ():
        in_a_broker(1, lambda broker, count=count: console.print(str(measure(broker, count))))  # type: ignore[misc]


class _AsWritten(argparse.RawDescriptionHelpFormatter):
    """The module's own text, line by line."""


if __name__ == "__main__":
    main()
