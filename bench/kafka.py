"""Produce and consume by librdkafka through real nodes, acks=all, beside NATS JetStream with fsync.

    python -m bench.kafka [--seconds 5] [--nodes 3] [--only produce|latency]

Every acknowledgement of Quantum is fsynced on a quorum; NATS has three servers, R3 streams and
`sync_interval: always`, and gets the same sizes in the same run. CPU is what the kernel charged
the nodes' processes, client not included. Latency is from produce to acknowledgement at a rate
that neither of them is busy with.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from rich.console import Console
from rich.table import Table

from tests.clustor.runtime.waiting import free_ports
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.kafka_clients import kafka_of, make_topic, until

SIZES = (100, 1_000, 10_000)
PARTITIONS = 6
RATE = 200
PEER = "NATS JetStream R3, sync_interval: always"
_TICKS = os.sysconf("SC_CLK_TCK")
Pids = Callable[[], list[int]]


def cpu_seconds(pids: list[int]) -> float:
    """Return what processes were charged, of user and system time."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def produce(address: str, topic: str, size: int, seconds: float) -> tuple[int, float]:
    """Produce for so long; return how many were acknowledged, and after how long all were."""
    options: dict[str, Any] = {"bootstrap.servers": address, "acks": "all", "linger.ms": 5}
    options |= {"batch.size": 900_000, "queue.buffering.max.kbytes": 65_536}
    producer = Producer(options)
    acked = 0

    def told(error: object, _message: object) -> None:
        nonlocal acked
        acked += error is None

    payload = os.urandom(size)
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        try:
            for _ in range(100):
                producer.produce(topic, payload, on_delivery=told)
            producer.poll(0)
        except BufferError:
            producer.poll(0.01)
    producer.flush(60)
    return acked, time.monotonic() - start


def consume(address: str, topic: str, count: int) -> float:
    """Read so many records from the beginning; return how long it took."""
    options: dict[str, Any] = {"bootstrap.servers": address, "group.id": "bench"}
    options |= {"enable.auto.commit": False, "fetch.message.max.bytes": 4 << 20}
    consumer = Consumer(options)
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    start, found = time.monotonic(), 0
    while found < count and time.monotonic() - start < 120:
        found += len(consumer.consume(10_000, 0.5))
    taken = time.monotonic() - start
    consumer.close()
    return taken


def _told(found: list[float], sent: float, _error: object, _message: object) -> None:
    found.append(1e3 * (time.monotonic() - sent))


def latencies(address: str, topic: str, size: int, seconds: float) -> list[float]:
    """Produce at a fixed rate; return the milliseconds to each acknowledgement."""
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 0})
    found: list[float] = []
    payload = os.urandom(size)
    start = time.monotonic()
    for number in range(int(RATE * seconds)):
        while time.monotonic() < start + number / RATE:
            producer.poll(0.0005)
        sent = time.monotonic()
        producer.produce(topic, payload, on_delivery=partial(_told, found, sent))
    producer.flush(30)
    return sorted(found)


@contextmanager
def nats_servers(directory: Path) -> Iterator[tuple[str, Pids]]:
    """Run three NATS servers that sync every write."""
    ports = free_ports(6)
    routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports[3:])
    running = []
    for number in range(3):
        home = directory / f"nats-{number}"
        home.mkdir(parents=True)
        config = home / "nats.conf"
        config.write_text(
            f"server_name: n{number}\nlisten: 127.0.0.1:{ports[number]}\n"
            f'jetstream {{ store_dir: "{home}", sync_interval: always }}\n'
            f"cluster {{ name: bench, listen: 127.0.0.1:{ports[3 + number]}\n"
            f"routes: [{routes}] }}\n"
        )
        binary = str(Path(sys.executable).parent / "nats-server")
        quiet = subprocess.DEVNULL
        running.append(subprocess.Popen([binary, "-c", str(config)], stdout=quiet, stderr=quiet))
    try:
        address = ",".join(f"nats://127.0.0.1:{port}" for port in ports[:3])
        yield address, lambda: [each.pid for each in running]
    finally:
        for each in running:
            each.kill()
            each.wait()


async def nats_stream(address: str, name: str) -> tuple[Any, Any]:
    """Connect, and make a stream of three replicas; return the client and its JetStream."""
    import nats

    client = await nats.connect(address.split(","), connect_timeout=10)
    stream = client.jetstream(publish_async_max_pending=256)
    for attempt in range(50):
        try:
            await stream.add_stream(name=name, subjects=[name], num_replicas=3)
            break
        except (nats.errors.Error, nats.js.errors.Error):
            assert attempt < 49, "no JetStream"
            await asyncio.sleep(0.3)
    return client, stream


