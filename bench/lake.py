"""From an archive to rows, beside PyArrow and Spark on the same rows and bytes, in one run.

    python -m bench.lake [--mib 64] [--growth 1,2,4] [--payload 1024] [--rounds 3] [--no-spark]

The archive is made by the real log writer and the real archiver, of real commands. In this process
one core works, and figures are of its CPU time: decrypt + decode to Arrow, with the broker replayed
(`applied`) and without (`logged`), a bare replay, and PyArrow reading the same rows from Parquet.
Spark runs on `local[1]`, one task at a time, and its figures are of the clock: rows into nowhere
and into Parquet, beside Spark's own Parquet, text and binaryFile sources. `--mib 1024 --growth 1,8`
is the run from 1 to 8 GiB. MB are of payload.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from clustor.log.types import EntryKind
from clustor.replica import decode_batch
from clustor.replica.batch import encode_batch
from clustor.runtime.memory import keep_freed_memory
from quantum.archive.types import IndexRange
from quantum.broker import OWN_ORIGIN, Broker, encode_publishes, encode_record
from quantum.lake.archive import DirectoryKeys, LogSource, open_source
from quantum.lake.offsets import Offsets
from quantum.lake.planner import Cutting, Limits, plan
from quantum.lake.reader import offer_of, read_task
from quantum.lake.schema import arrow_schema
from quantum.lake.settings import settings_of
from tests.quantum.lake.log_directory import LogDirectory

NOW_MS = 1_763_200_000_000
RECORDS_PER_ENTRY = 128
ENTRIES_PER_WRITE = 16
PARTITION_BYTES = 64 << 20


class Bench:
    """One archive of one partition, and everything that reads it."""

    def __init__(self, root: Path, payload_bytes: int, messages: int) -> None:
        self.var, self.archive = root / "var", root / "archive"
        self.parquet, self.text = root / "rows.parquet", root / "text"
        self.messages, self.payload_bytes = messages, payload_bytes
        self._make()
        self.source: LogSource = open_source(self.archive.as_uri(), DirectoryKeys(str(self.var)))
        self.prg = self.source.prgs()[0]

    def _make(self) -> None:
        payloads = [os.urandom(self.payload_bytes // 2).hex().encode() for _ in range(64)]
        with LogDirectory(self.var, prgs=1, segment_bytes=64 << 20) as logs:
            entries = _entries(payloads, self.messages)
            while write := list(islice(entries, ENTRIES_PER_WRITE)):
                logs.append(0, write)
            logs.archive(0, self.archive.as_uri())
        self.text.mkdir()
        with (self.text / "payloads.txt").open("wb") as out:
            for nth in range(self.messages):
                out.write(payloads[nth % len(payloads)] + b"\n")

    def batches(self, *, exact: bool) -> Iterator[pa.RecordBatch]:
        """Decrypt and decode everything to Arrow, as one task."""
        broker = str(self.var)
        offer = offer_of(self.source, self.prg, exact=exact, broker=broker)
        cutting = Cutting(1 << 40, exact=exact)
        _, tasks = plan(Offsets(), {self.prg: offer}, Limits(), cutting=cutting)
        for task in tasks:
            yield from read_task(self.source, task, broker=broker)

    def read(self, *, exact: bool) -> None:
        rows = sum(batch.num_rows for batch in self.batches(exact=exact))
        assert rows == self.messages, (rows, self.messages)

    def replay(self) -> None:
        """Let a broker apply the log, and nothing else."""
        settings = settings_of(self.source, self.prg, str(self.var))
        assert settings is not None
        broker = Broker(settings)
        bounds = self.source.bounds(self.prg)
        for entry in self.source.entries(IndexRange(self.prg, bounds.first, bounds.last)):
            if entry.kind is EntryKind.DATA:
                broker.apply_batch(entry.index, decode_batch(entry.payload))

    def replay_single(self) -> None:
        """The same messages, each in a command of its own: the dearest way to log them."""
        settings = settings_of(self.source, self.prg, str(self.var))
        assert settings is not None
        broker = Broker(settings)
        for index, commands in enumerate(self._single, 1):
            broker.apply_batch(index, decode_batch(commands))

    @cached_property
    def _single(self) -> list[bytes]:
        record = encode_record(b"plant/1", bytes(self.payload_bytes), 1, b"", 0, b"client", 1, 1)
        command = encode_publishes(NOW_MS, OWN_ORIGIN, 0, 0, [record])
        entry = encode_batch([command] * RECORDS_PER_ENTRY)
        return [entry] * (self.messages // RECORDS_PER_ENTRY)

    def write_parquet(self) -> None:
        with pq.ParquetWriter(self.parquet, arrow_schema(), compression="none") as writer:
            for batch in self.batches(exact=True):
                writer.write_batch(batch)

    def read_parquet(self) -> None:
        rows = sum(
            batch.num_rows for batch in pq.ParquetFile(self.parquet).iter_batches(batch_size=8_192)
        )
        assert rows == self.messages


def _entries(payloads: list[bytes], messages: int) -> Iterator[list[bytes]]:
    for first in range(0, messages, RECORDS_PER_ENTRY):
        records = [
            encode_record(
                b"plant/line%d/sensor%d" % (nth % 7, nth % 50),
                payloads[nth % len(payloads)],
                1,
                b"",
                0,
                b"client-%d" % (nth % 20),
                1,
                nth % 65_535 + 1,
            )
            for nth in range(first, min(messages, first + RECORDS_PER_ENTRY))
        ]
        yield [encode_publishes(NOW_MS + first, OWN_ORIGIN, 0, 0, records)]


def timed(work: Callable[[], object], clock: Callable[[], float], rounds: int) -> float:
    """Return the median seconds of some rounds, after one to warm up."""
    work()
    found = []
    for _ in range(rounds):
        begin = clock()
        work()
        found.append(clock() - begin)
    return statistics.median(found)


def in_process(bench: Bench, rounds: int) -> dict[str, float]:
    cpu = time.process_time
    found = {
        "archive → Arrow, applied": timed(lambda: bench.read(exact=True), cpu, rounds),
        "archive → Arrow, logged": timed(lambda: bench.read(exact=False), cpu, rounds),
        "archive → broker's state (replay)": timed(bench.replay, cpu, rounds),
        "replay, a command for each message": timed(bench.replay_single, cpu, rounds),
        "archive → Parquet, this process": timed(bench.write_parquet, cpu, rounds),
    }
    pa.set_cpu_count(1)
    found["PyArrow: Parquet → Arrow"] = timed(bench.read_parquet, cpu, rounds)
    return found


def in_spark(bench: Bench, rounds: int, out: Path) -> dict[str, float]:
    from quantum.lake.session import spark_session

    scratch = {"spark.ui.enabled": "false", "spark.local.dir": str(out)}
    spark = spark_session("local[1]", config=scratch | {"spark.driver.memory": "2g"})
    quantum = (
        spark.read.format("quantum")
        .option("path", bench.archive.as_uri())
        .option("keys", f"directory:{bench.var}")
        .option("broker", str(bench.var))
        .option("partitionBytes", str(PARTITION_BYTES))
    )
    frames = {
        "Spark: archive → DataFrame": quantum.load(),
        "Spark: Parquet → DataFrame": spark.read.parquet(str(bench.parquet)),
        "Spark: text → DataFrame": spark.read.text(str(bench.text)),
        "Spark: binaryFile → DataFrame": spark.read.format("binaryFile")
        .option("recursiveFileLookup", "true")
        .load(str(bench.archive)),
    }
    found = {}
    for name, frame in frames.items():
        work = frame.write.format("noop").mode("overwrite").save
        found[name] = timed(work, time.perf_counter, rounds)
    target = str(out / "spark.parquet")
    parquet = quantum.load().write.mode("overwrite").option("compression", "none")
    found["Spark: archive → Parquet"] = timed(
        lambda: parquet.parquet(target), time.perf_counter, rounds
    )
    spark.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=64, help="of payload, for a growth of 1")
    parser.add_argument("--growth", default="1", help="multiples of --mib, with commas")
    parser.add_argument("--payload", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--directory", type=Path, default=None, help="where to make the archives")
    arguments = parser.parse_args()
    keep_freed_memory()
    table = Table(title=f"Payloads of {arguments.payload} B: MB/s (rows/s)")
    table.add_column("")
    cells: dict[str, list[str]] = {}
    for factor in map(int, arguments.growth.split(",")):
        table.add_column(f"{factor * arguments.mib} MiB", justify="right")
        messages = (factor * arguments.mib << 20) // arguments.payload
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            bench = Bench(Path(directory), arguments.payload, messages)
            found = in_process(bench, arguments.rounds)
            if not arguments.no_spark:
                found |= in_spark(bench, arguments.rounds, Path(directory))
        for name, seconds in found.items():
            size = messages * arguments.payload / seconds / 1e6
            cells.setdefault(name, []).append(f"{size:,.0f} ({messages / seconds:,.0f})")
    for name, row in cells.items():
        table.add_row(name, *row)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
