"""Publishes through real brokers, each acknowledged after a quorum's fsync, beside mosquitto.

    python -m bench.mqtt [--seconds 3] [--rounds 3] [--only one-node|three-nodes|idle|lone]

The load generator is a C program of its own (`mqttload.c`, found in `../shared/tools` or named by
`MQTTLOAD_SOURCE`); both brokers get the same load in the same run, turn by turn, and medians are
printed. mosquitto (with persistence) acknowledges from memory; Quantum after the fsync of every
voter's majority. CPU is what the kernel charged the broker's processes per publish. Per payload
byte: what went to the disk, what the logs keep, what crossed the clients' connections (of payload
in and out), and what crossed those between nodes (of payload in).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.wire_bytes import WireBytes
from tests.clustor.runtime.waiting import free_base_port
from tests.interop.cluster_process import ClusterProcess

SOURCE = Path(os.environ.get("MQTTLOAD_SOURCE", "../shared/tools/mqttload.c"))
_DISK_BYTES = 16 << 20
SHAPES = {"50→1": (50, 1, []), "1→1": (1, 1, []), "1→50": (1, 50, ["--fanout"])}


@dataclass
class Target:
    """A running broker."""

    name: str
    ports: list[int]
    pids: Callable[[], list[int]]
    peer_ports: list[int] = field(default_factory=list)
    """Where its nodes listen for each other."""
    directory: Path | None = None

    def stored(self) -> int:
        """Return how many bytes of logs its directory holds, zeros behind them included."""
        if self.directory is None:
            return 0
        return sum(each.stat().st_size for each in self.directory.rglob("segment-*.log"))

    def written(self) -> int:
        """Return how many bytes its processes have sent to the disk."""
        return sum(_written_by(pid) for pid in self.pids())


def build(directory: Path) -> Path:
    """Compile the load generator."""
    program = directory / "mqttload"
    subprocess.run(["cc", "-O2", "-o", str(program), str(SOURCE), "-lm"], check=True)
    return program


@contextmanager
def mosquitto(directory: Path) -> Iterator[Target]:
    """Run Debian's mosquitto with persistence, queues without bounds."""
    directory.mkdir()
    directory.chmod(0o777)
    port = free_base_port(1) + 12  # the base itself stays taken
    config = directory / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
        f"persistence_location {directory}/\nmax_queued_messages 0\nmax_inflight_messages 0\n"
        "autosave_interval 1\nuser root\n"
    )
    process = subprocess.Popen(
        ["mosquitto", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _until_open(port)
        yield Target("mosquitto", [port], lambda: [process.pid])
    finally:
        process.terminate()
        process.wait()


@contextmanager
def quantum(directory: Path, nodes: int, prgs: int) -> Iterator[Target]:
    """Run our own nodes."""
    with ClusterProcess(directory, nodes=nodes, tenant_prgs=prgs) as cluster:
        cluster.wait_for_leader()
        ports = [cluster.base_port + 10 * node + 2 for node in range(1, nodes + 1)]
        for port in ports:
            _until_open(port)
        peers = [cluster.base_port + 10 * node for node in range(1, nodes + 1)]
        yield Target(
            "quantum",
            ports,
            lambda: list(cluster.pids.values()),
            peers if nodes > 1 else [],
            directory,
        )


def _until_open(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        asked = subprocess.run(
            ["mosquitto_pub", "-p", str(port), "-t", "ready", "-q", "1", "-m", "?"],
            capture_output=True,
            check=False,
        )
        if asked.returncode == 0:
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing answers on port {port}")


def _written_by(pid: int) -> int:
    for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return 0


def load(program: Path, target: Target, *arguments: str) -> dict[str, Any]:
    """Run the generator once, and return its line."""
    command = [str(program), "--port", ",".join(map(str, target.ports)), "--json"]
    command += ["--broker-pid", ",".join(map(str, target.pids())), *arguments]
    written, stored = target.written(), target.stored()
    with WireBytes(target.ports) as clients, WireBytes(target.peer_ports or [1]) as peers:
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    lines = found.stdout.strip().splitlines()
    assert lines, found.stderr
    answer: dict[str, Any] = json.loads(lines[-1])
    payload = answer.get("sent", 0) * answer.get("size", 0)
    carried = payload + answer.get("received", 0) * answer.get("size", 0)
    answer["disk"] = (target.written() - written) / payload if payload else 0.0
    answer["stored"] = (target.stored() - stored) / payload if payload else 0.0
    answer["wire"] = clients.total / carried if carried else 0.0
    answer["between"] = peers.total / payload if payload else 0.0
    return answer


def traffic(
    program: Path, targets: list[Target], sizes: list[int], seconds: float, rounds: int
) -> Table:
    """Compare throughput over QoS, payload size and shape."""
    table = Table(title="publishes, closed loop, 20 in flight for each publisher")
    for heading in ("load", "broker"):
        table.add_column(heading)
    for heading in (
        *("publishes/s", "deliveries/s", "ack p50 ms", "ack p99 ms", "CPU µs/publish"),
        *("written/byte", "stored/byte", "client wire/byte", "node wire/byte"),
        *("lost", "twice", "ratio"),
    ):
        table.add_column(heading, justify="right")
    for qos in (0, 1, 2):
        for size in sizes:
            for shape, (publishers, subscribers, extra) in SHAPES.items():
                arguments = ["--pubs", str(publishers), "--subs", str(subscribers)]
                arguments += ["--filter", "hash", "--qos", str(qos), "--size", str(size)]
                arguments += ["--seconds", str(seconds), "--window", "20", *extra]
                arguments += ["--e2e-window", "2000"]
                _compare(table, program, targets, f"QoS {qos} {size} B {shape}", arguments, rounds)
    return table


def _compare(
    table: Table,
    program: Path,
    targets: list[Target],
    label: str,
    arguments: list[str],
    rounds: int,
) -> None:
    found: dict[str, list[dict[str, Any]]] = {target.name: [] for target in targets}
    for _ in range(rounds):
        for target in targets:
            found[target.name].append(load(program, target, *arguments))
    base = _median(found[targets[-1].name], "pub_per_s")
    for name, runs in found.items():
        rate = _median(runs, "pub_per_s")
        table.add_row(
            label,
            name,
            f"{rate:,.0f}",
            f"{_median(runs, 'rx_per_s'):,.0f}",
            f"{_latency(runs, 'p50'):.2f}",
            f"{_latency(runs, 'p99'):.2f}",
            f"{_median(runs, 'broker_cpu_us_per_msg'):.1f}",
            f"{_median(runs, 'disk'):.2f}",
            f"{_median(runs, 'stored'):.2f}",
            f"{_median(runs, 'wire'):.3f}",
            f"{_median(runs, 'between'):.2f}",
            str(sum(run["lost"] for run in runs)),
            str(sum(run["dups"] for run in runs)),
            f"{rate / base:.2f}" if base else "-",
        )


def _median(runs: list[dict[str, Any]], name: str) -> float:
    return statistics.median(float(run[name]) for run in runs)


def _latency(runs: list[dict[str, Any]], name: str) -> float:
    kind = "ack_us" if runs[0]["ack_us"]["n"] else "e2e_us"
    return statistics.median(float(run[kind][name]) for run in runs) / 1000


def lone(program: Path, targets: list[Target], seconds: float) -> Table:
    """Compare the latency of a lone publisher, and of an open loop of 2,000/s."""
    table = Table(title="latency of an acknowledgement, 256 B at QoS 1")
    table.add_column("load")
    table.add_column("broker")
    for heading in ("publishes/s", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    loads = {
        "1 publisher, 1 in flight": ["--pubs", "1", "--window", "1"],
        "50 publishers, 2,000/s": ["--pubs", "50", "--window", "20", "--rate", "2000"],
    }
    for label, arguments in loads.items():
        for target in targets:
            run = load(
                program,
                target,
                *arguments,
                *("--subs", "0", "--qos", "1", "--size", "256", "--seconds", str(seconds)),
            )
            ack = run["ack_us"]
            table.add_row(
                label,
                target.name,
                f"{run['pub_per_s']:,.0f}",
                f"{ack['p50'] / 1000:.2f}",
                f"{ack['p99'] / 1000:.2f}",
            )
        table.add_row(label, "the disk alone", *disk_alone(seconds))
    return table


def disk_alone(seconds: float) -> tuple[str, str, str]:
    """Write 4 KiB and sync it, 500 times a second, into a file that was written before.

    No broker that acknowledges from the disk has a better p99 than its disk had in that minute.
    """
    took: list[float] = []
    with tempfile.TemporaryFile() as file:
        file.write(bytes(_DISK_BYTES))
        os.fsync(file.fileno())
        began = due = time.perf_counter()
        while due < began + seconds:
            start = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), len(took) * 4096 % _DISK_BYTES)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - start)
            due = max(due + 0.002, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))
    took.sort()
    p50, p99 = (1000 * took[len(took) * part // 100] for part in (50, 99))
    return f"{len(took) / seconds:,.0f}", f"{p50:.2f}", f"{p99:.2f}"


def idle(program: Path, targets: list[Target], connections: int) -> Table:
    """Compare what an idle connection costs."""
    table = Table(title=f"{connections} idle connections")
    table.add_column("broker")
    for heading in ("bytes each", "connects/s"):
        table.add_column(heading, justify="right")
    for target in targets:
        run = load(program, target, "--connect-only", str(connections), "--hold", "1")
        table.add_row(
            target.name,
            f"{run['rss_per_conn_bytes']:,.0f}",
            f"{run['connects_per_s']:,.0f}",
        )
    return table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 1024, 8192])
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--prgs", type=int, default=3)
    parser.add_argument("--only", choices=["one-node", "three-nodes", "idle", "lone"])
    arguments = parser.parse_args()
    if not SOURCE.exists() or shutil.which("mosquitto") is None or shutil.which("cc") is None:
        print("needs mosquitto, a C compiler and mqttload.c (MQTTLOAD_SOURCE)")
        return
    console = Console(width=170)
    with tempfile.TemporaryDirectory() as directory:
        _run(arguments, Path(directory), console)


def _run(arguments: argparse.Namespace, root: Path, console: Console) -> None:
    program = build(root)
    only = arguments.only
    seconds, rounds = arguments.seconds, arguments.rounds
    with mosquitto(root / "mosquitto") as peer:
        if only != "three-nodes":
            with quantum(root / "one", 1, arguments.prgs) as ours:
                targets = [ours, peer]
                if only in (None, "one-node"):
                    console.print(traffic(program, targets, arguments.sizes, seconds, rounds))
                if only in (None, "lone"):
                    console.print(lone(program, targets, seconds))
                if only in (None, "idle"):
                    console.print(idle(program, targets, arguments.connections))
        if only in (None, "three-nodes"):
            with quantum(root / "three", 3, arguments.prgs) as ours:
                targets = [ours, peer]
                console.print(traffic(program, targets, [256], seconds, rounds))
                console.print(lone(program, targets, seconds))


if __name__ == "__main__":
    main()