async def nats_latencies(address: str, size: int, seconds: float) -> list[float]:
    """Publish at the fixed rate; return the milliseconds to each acknowledgement."""
    name = f"late{size}"
    client, stream = await nats_stream(address, name)
    found: list[float] = []
    payload, waiting = os.urandom(size), []
    start = time.monotonic()
    for number in range(int(RATE * seconds)):
        await asyncio.sleep(max(0.0, start + number / RATE - time.monotonic()))
        published = await stream.publish_async(name, payload)
        published.add_done_callback(partial(_nats_told, found, time.monotonic()))
        waiting.append(published)
    await asyncio.wait(waiting, timeout=30)
    await client.close()
    return sorted(found)


def _nats_told(found: list[float], sent: float, _published: object) -> None:
    found.append(1e3 * (time.monotonic() - sent))


async def nats_produce(address: str, size: int, seconds: float) -> tuple[int, float]:
    """Publish with 256 in flight for so long; return how many were acknowledged."""
    name = f"bench{size}"
    client, stream = await nats_stream(address, name)
    payload, acked = os.urandom(size), 0
    start = time.monotonic()
    waiting: set[asyncio.Future[Any]] = set()
    while time.monotonic() - start < seconds:
        waiting.add(await stream.publish_async(name, payload))
        if len(waiting) >= 256:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            acked += len(done)
    if waiting:
        done, _ = await asyncio.wait(waiting, timeout=30)
        acked += len(done)
    taken = time.monotonic() - start
    await client.close()
    return acked, taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--only", choices=("produce", "latency"), default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        run(arguments, Path(root), Console())


def run(arguments: argparse.Namespace, root: Path, console: Console) -> None:
    seconds = arguments.seconds
    with ClusterProcess(
        root / "quantum", nodes=arguments.nodes, tenant_prgs=3, patience=UNHURRIED
    ) as cluster:
        address = kafka_of(cluster)
        for size in SIZES:
            make_topic(address, f"bench{size}", PARTITIONS)
        until(lambda: len(cluster.pids) == arguments.nodes, "all run")

        def pids() -> list[int]:
            return list(cluster.pids.values())

        if arguments.only != "latency":
            console.print(_rates(address, pids, seconds))
        if arguments.only != "produce":
            console.print(_delays("Quantum: ", partial(_own_latencies, address), seconds))
    with nats_servers(root) as (peer, peer_pids):
        if arguments.only != "latency":
            console.print(_peer_rates(peer, peer_pids, seconds))
        if arguments.only != "produce":
            console.print(_delays(f"{PEER}: ", partial(_peer_latencies, peer), seconds))


def _rates(address: str, pids: Pids, seconds: float) -> Table:
    table = Table(title="Quantum: Kafka, acks=all, fsynced on a quorum")
    for name in ("bytes", "produced MB/s", "records/s", "CPU ms/MB", "consumed MB/s"):
        table.add_column(name, justify="right")
    for size in SIZES:
        before = cpu_seconds(pids())
        count, taken = produce(address, f"bench{size}", size, seconds)
        spent = cpu_seconds(pids()) - before
        megabytes = count * size / 1e6
        read = consume(address, f"bench{size}", count)
        table.add_row(
            *(str(size), f"{megabytes / taken:.1f}", f"{count / taken:,.0f}"),
            *(f"{1e3 * spent / megabytes:.1f}", f"{megabytes / read:.1f}"),
        )
    return table


def _own_latencies(address: str, size: int, seconds: float) -> list[float]:
    return latencies(address, f"bench{size}", size, seconds)


def _peer_latencies(address: str, size: int, seconds: float) -> list[float]:
    return asyncio.run(nats_latencies(address, size, seconds))


def _delays(who: str, measure: Callable[[int, float], list[float]], seconds: float) -> Table:
    table = Table(title=f"{who}produce to acknowledgement at {RATE} records/s, ms")
    for name in ("bytes", "p50", "p99"):
        table.add_column(name, justify="right")
    for size in SIZES:
        found = measure(size, seconds)
        cut = statistics.quantiles(found, n=100)
        table.add_row(str(size), f"{cut[49]:.1f}", f"{cut[98]:.1f}")
    return table


def _peer_rates(address: str, pids: Pids, seconds: float) -> Table:
    table = Table(title=PEER)
    for name in ("bytes", "produced MB/s", "records/s", "CPU ms/MB"):
        table.add_column(name, justify="right")
    for size in SIZES:
        before = cpu_seconds(pids())
        count, taken = asyncio.run(nats_produce(address, size, seconds))
        spent = cpu_seconds(pids()) - before
        megabytes = count * size / 1e6
        row = (str(size), f"{megabytes / taken:.1f}", f"{count / taken:,.0f}")
        table.add_row(*row, f"{1e3 * spent / megabytes:.1f}")
    return table


if __name__ == "__main__":
    main()
