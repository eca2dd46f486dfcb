"""What one quorum round costs, and what silence costs, on three real nodes of this machine.

    python -m bench.rounds [--seconds 3] [--rounds 3] [--beside SRC] [--only kv lone full idle]

Processor time says more than a clock where others use the machine too: it is what the kernel
charged the node processes, all of them, per round or per second. Turns, wake-ups (of all threads),
syncs and frames are per round and over all nodes. `--beside` names the `src` of another tree (of
another commit, say): its nodes get the same load in the same run, turn by turn, and medians are
printed. Where the prototype (`ROUNDS_PROTOTYPE`) and the load generator (`MQTTLOAD_SOURCE`) are,
they are used as well.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import uvloop
from rich.console import Console
from rich.table import Table

from bench.kv_putter import KvPutter, LeaderLost
from bench.mqtt import SOURCE, build, load
from bench.mqtt import Target as Broker
from bench.raft import VALUE, cpu_seconds
from tests.clustor.runtime.waiting import free_base_port
from tests.interop.cluster_process import ClusterProcess

PROTOTYPE = Path(
    os.environ.get("ROUNDS_PROTOTYPE", "../shared/research/hot-path-prototype/rp.py")
).resolve()
ATTEMPTS_MAX = 10
WARM_SECONDS = 0.5
PROTOTYPE_SECONDS_MORE = 3.0
COUNTERS = {
    "turns": "clustor_loop_turns_total",
    "syncs": "clustor_wal_fsync_latency_ms_count",
    "frames": "clustor_peers_frames_sent_total",
}
NODES = 3
KV_GROUP = 1
TENANT_GROUP = 1_000
"""The one PRG of the development tenant."""

Figures: TypeAlias = dict[str, float]
Measure: TypeAlias = Callable[["Tree"], Figures]


@dataclass
class Tree:
    """Three running nodes of one source tree."""

    name: str
    cluster: ClusterProcess
    program: Path | None
    found: dict[str, list[Figures]] = field(default_factory=dict)
    silent_ms: float = 0.0
    """What its three nodes cost in a second of silence, as last measured."""

    @property
    def pids(self) -> list[int]:
        return list(self.cluster.pids.values())

    def leader(self, partition: int) -> int:
        """Wait until a group is led, and return by which node."""
        nodes: list[int] = []

        def led() -> bool:
            statuses = [(node, self.cluster.status(node)) for node in range(1, 4)]
            nodes[:] = [
                node
                for node, status in statuses
                for group in (status or {"groups": []})["groups"]
                if group["partition_id"] == partition and group["role"] == "Leader"
            ]
            return len(nodes) == 1

        self.cluster.until(led, f"group {partition} is led")
        return nodes[0]

    def counts(self) -> Figures:
        """Return the counters of all nodes, added up; what a tree lacks is missing."""
        total: Figures = {"cpu": cpu_seconds(self.pids), "wake-ups": wake_ups(self.pids)}
        total["at"] = time.perf_counter()
        pages = [scrape(self.cluster.admin(node)) for node in range(1, 4)]
        for name, series in COUNTERS.items():
            known = [page[series] for page in pages if series in page]
            if known:
                total[name] = sum(known)
        return total


def wake_ups(pids: list[int]) -> float:
    """Return how often threads of these processes slept and were woken."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                lines = (task / "status").read_text(encoding="ascii").splitlines()
            except FileNotFoundError:
                continue  # the thread has ended since
            for line in lines:
                if line.startswith("voluntary_ctxt_switches"):
                    total += int(line.split()[1])
    return float(total)


