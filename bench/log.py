"""The append path beside a bare loop of pwrite + fdatasync of the same bytes, in one run.

    python -m bench.log [--seconds 1] [--rounds 3]

The bare loop writes the same number of bytes to two pre-written files and syncs each, as
clustor §10.5 orders it; everything above that is ours. Both run alternately, and medians are
printed: the machine's noise hits both.
"""

from __future__ import annotations

import argparse
import os
import select
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

from clustor.log.config import LogConfig
from clustor.log.keys import KeyRing
from clustor.log.ledger import DurabilityRecord
from clustor.log.types import DekEpoch, Entry, IoWriterMode, LogIndex, MacEpoch, PartitionId, Term
from clustor.runtime.disk import Disk, RingBroken, open_mode
from clustor.runtime.disk.memory import keep_freed_memory
from clustor.runtime.partition_log import PartitionLog, open_partition_log

Way: TypeAlias = Callable[[Path, int, int], AbstractContextManager[Callable[[], None]]]
SEGMENT_BYTES = 64 << 20
SHAPES = [(count, size) for size in (256, 8192) for count in (1, 16, 64, 256)]


@dataclass
class Measured:
    """One way of appending, for one shape of batch."""

    entries_per_second: float
    cpu_us_per_entry: float
    batch_us: float


def keys() -> KeyRing:
    ring = KeyRing()
    ring.add_dek(DekEpoch(1), os.urandom(32))
    ring.add_mac(MacEpoch(1), os.urandom(32))
    return ring


def measure(turn: Callable[[], None], count: int, seconds: float) -> Measured:
    """Call `turn`, which appends `count` entries durably, for about `seconds`."""
    turn()
    durations: list[float] = []
    cpu = time.process_time()
    begin = time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        turn()
        durations.append(time.perf_counter() - now)
    elapsed = time.perf_counter() - begin
    entries = len(durations) * count
    return Measured(
        entries / elapsed,
        (time.process_time() - cpu) / entries * 1e6,
        statistics.median(durations) * 1e6,
    )


def pre_written(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(SEGMENT_BYTES >> 20):
        os.write(descriptor, bytes(1 << 20))
    os.fsync(descriptor)
    return descriptor


@contextmanager
def bare(root: Path, count: int, size: int) -> Iterator[Callable[[], None]]:
    """The floor: the same bytes, written and synced, and a 64-byte record likewise."""
    log, ledger = pre_written(root / "log"), pre_written(root / "ledger")
    data = os.urandom(count * size)
    record = os.urandom(64)
    position = 0
    nth = 0

    def turn() -> None:
        nonlocal position, nth
        if position + len(data) > SEGMENT_BYTES:
            position = 0
        os.pwrite(log, data, position)
        os.fdatasync(log)
        os.pwrite(ledger, record, nth * 64 % SEGMENT_BYTES)
        os.fdatasync(ledger)
        position += len(data)
        nth += 1

    yield turn
    os.close(log)
    os.close(ledger)


def batches(opened: PartitionLog, count: int, size: int) -> Callable[[], list[Entry]]:
    payload = os.urandom(size)

    def make() -> list[Entry]:
        first = opened.log.last_index + 1
        return [Entry(Term(1), LogIndex(first + nth), payload) for nth in range(count)]

    return make


@contextmanager
def in_loop(root: Path, count: int, size: int) -> Iterator[Callable[[], None]]:
    """Our log, its plan carried out in the calling thread."""
    disk = open_mode(IoWriterMode.BLOCKING)
    opened = open_partition_log(disk, root, keys(), CONFIG, create_as=PartitionId(1))
    make = batches(opened, count, size)
    yield lambda: void(opened.append(make()))
    disk.close()


def submitted(mode: IoWriterMode, depth: int) -> Way:
    """Our log, its plans handed to a disk, `depth` of them under way at once."""

    @contextmanager
    def run(root: Path, count: int, size: int) -> Iterator[Callable[[], None]]:
        disk: Disk = open_mode(mode)
        opened = open_partition_log(disk, root, keys(), CONFIG, create_as=PartitionId(1))
        make = batches(opened, count, size)
        poll = select.poll()
        poll.register(disk.fileno(), select.POLLIN)
        waiting: deque[DurabilityRecord] = deque()

        def turn() -> None:
            planned = opened.log.plan_append(make())
            opened.submit(planned.steps)
            waiting.append(planned.receipt)
            while len(waiting) >= depth:
                for done in disk.completions():
                    if done.error is not None:
                        raise done.error
                    opened.log.stored(waiting.popleft())
                if len(waiting) >= depth:
                    poll.poll()

        yield turn
        disk.close()

    return run


def void(_: object) -> None:
    return


CONFIG = LogConfig(segment_bytes=SEGMENT_BYTES)
WAYS: dict[str, Way] = {
    "bare loop": bare,
    "log, in the loop": in_loop,
    "log, writer thread": submitted(IoWriterMode.BLOCKING, 1),
    "log, writer thread, 2 in flight": submitted(IoWriterMode.BLOCKING, 2),
    "log, io_uring registered": submitted(IoWriterMode.REGISTERED_URING, 1),
    "log, io_uring registered, 2 in flight": submitted(IoWriterMode.REGISTERED_URING, 2),
    "log, io_uring fixed": submitted(IoWriterMode.FIXED_URING, 1),
    "log, io_uring fixed, 2 in flight": submitted(IoWriterMode.FIXED_URING, 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=0.5, help="per cell and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None, help="on the disk to measure")
    arguments = parser.parse_args()
    keep_freed_memory()
    console = Console(width=180)
    table = Table(title="Appends: entries/s (share of bare; CPU µs per entry; batch p50 µs)")
    table.add_column("")
    for count, size in SHAPES:
        table.add_column(f"{count} x {size} B", justify="right")
    rows: dict[str, list[str]] = {way: [] for way in WAYS}
    for count, size in SHAPES:
        results = measure_shape(count, size, arguments)
        floor = results["bare loop"]
        for way in WAYS:
            cell = results.get(way)
            rows[way].append(
                f"{cell.entries_per_second:,.0f} "
                f"({cell.entries_per_second / floor.entries_per_second:.0%}; "
                f"{cell.cpu_us_per_entry:.2f}; {cell.batch_us:.0f})"
                if cell
                else "not here"
            )
    for way, cells in rows.items():
        table.add_row(way, *cells)
    console.print(table)


def measure_shape(count: int, size: int, arguments: argparse.Namespace) -> dict[str, Measured]:
    """Measure every way in turn, several rounds, and keep the median of each."""
    found: dict[str, list[Measured]] = {}
    for _ in range(arguments.rounds):
        for way, make in WAYS.items():
            with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
                try:
                    with make(Path(directory), count, size) as turn:
                        found.setdefault(way, []).append(measure(turn, count, arguments.seconds))
                except RingBroken:
                    continue
    return {
        way: sorted(each, key=lambda cell: cell.entries_per_second)[len(each) // 2]
        for way, each in found.items()
    }


if __name__ == "__main__":
    main()
