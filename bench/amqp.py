"""AMQP 1.0 through three real nodes, beside RabbitMQ's quorum queues on three nodes.

    python -m bench.amqp [--seconds 5] [--queues 4] [--rabbitmq /usr/lib/rabbitmq]

Both get the same bytes of the same client in the same run: 1 KB messages, unsettled, as many on
their way as there is credit for; then all of them are received, and accepted in ranges. An answer
of either says that a quorum has the message on its disks. CPU is what the kernel charged the nodes'
processes, client not included. Latency is from a transfer to its disposition, one at a time.
Without RabbitMQ (Debian's `rabbitmq-server`) only Quantum is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.kafka import cpu_seconds
from quantum.protocols.amqp.engine.composites import (
    AttachFrame,
    DispositionFrame,
    FlowFrame,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
)
from quantum.protocols.amqp.engine.messages import encode_data
from quantum.protocols.amqp.engine.types import LinkRole
from tests.clustor.runtime.waiting import free_ports
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.mqtt_places import all_served
from tests.interop.raw_amqp import RawClient

SIZE = 1_024
RANGE = 100
AHEAD = 500
AMQP_PLACE = 5
"""Behind a node's admin port."""
START_SECONDS = 120.0
Pids = Callable[[], list[int]]


def sender(port: int, address: str) -> RawClient:
    """Connect and attach a sender; return it when it has credit."""
    client = RawClient(port, f"bench-{time.monotonic_ns()}")
    attach = AttachFrame(
        "sender",
        0,
        LinkRole.SENDER,
        source=SourceTerminus("bench"),
        target=TargetTerminus(address),
        initial_delivery_count=0,
    )
    client.say(attach)
    client.hear(FlowFrame)
    return client


def settled_in(said: DispositionFrame) -> int:
    return (said.first if said.last is None else said.last) - said.first + 1


def send(port: int, addresses: list[str], seconds: float) -> tuple[list[int], float]:
    """Send for so long; return how many each queue was sent, and when all were settled."""
    clients = [sender(port, each) for each in addresses]
    payload = encode_data(os.urandom(SIZE))
    open_at, numbers = [0] * len(clients), [0] * len(clients)
    start = time.monotonic()
    while (is_on := time.monotonic() - start < seconds) or any(open_at):
        for place, client in enumerate(clients):
            while is_on and open_at[place] < AHEAD:
                number = numbers[place]
                for each in range(number, number + RANGE):
                    client.send(each, each.to_bytes(4, "big"), payload)
                numbers[place] += RANGE
                open_at[place] += RANGE
            while open_at[place] > (AHEAD - RANGE if is_on else 0):
                said, _ = client.hear(DispositionFrame)
                open_at[place] -= settled_in(said)
    taken = time.monotonic() - start
    for client in clients:
        client.__exit__()
    return numbers, taken


def latencies(port: int, address: str, seconds: float) -> list[float]:
    """Send one after the other; return the milliseconds to each disposition."""
    found: list[float] = []
    payload = encode_data(os.urandom(SIZE))
    with sender(port, address) as client:
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            sent, number = time.monotonic(), len(found)
            client.send(number, number.to_bytes(4, "big"), payload)
            client.hear(DispositionFrame)
            found.append(1e3 * (time.monotonic() - sent))
    return sorted(found)


def receive(port: int, address: str, count: int) -> None:
    """Receive so many, and accept them in ranges."""
    with RawClient(port, f"bench-{time.monotonic_ns()}") as client:
        source = SourceTerminus(address)
        client.say(
            AttachFrame("receiver", 0, LinkRole.RECEIVER, source=source, target=TargetTerminus("b"))
        )
        client.hear(AttachFrame)
        client.grant(2 * AHEAD)
        taken, first = 0, 0
        while taken < count:
            transfer, _ = client.hear(TransferFrame)
            if transfer.more:
                continue
            taken += 1
            if taken % RANGE == 0 or taken == count:
                client.accept_range(first, taken - 1)
                first = taken
                client.say(FlowFrame(taken, 2_000, 0, 2_000, 0, taken, 2 * AHEAD))


class Measured:
    """The figures of one broker."""

    def __init__(self, port: int, pids: Pids, queues: list[str], seconds: float) -> None:
        self.delays = latencies(port, queues[0], seconds)
        before = cpu_seconds(pids())
        counts, taken = send(port, queues, seconds)
        self.sent_rate = sum(counts) / taken
        self.sent_cpu = 1e6 * (cpu_seconds(pids()) - before) / sum(counts)
        before, start = cpu_seconds(pids()), time.monotonic()
        for queue, count in zip(queues, counts, strict=True):
            receive(port, queue, count)
        self.received_rate = sum(counts) / (time.monotonic() - start)
        self.received_cpu = 1e6 * (cpu_seconds(pids()) - before) / sum(counts)

    def row(self) -> list[str]:
        cut = statistics.quantiles(self.delays, n=100)
        rates = [f"{self.sent_rate:,.0f}", f"{self.received_rate:,.0f}"]
        costs = [f"{self.sent_cpu:.0f}", f"{self.received_cpu:.0f}"]
        return [*rates, f"{cut[49]:.1f}", f"{cut[98]:.1f}", *costs]