def scrape(address: object) -> Figures:
    """Return the plain series of a node's metrics, without their labels' variants."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    pairs = (line.split() for line in lines if not line.startswith("#"))
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) >= 2 and "{" not in pair[0]}


def per(before: Figures, after: Figures, count: float, silent_ms: float = 0.0) -> Figures:
    """Return what grew, for each of `count`; processor time in milliseconds.

    A lone writer that waits for a slow disk would be charged for the silence between its rounds:
    `beyond silence` leaves out what the nodes would have cost anyway.
    """
    each = {name: (after[name] - before[name]) / count for name in after if name in before}
    each["cpu"] *= 1000
    if "at" in each:
        each["beyond silence"] = each["cpu"] - silent_ms * each["at"]
    return each


def kv_writer(seconds: float) -> Measure:
    async def run(tree: Tree, leader: int) -> Figures:
        putter = await KvPutter.open(tree.cluster.admin(leader))
        await putter.run(1, WARM_SECONDS, VALUE)
        before = tree.counts()
        latencies = sorted(await putter.run(1, seconds, VALUE))
        figures = per(before, tree.counts(), len(latencies), tree.silent_ms)
        putter.close()
        return figures | {
            "a second": len(latencies) / seconds,
            "p50": latencies[len(latencies) // 2] * 1e3,
            "p99.9": latencies[len(latencies) * 999 // 1000] * 1e3,
        }

    def measure(tree: Tree) -> Figures:
        for _ in range(ATTEMPTS_MAX):
            try:
                return uvloop.run(run(tree, tree.leader(KV_GROUP)))
            except LeaderLost as lost:
                print(f"measured anew: {lost}")
        raise LeaderLost("no round passed under one leader")

    return measure


def publishers(seconds: float, count: int, window: int, *, spread: bool) -> Measure:
    """Measure QoS 1 publishes of 256 B, at the leader of their partition or on all nodes."""

    def measure(tree: Tree) -> Figures:
        assert tree.program is not None
        base = tree.cluster.base_port
        leader = tree.leader(TENANT_GROUP)
        nodes = [1, 2, 3] if spread else [leader]
        broker = Broker(tree.name, [base + 10 * node + 2 for node in nodes], lambda: tree.pids)
        load(tree.program, broker, *_shape(count, window, WARM_SECONDS))
        before = tree.counts()
        answer = load(tree.program, broker, *_shape(count, window, seconds))
        return per(before, tree.counts(), answer["sent"], tree.silent_ms) | _rates(answer)

    return measure


def _shape(count: int, window: int, seconds: float) -> list[str]:
    shape = ["--pubs", str(count), "--window", str(window), "--seconds", str(seconds)]
    return [*shape, "--subs", "0", "--qos", "1", "--size", "256"]


def _rates(answer: dict[str, Any]) -> Figures:
    ack = answer["ack_us"]
    return {
        "a second": float(answer["pub_per_s"]),
        "p50": ack["p50"] / 1000,
        "p99.9": ack.get("p999", ack["p99"]) / 1000,
    }


def silence(seconds: float) -> Measure:
    """Measure what three nodes cost that nobody asks for anything: per second and node."""

    def measure(tree: Tree) -> Figures:
        tree.leader(TENANT_GROUP)
        before, began = tree.counts(), time.perf_counter()
        time.sleep(seconds)
        found = per(before, tree.counts(), (time.perf_counter() - began) * NODES)
        tree.silent_ms = found["cpu"] * NODES
        return found

    return measure


@contextmanager
def tree_of(
    name: str, source: Path | None, directory: Path, program: Path | None
) -> Iterator[Tree]:
    """Start three nodes, of this tree or of another one's `src`."""
    if source is not None:
        os.environ["PYTHONPATH"] = str(source.resolve())
    try:
        cluster = ClusterProcess(directory, tenant_prgs=1)
        cluster.start()
    finally:
        os.environ.pop("PYTHONPATH", None)
    try:
        tree = Tree(name, cluster, program)
        tree.leader(TENANT_GROUP)
        yield tree
    finally:
        cluster.stop()


