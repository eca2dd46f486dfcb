"""How many megabytes a second three real nodes take, and what each costs in processor time.

    python -m bench.large_writes [--seconds 4] [--rounds 3] [--sizes 65536 8192] [--beside SRC]

One client keeps 2 MiB of puts in flight; each is acknowledged by a quorum's fsync. CPU is what the
kernel charged the three node processes, all of them together, per megabyte that was acknowledged:
on a machine that does other work too it says more than the rate. `--beside` names the `src` of
another tree, which gets the same load in the same run, turn by turn; medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench.kv_putter import KvPutter, LeaderLost
from bench.raft import ATTEMPTS_MAX, WARM_SECONDS, cpu_seconds
from bench.rounds import KV_GROUP, Tree, tree_of

IN_FLIGHT_BYTES = 2 << 20
KEYS = 64
"""Few, so that the store stays small: the log is what is measured."""
MEGABYTE = 1e6


@dataclass
class LargeWrites:
    """One round of one tree at one size."""

    megabytes_per_second: float
    cpu_ms_per_megabyte: float
    p50_ms: float
    p99_ms: float


async def measure(tree: Tree, leader: int, size: int, seconds: float) -> LargeWrites:
    """Put values of `size` bytes for a while, and count what was acknowledged."""
    value, depth = bytes(size), max(1, IN_FLIGHT_BYTES // size)
    putter = await KvPutter.open(tree.cluster.admin(leader), KEYS)
    await putter.run(depth, WARM_SECONDS, value)
    cpu, began = cpu_seconds(tree.pids), time.perf_counter()
    latencies = sorted(await putter.run(depth, seconds, value))
    elapsed, cpu = time.perf_counter() - began, cpu_seconds(tree.pids) - cpu
    putter.close()
    megabytes = len(latencies) * size / MEGABYTE
    return LargeWrites(
        megabytes / elapsed,
        cpu * 1000 / megabytes,
        latencies[len(latencies) // 2] * 1000,
        latencies[len(latencies) * 99 // 100] * 1000,
    )


def measured(tree: Tree, size: int, seconds: float) -> LargeWrites:
    """Measure once; again where another load on the machine cost the leader its term."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return uvloop.run(measure(tree, tree.leader(KV_GROUP), size, seconds))
        except LeaderLost as lost:
            print(f"measured anew: {lost}")
    raise LeaderLost("no round passed under one leader")


def run(sizes: list[int], seconds: float, rounds: int, beside: Path | None) -> Table:
    table = Table(title="large puts, three nodes, acknowledged by a quorum's fsync")
    table.add_column("bytes each")
    table.add_column("who")
    for heading in ("MB/s", "CPU ms per MB, all nodes", "ack p50 ms", "ack p99 ms"):
        table.add_column(heading, justify="right")
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        trees = [stack.enter_context(tree_of("this tree", None, Path(directory, "this"), None))]
        if beside is not None:
            other = tree_of("beside", beside, Path(directory, "beside"), None)
            trees.append(stack.enter_context(other))
        for size in sizes:
            found: dict[str, list[LargeWrites]] = {tree.name: [] for tree in trees}
            for _ in range(rounds):
                for tree in trees:
                    found[tree.name].append(measured(tree, size, seconds))
            for name, each in found.items():
                table.add_row(f"{size:,}", name, *_medians(each))
    return table


def _medians(rounds: list[LargeWrites]) -> list[str]:
    return [
        f"{statistics.median(getattr(each, name) for each in rounds):.1f}"
        for name in ("megabytes_per_second", "cpu_ms_per_megabyte", "p50_ms", "p99_ms")
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[65_536, 8_192])
    parser.add_argument("--beside", type=Path, help="another tree's src directory")
    given = parser.parse_args()
    table = run(given.sizes, given.seconds, given.rounds, given.beside)
    Console(soft_wrap=True).print(table)


if __name__ == "__main__":
    main()
