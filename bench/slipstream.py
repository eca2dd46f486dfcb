"""Slipstream beside itself: three folds, ACK subjects against the client's parser, latency.

Run it from the root: `python -m bench.slipstream [--keys 1000000]`. Each fold runs in a process
of its own, so that its memory is its own; the NATS server of the last table is the one that the
development dependencies bring.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from slipstream import NatsConnection, NatsConnectionConfig, watch_applied
from slipstream.folds import FOLD_BACKENDS, AppendLogSnapshot, fold_backend
from slipstream.nats import parse_ack
from slipstream.types import (
    KvUpdate,
    UpdateKind,
    VersionToken,
    WatchCursor,
)

BATCH = 100
VALUE = b"a value of thirty-two bytes here"


def updates(start: int, count: int) -> list[KvUpdate]:
    """Give puts of keys as configuration has them."""
    return [
        KvUpdate(UpdateKind.PUT, f"service.{n:08}.address", VALUE, VersionToken.from_u64(n + 1), n)
        for n in range(start, start + count)
    ]


def resident_mib() -> float:
    """Give the memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


def bench_fold(name: str, keys: int, phase: str, path: str) -> dict[str, float]:
    """Apply all keys in batches, or load the fold and read from it."""
    gc.freeze()
    before = resident_mib()
    if phase == "apply":
        spent = processor = 0.0
        with fold_backend(name).load(path) as fold:
            for start in range(0, keys, BATCH * 100):
                made = updates(start, min(BATCH * 100, keys - start))
                began, began_processor = time.perf_counter(), time.process_time()
                for at in range(0, len(made), BATCH):
                    batch = made[at : at + BATCH]
                    fold.apply(batch, WatchCursor(batch[-1].version.raw, b"12345678", b"", 1))
                spent += time.perf_counter() - began
                processor += time.process_time() - began_processor
        return {
            "rate": keys / spent,
            "cpu_rate": keys / processor,
            "memory": resident_mib() - before,
        }
    began, began_processor = time.perf_counter(), time.process_time()
    with fold_backend(name).load(path) as fold:
        loaded, loaded_processor = (
            time.perf_counter() - began,
            time.process_time() - began_processor,
        )
        began = time.perf_counter()
        for n in range(0, keys, max(1, keys // 20_000)):
            assert fold.get(f"service.{n:08}.address") is not None
        reads = len(range(0, keys, max(1, keys // 20_000))) / (time.perf_counter() - began)
        began = time.perf_counter()
        assert sum(1 for _ in fold.keys("service.")) == keys
        walked = keys / (time.perf_counter() - began)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    return {
        "load": loaded,
        "cpu_load": loaded_processor,
        "reads": reads,
        "walk": walked,
        "memory": peak,
    }


def run_alone(name: str, keys: int, phase: str, path: str) -> dict[str, float]:
    """Run one phase in a process of its own."""
    words = [sys.executable, __file__, "--phase", phase, "--fold", name]
    done = subprocess.run(
        [*words, "--keys", str(keys), "--path", path], capture_output=True, text=True, check=True
    )
    facts: dict[str, float] = json.loads(done.stdout)
    return facts


def fold_table(keys: int) -> Table:
    table = Table(title=f"folds, {keys:,} keys in batches of {BATCH}", title_justify="left")
    headings = ("fold", "updates/s", "per CPU s", "load s", "CPU s", "gets/s", "keys/s walked")
    for heading in (*headings, "MiB apply", "MiB load"):
        table.add_column(heading, justify="right")
    for name in FOLD_BACKENDS:
        with tempfile.TemporaryDirectory() as directory:
            path = str(Path(directory) / "fold")
            applied = run_alone(name, keys, "apply", path)
            loaded = run_alone(name, keys, "load", path)
        table.add_row(
            name,
            f"{applied['rate']:,.0f}",
            f"{applied['cpu_rate']:,.0f}",
            f"{loaded['load']:.2f}",
            f"{loaded['cpu_load']:.2f}",
            f"{loaded['reads']:,.0f}",
            f"{loaded['walk']:,.0f}",
            f"{applied['memory']:,.0f}",
            f"{loaded['memory']:,.0f}",
        )
    return table


def ack_table() -> Table:
    """Parse ACK subjects with ours and with the client library's own."""
    from nats.aio.msg import Msg

    table = Table(title="10,000 ACK subjects", title_justify="left")
    for heading in ("parser", "ms", "ns each"):
        table.add_column(heading, justify="right")
    replies = [f"$JS.ACK.KV_b.consumer.1.{n}.{n}.1700000000000000000.{n}" for n in range(10_000)]

    def ours() -> None:
        for reply in replies:
            parse_ack(reply)

    def theirs() -> None:
        for reply in replies:
            Msg.Metadata._from_reply(reply)

    for name, parse in (("slipstream", ours), ("nats-py metadata", theirs)):
        spent = min(_timed(parse) for _ in range(5))
        table.add_row(name, f"{spent * 1000:.2f}", f"{spent * 1e5:,.0f}")
    return table


def _timed(work: object) -> float:
    assert callable(work)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def latency_table(puts: int) -> Table:
    """Measure from before a put until its cursor is in the fold."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        binary = str(Path(sys.executable).parent / "nats-server")
        words = [binary, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", directory]
        server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert server.stderr is not None
        while "Server is ready" not in server.stderr.readline():
            pass
        try:
            latencies = await _latencies(f"nats://127.0.0.1:{port}", directory, puts)
        finally:
            server.terminate()
            server.wait()
    table = Table(title=f"put → applied and stored, {puts:,} puts", title_justify="left")
    for heading in ("fold", "window ms", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    for (name, window), values in latencies.items():
        cuts = statistics.quantiles(values, n=100)
        table.add_row(name, f"{window:g}", f"{cuts[49] * 1000:.2f}", f"{cuts[98] * 1000:.2f}")
    return table


async def _latencies(url: str, directory: str, puts: int) -> dict[tuple[str, float], list[float]]:
    from slipstream import BatchConfig

    connection = NatsConnection(NatsConnectionConfig(url))
    await connection.connect()
    results: dict[tuple[str, float], list[float]] = {}
    for window in (0.0, 10.0):
        store = await connection.store(f"latency-{int(window)}")
        applied, stop = asyncio.Event(), asyncio.Event()

        async def on_applied(_: WatchCursor, applied: asyncio.Event = applied) -> None:
            applied.set()

        with AppendLogSnapshot.load(Path(directory) / f"fold-{window}") as fold:
            running = asyncio.ensure_future(
                watch_applied(
                    store.watcher(), fold=fold, on_applied=on_applied, stop=stop,
                    config=BatchConfig(window_seconds=window / 1000),
                )
            )  # fmt: skip
            values: list[float] = []
            for n in range(puts):
                applied.clear()
                began = time.perf_counter()
                await store.writer().put(f"k.{n % 100}", VALUE)
                await applied.wait()
                values.append(time.perf_counter() - began)
            stop.set()
            await running
        results["log", window] = values
    await connection.shutdown()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--puts", type=int, default=1_000)
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    parser.add_argument("--fold", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        print(json.dumps(bench_fold(options.fold, options.keys, options.phase, options.path)))
        return
    console = Console(width=110)
    console.print(fold_table(options.keys))
    console.print(ack_table())
    console.print(asyncio.run(latency_table(options.puts)))


if __name__ == "__main__":
    main()