def prototype(program: Path, directory: Path, seconds: float, count: int, window: int) -> Figures:
    """Give the bare prototype the same load: a leader, two followers, no TLS, one file each."""
    base = free_base_port(3) + 40
    life = str(seconds + PROTOTYPE_SECONDS_MORE)
    run = [sys.executable, str(PROTOTYPE)]
    followers = [
        [*run, "follower", str(base + at), str(directory / f"f{at}"), "py", "1", life, "1"]
        for at in (1, 2)
    ]
    peers = f"{base + 1},{base + 2}"
    leader = [
        *run,
        "leader",
        str(base),
        peers,
        str(directory / "l"),
        "py",
        "inline",
        "2",
        "1",
        life,
    ]
    processes = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in (*followers, leader)
    ]
    try:
        _until_listening(base)
        pids = [process.pid for process in processes]
        broker = Broker("prototype", [base], lambda: pids)
        before = {"cpu": cpu_seconds(pids), "wake-ups": wake_ups(pids)}
        answer = load(program, broker, *_shape(count, window, seconds))
        after = {"cpu": cpu_seconds(pids), "wake-ups": wake_ups(pids)}
        return per(before, after, answer["sent"]) | _rates(answer)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _until_listening(port: int) -> None:
    """Wait for the port without touching it: the prototype counts whoever connects."""
    deadline, wanted = time.monotonic() + 30, f":{port:04X} "
    while time.monotonic() < deadline:
        rows = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()
        if any(wanted in row.split(maxsplit=2)[1] + " " and " 0A " in row for row in rows):
            return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on {socket.gethostname()}:{port}")


HEADINGS = (
    "a second",
    "p50",
    "p99.9",
    "cpu",
    "beyond silence",
    "turns",
    "wake-ups",
    "syncs",
    "frames",
)


def row_of(rounds: list[Figures]) -> list[str]:
    cells: list[str] = []
    for name in HEADINGS:
        known = [each[name] for each in rounds if name in each]
        if not known:
            cells.append("-")
            continue
        value = statistics.median(known)
        cells.append(f"{value:,.0f}" if value >= 100 else f"{value:.3g}")
    return cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, help="another tree's src directory")
    parser.add_argument("--only", nargs="+", choices=["kv", "lone", "full", "wide", "idle"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        table = run(arguments, Path(directory))
    Console(width=150).print(table)


def run(arguments: argparse.Namespace, root: Path) -> Table:
    seconds = arguments.seconds
    program = build(root) if SOURCE.exists() else None
    measures: dict[str, tuple[str, Measure]] = {
        "idle": ("idle, per second and node", silence(seconds)),
        "kv": ("lone KV writer", kv_writer(seconds)),
    }
    shapes = {"lone": (1, 1), "full": (50, 100), "wide": (1000, 1)}
    if program is not None:
        for name, (count, window) in shapes.items():
            measure = publishers(seconds, count, window, spread=name != "lone")
            measures[name] = (f"{count} MQTT publishers x {window}", measure)
    wanted = ["idle", *(arguments.only or list(measures))]
    wanted = list(dict.fromkeys(wanted))
    bare: dict[str, list[Figures]] = {}
    with ExitStack() as stack:
        trees = [stack.enter_context(tree_of("this tree", None, root / "this", program))]
        if arguments.beside is not None:
            other = tree_of("beside", arguments.beside, root / "beside", program)
            trees.append(stack.enter_context(other))
        for _ in range(arguments.rounds):
            for name in wanted:
                for tree in trees:
                    tree.found.setdefault(name, []).append(measures[name][1](tree))
                if name in shapes and program is not None and PROTOTYPE.exists():
                    figures = prototype(program, root, seconds, *shapes[name])
                    bare.setdefault(name, []).append(figures)
    return _table({name: measures[name][0] for name in wanted}, trees, bare)


def _table(labels: dict[str, str], trees: list[Tree], bare: dict[str, list[Figures]]) -> Table:
    table = Table(title="per round (or publish), all three nodes together")
    table.add_column("load")
    table.add_column("who")
    for heading in HEADINGS:
        unit = {"p50": "p50 ms", "p99.9": "p99.9 ms", "cpu": "CPU ms"}.get(heading, heading)
        table.add_column(unit, justify="right")
    for name, label in labels.items():
        for tree in trees:
            table.add_row(label, tree.name, *row_of(tree.found[name]))
        if name in bare:
            table.add_row(label, "prototype", *row_of(bare[name]))
    return table


if __name__ == "__main__":
    main()