@contextmanager
def rabbit_nodes(home: Path, server: Path, queues: list[str]) -> Iterator[tuple[int, Pids]]:
    """Run three nodes of RabbitMQ as one cluster, with quorum queues of three replicas."""
    ports = free_ports(7)
    names = [f"bench{n}@localhost" for n in range(3)]
    environment = dict(os.environ) | {"HOME": str(home), "ERL_EPMD_PORT": str(ports[6])}
    (home / ".erlang.cookie").write_text("bench")
    (home / ".erlang.cookie").chmod(0o400)
    running = []
    for number, name in enumerate(names):
        place = home / name
        place.mkdir()
        (place / "plugins").write_text("[rabbitmq_amqp1_0].")
        lines = [f"listeners.tcp.1 = 127.0.0.1:{ports[number]}"]
        lines += [f"cluster_formation.classic_config.nodes.{n} = {e}" for n, e in enumerate(names)]
        (place / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        own = {
            "RABBITMQ_NODENAME": name,
            "RABBITMQ_DIST_PORT": str(ports[3 + number]),
            "RABBITMQ_MNESIA_BASE": str(place / "mnesia"),
            "RABBITMQ_LOG_BASE": str(place / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq"),
            "RABBITMQ_PID_FILE": str(place / "pid"),
        }
        with (place / "out").open("w") as out:
            command = [str(server / "rabbitmq-server")]
            running.append(subprocess.Popen(command, env=environment | own, stdout=out, stderr=out))
    pid_files = [home / name / "pid" for name in names]
    try:
        control = [str(server / "rabbitmqctl"), "-q", "-n", names[0]]
        _until_three(control, environment)
        for queue in queues:
            declare = (
                f'rabbit_amqqueue:declare(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>), true, '
                'false, [{<<"x-queue-type">>, longstr, <<"quorum">>}], none, <<"guest">>).'
            )
            command = [*control, "eval", declare]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        yield ports[0], lambda: [int(each.read_text()) for each in pid_files]
    finally:
        for pid_file, process in zip(pid_files, running, strict=True):
            if pid_file.exists():
                os.kill(int(pid_file.read_text()), 9)
            process.kill()
            process.wait()
        for _ in range(50):  # it goes when it has noticed that its nodes are gone
            asked = subprocess.run(
                ["epmd", "-kill"], env=environment, capture_output=True, text=True, check=False
            )
            if "Killed" in asked.stdout or asked.returncode:
                break
            time.sleep(0.1)


def _until_three(control: list[str], environment: dict[str, str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    running = "length(rabbit_nodes:all_running()) =:= 3 andalso rabbit:is_running()."
    while True:
        command = [*control, "eval", running]
        asked = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        if asked.returncode == 0 and asked.stdout.strip() == "true":
            return
        assert time.monotonic() < deadline, asked.stdout + asked.stderr
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--rabbitmq", type=Path, default=Path("/usr/lib/rabbitmq"))
    arguments = parser.parse_args()
    names = [f"bench-{number}" for number in range(arguments.queues)]
    table = Table(title=f"AMQP 1.0, {SIZE} bytes, {len(names)} queues, three nodes")
    for name in ("broker", "in/s", "out/s", "p50 ms", "p99 ms", "CPU µs in", "CPU µs out"):
        table.add_column(name, justify="right")
    print("load:", os.getloadavg())
    with tempfile.TemporaryDirectory() as root:
        with ClusterProcess(Path(root) / "q", tenant_prgs=3, patience=UNHURRIED) as cluster:
            cluster.until(lambda: all_served(cluster), "every partition is served")
            port = cluster.admins()[0].port + AMQP_PLACE
            for name in names:
                sender(port, name).__exit__()  # makes it
            own = Measured(port, lambda: list(cluster.pids.values()), names, arguments.seconds)
            table.add_row("Quantum", *own.row())
            print("Quantum is measured")  # RabbitMQ may take a minute to start
        servers = sorted(arguments.rabbitmq.glob("lib/rabbitmq_server-*/sbin"))
        if servers:
            home = Path(root) / "rabbit"
            home.mkdir()
            with rabbit_nodes(home, servers[-1], names) as (port, pids):
                there = [f"/amq/queue/{each}" for each in names]
                peer = Measured(port, pids, there, arguments.seconds)
                table.add_row(servers[-1].parent.name, *peer.row())
    Console().print(table)
    print("load:", os.getloadavg())


if __name__ == "__main__":
    main()
