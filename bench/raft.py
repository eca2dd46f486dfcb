"""Puts through three real nodes on this machine, each acknowledged by a quorum's fsync.

    python -m bench.raft [--seconds 3] [--rounds 3] [--in-flight 1 64 512]

One client on one connection keeps so many puts of 256 B in flight. A three-node etcd is given the
same load in the same run, turn by turn, where `etcd` is installed; medians are printed. CPU is
what the kernel charged the three node processes, divided by puts and by replicas.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import uvloop
from rich.console import Console
from rich.table import Table

from bench.etcd import EtcdCluster, EtcdPutter
from bench.kv_putter import KvPutter, LeaderLost, Putter
from tests.interop.cluster_process import ClusterProcess

VALUE = bytes(range(256))
WARM_SECONDS = 0.5
ATTEMPTS_MAX = 10
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

Connect: TypeAlias = Callable[[], Coroutine[Any, Any, Putter]]


@dataclass
class Measured:
    """One round of one system at one depth."""

    puts_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_put: float
    """Of one replica, on average."""
    syncs_per_put: float | None
    """Of one replica, on average; None where it cannot be known."""


def cpu_seconds(pids: list[int]) -> float:
    """Return what the kernel has charged these processes so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS_PER_SECOND


async def measure(
    connect: Connect, pids: list[int], syncs: Callable[[], int | None], depth: int, seconds: float
) -> Measured:
    putter = await connect()
    await putter.run(depth, WARM_SECONDS, VALUE)
    cpu, synced, begin = cpu_seconds(pids), syncs(), time.perf_counter()
    latencies = await putter.run(depth, seconds, VALUE)
    elapsed = time.perf_counter() - begin
    cpu = cpu_seconds(pids) - cpu
    after = syncs()
    putter.close()
    latencies.sort()
    count, replicas = len(latencies), len(pids)
    return Measured(
        puts_per_second=count / elapsed,
        p50_ms=latencies[count // 2] * 1e3,
        p99_ms=latencies[min(count - 1, count * 99 // 100)] * 1e3,
        cpu_us_per_put=cpu / count / replicas * 1e6,
        syncs_per_put=None
        if after is None or synced is None
        else (after - synced) / count / replicas,
    )


def median(rounds: list[Measured]) -> list[str]:
    def of(value: Callable[[Measured], float]) -> float:
        return statistics.median(value(each) for each in rounds)

    known = [each.syncs_per_put for each in rounds if each.syncs_per_put is not None]
    return [
        f"{of(lambda m: m.puts_per_second):,.0f}",
        f"{of(lambda m: m.p50_ms):.2f}",
        f"{of(lambda m: m.p99_ms):.2f}",
        f"{of(lambda m: m.cpu_us_per_put):.1f}",
        f"{statistics.median(known):.3f}" if known else "-",
    ]


def syncs_of(cluster: ClusterProcess) -> int:
    groups = [cluster.group(node) for node in range(1, cluster.nodes + 1)]
    return sum(group["syncs"] for group in groups if group is not None)


def run(depths: list[int], seconds: float, rounds: int) -> Table:
    table = Table(title="256 B puts, three nodes on this machine, acknowledged by a quorum's fsync")
    table.add_column("system")
    for heading in (
        *("in flight", "puts/s", "ack p50 ms", "ack p99 ms"),
        *("CPU µs per put and replica", "syncs per put and replica"),
    ):
        table.add_column(heading, justify="right")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        with ClusterProcess(root / "clustor") as cluster, EtcdCluster(root / "etcd") as etcd:
            for depth in depths:
                found: dict[str, list[Measured]] = {"clustor": []}
                found |= {"etcd": []} if etcd.installed else {}
                for _ in range(rounds):
                    found["clustor"].append(_round_of_clustor(cluster, depth, seconds))
                    if etcd.installed:
                        found["etcd"].append(_round_of_etcd(etcd, depth, seconds))
                for name, measured in found.items():
                    table.add_row(name, str(depth), *median(measured))
    return table


def _round_of_clustor(cluster: ClusterProcess, depth: int, seconds: float) -> Measured:
    """Measure once; again where another load on the machine cost the leader its term."""
    for _ in range(ATTEMPTS_MAX):
        address = cluster.admin(cluster.wait_for_leader())
        pids = list(cluster.pids.values())
        connect = partial(KvPutter.open, address)
        try:
            return uvloop.run(measure(connect, pids, partial(syncs_of, cluster), depth, seconds))
        except LeaderLost as lost:
            print(f"measured anew: {lost}")
    raise LeaderLost("no round passed under one leader")


def _round_of_etcd(etcd: EtcdCluster, depth: int, seconds: float) -> Measured:
    port = etcd.wait_for_leader()
    return uvloop.run(
        measure(lambda: EtcdPutter.open(port), etcd.pids, lambda: None, depth, seconds)
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 64, 512])
    arguments = parser.parse_args()
    Console(soft_wrap=True).print(run(arguments.in_flight, arguments.seconds, arguments.rounds))


if __name__ == "__main__":
    main()
