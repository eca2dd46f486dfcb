"""From an archive to rows, beside PyArrow and Spark on the same rows and bytes, in one run.

    python -m bench.lake [--mib 64] [--growth 1,2,4] [--payload 1024] [--rounds 3] [--no-spark]
    python -m bench.lake --gib 1,2,4,8 [--directory DIR] [--only applied,logged]

The archive is made by the real log writer and the real archiver, of real commands. In this process
one core works, and figures are of its CPU time: decrypt + decode to Arrow, with the broker replayed
(`applied`) and without (`logged`), a bare replay, and PyArrow reading the same rows from Parquet.
Spark runs on `local[1]`, one task at a time, and its figures are of the clock: rows into nowhere
and into Parquet, beside Spark's own Parquet, text and binaryFile sources. MB are of payload.

`--gib` is growth: one archive grows from size to size, and everything is read once at each, without
a round to warm up. With `--directory` archive and figures (`figures.json`) stay there: a run that
was stopped, or asked for fewer sizes, is gone on with by the next one, and the table shows all that
is known. Delete the directory to begin anew. It needs room for four times the largest size: the
archive, its rows as Parquet by us and by Spark, and its payloads as text.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
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
from clustor.runtime.disk.memory import keep_freed_memory
from quantum.archive.types import IndexRange
from quantum.broker import OWN_ORIGIN, Broker, encode_publishes, encode_record
from quantum.lake.archive import DirectoryKeys, LogSource
from quantum.lake.offsets import Offsets
from quantum.lake.opening import open_source
from quantum.lake.planner import BatchLimits, Cutting, plan
from quantum.lake.reader import offer_of, read_task
from quantum.lake.schema import arrow_schema
from quantum.lake.settings import settings_of
from tests.quantum.lake.log_directory import LogDirectory

NOW_MS = 1_763_200_000_000
RECORDS_PER_ENTRY = 128
ENTRIES_PER_WRITE = 16
PARTITION_BYTES = 64 << 20
FIGURES_FILE = "figures.json"
COPIES = 4.3
"""Disk that a size needs, in sizes."""
SINGLE = "replay, a command for each message"
"""Made of one entry again and again: it does not depend on how large the archive is."""
Figures = dict[str, dict[str, float]]
"""Seconds of each measure, by MiB and name."""


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
        """Add what is missing to what an earlier piece, or a run that was stopped, made."""
        payloads = [os.urandom(self.payload_bytes // 2).hex().encode() for _ in range(64)]
        with LogDirectory(self.var, prgs=1, segment_bytes=64 << 20) as logs:
            entries = _entries(payloads, logs.last_index(0) * RECORDS_PER_ENTRY, self.messages)
            while write := list(islice(entries, ENTRIES_PER_WRITE)):
                logs.append(0, write)
            assert logs.last_index(0) * RECORDS_PER_ENTRY == self.messages, "another size is here"
            logs.archive(0, self.archive.as_uri())
            logs.compact(0, logs.last_index(0))  # nobody reads it but the archiver
        self.text.mkdir(exist_ok=True)
        with (self.text / "payloads.txt").open("ab") as out:
            out.truncate(out.tell() - out.tell() % (self.payload_bytes + 1))
            for nth in range(out.tell() // (self.payload_bytes + 1), self.messages):
                out.write(_payload(payloads, nth) + b"\n")

    def batches(self, *, exact: bool) -> Iterator[pa.RecordBatch]:
        """Decrypt and decode everything to Arrow, as one task."""
        broker = str(self.var)
        offer = offer_of(self.source, self.prg, exact=exact, broker=broker)
        cutting = Cutting(1 << 40, exact=exact)
        _, tasks = plan(Offsets(), {self.prg: offer}, BatchLimits(), cutting=cutting)
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
        """Without buffering ahead, which holds the whole file and is slower here."""
        with pq.ParquetFile(self.parquet, pre_buffer=False) as file:
            rows = sum(batch.num_rows for batch in file.iter_batches(batch_size=8_192))
        assert rows == self.messages


def _entries(payloads: list[bytes], before: int, messages: int) -> Iterator[list[bytes]]:
    for first in range(before, messages, RECORDS_PER_ENTRY):
        records = [
            encode_record(
                b"plant/line%d/sensor%d" % (nth % 7, nth % 50),
                _payload(payloads, nth),
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


def _payload(payloads: list[bytes], nth: int) -> bytes:
    """No two are equal, or a dictionary would hold them all."""
    return b"%016x" % nth + payloads[nth % len(payloads)][16:]


def timed(name: str, work: Callable[[], object], clock: Callable[[], float], rounds: int) -> float:
    """Return the median seconds of some rounds, after one to warm up where there are several."""
    print(f"{time.strftime('%H:%M:%S')} {name}", file=sys.stderr, flush=True)
    if rounds > 1:
        work()
    found = []
    for _ in range(rounds):
        begin = clock()
        work()
        found.append(clock() - begin)
    return statistics.median(found)


def in_process(bench: Bench, rounds: int, wanted: Callable[[str], bool]) -> dict[str, float]:
    pa.set_cpu_count(1)
    works: dict[str, Callable[[], object]] = {
        "archive → Arrow, applied": lambda: bench.read(exact=True),
        "archive → Arrow, logged": lambda: bench.read(exact=False),
        "archive → broker's state (replay)": bench.replay,
        SINGLE: bench.replay_single,
        "archive → Parquet, this process": bench.write_parquet,
        "PyArrow: Parquet → Arrow": bench.read_parquet,
    }
    return {
        name: timed(name, work, time.process_time, rounds)
        for name, work in works.items()
        if wanted(name)
    }


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
        found[name] = timed(name, work, time.perf_counter, rounds)
    target, name = out / "spark.parquet", "Spark: archive → Parquet"
    parquet = quantum.load().write.mode("overwrite").option("compression", "none")
    found[name] = timed(name, lambda: parquet.parquet(str(target)), time.perf_counter, rounds)
    spark.stop()
    shutil.rmtree(target)
    return found


def measured(
    root: Path, mib: int, arguments: argparse.Namespace, is_known: Callable[[str], bool]
) -> dict[str, float]:
    """Make, or grow, an archive of so many MiB and measure what was asked for."""
    messages = (mib << 20) // arguments.payload
    print(f"{time.strftime('%H:%M:%S')} making {mib} MiB", file=sys.stderr, flush=True)
    bench = Bench(root, arguments.payload, messages)
    only = arguments.only.split(",") if arguments.only else [""]
    found = in_process(
        bench,
        arguments.rounds,
        lambda name: any(each in name for each in only) and not is_known(name),
    )
    if not arguments.no_spark and not arguments.only:
        found |= in_spark(bench, arguments.rounds, root)
    return found


def grown(root: Path, sizes: list[int], arguments: argparse.Namespace) -> Figures:
    """Grow one archive from size to size; what is known already is not measured again."""
    root.mkdir(parents=True, exist_ok=True)
    kept = root / FIGURES_FILE
    figures: Figures = json.loads(kept.read_text()) if kept.exists() else {}

    def is_known(name: str) -> bool:
        return name == SINGLE and any(name in each for each in figures.values())

    for mib in sorted(sizes):
        if str(mib) not in figures:
            figures[str(mib)] = measured(root, mib, arguments, is_known)
            kept.write_text(json.dumps(figures, indent=1))
    return figures


def anew(sizes: list[int], arguments: argparse.Namespace) -> Figures:
    figures: Figures = {}
    for mib in sizes:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            figures[str(mib)] = measured(Path(directory), mib, arguments, lambda _: False)
    return figures


def growth(sizes: list[int], arguments: argparse.Namespace) -> Figures:
    """Refuse to begin what the disk cannot hold; without a directory leave nothing behind."""
    place = arguments.directory or Path(tempfile.gettempdir())
    place.mkdir(parents=True, exist_ok=True)
    there = sum(each.stat().st_size for each in place.rglob("*") if each.is_file())
    wanted = COPIES * (max(sizes) << 20) - (there if arguments.directory else 0)
    free = shutil.disk_usage(place).free
    if free < wanted:
        sys.exit(f"{place} has {free >> 30} GiB free; this needs {int(wanted) >> 30}")
    if arguments.directory is not None:
        return grown(arguments.directory, sizes, arguments)
    with tempfile.TemporaryDirectory() as directory:
        return grown(Path(directory), sizes, arguments)


def show(figures: Figures, payload_bytes: int) -> None:
    table = Table(title=f"Payloads of {payload_bytes} B: MB/s (rows/s)")
    table.add_column("")
    sizes = sorted(figures, key=int)
    for mib in sizes:
        table.add_column(f"{mib} MiB", justify="right")
    for name in dict.fromkeys(name for mib in sizes for name in figures[mib]):
        row = []
        for mib in sizes:
            seconds = figures[mib].get(name)
            size = int(mib) << 20
            row.append(
                f"{size / seconds / 1e6:,.0f} ({size // payload_bytes / seconds:,.0f})"
                if seconds
                else ""
            )
        table.add_row(name, *row)
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=64, help="of payload, for a growth of 1")
    parser.add_argument("--growth", default="1", help="multiples of --mib, with commas")
    parser.add_argument("--gib", default=None, help="sizes in GiB, with commas: one archive grows")
    parser.add_argument("--payload", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=0, help="default: 3, and 1 for growth")
    parser.add_argument("--only", default="", help="measures whose names contain one of these")
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--directory", type=Path, default=None, help="where to make the archives")
    arguments = parser.parse_args()
    keep_freed_memory()
    if arguments.gib is None:
        arguments.rounds = arguments.rounds or 3
        figures = anew(
            [arguments.mib * int(each) for each in arguments.growth.split(",")], arguments
        )
    else:
        arguments.rounds = arguments.rounds or 1
        figures = growth([int(1024 * float(each)) for each in arguments.gib.split(",")], arguments)
    show(figures, arguments.payload)


if __name__ == "__main__":
    main()
