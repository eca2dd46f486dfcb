"""Partitions in one log against one log each, and reading a partition against `cat`.

Everything in one run, on the same disk, with blocking calls in this thread: what differs between
two rows is what the table names. Files and logs are there before the clock starts. The rate of
the segmented log includes its checkpoint: each run ends with one, so that every byte is durable in
the log and in its partition. The rate before it is what producers see while none runs.

    python -m bench.segmented [--mebibytes 1024] [--directory /somewhere]
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from clustor.log.config import LogConfig
from clustor.log.keys import KeyRing
from clustor.log.ledger import LedgerIdentity
from clustor.log.log import Log, create_log
from clustor.log.steps import Plan, Sync, SyncDirectory, SyncFiles
from clustor.log.types import (
    DekEpoch,
    Entry,
    IoWriterMode,
    LogId,
    LogIndex,
    MacEpoch,
    PartitionId,
    Term,
)
from clustor.runtime.disk import BlockingDisk, DirectoryStorage, Partition
from clustor.runtime.segmented_reader import PartitionStorage
from clustor.segmented import (
    Automatic,
    Batch,
    Majority,
    PartitionReader,
    PolicyRegistry,
    ReplicaId,
    SegmentedConfig,
    StoreId,
    StorePlan,
    TimestampMs,
    TopicPartitionId,
    create_group,
    recover_group,
)

ME = ReplicaId(1)
BATCHES_PER_TICK = 2000
FLUSH_BYTES = 256 << 20
CONFIG = SegmentedConfig()


def new_keys() -> KeyRing:
    keys = KeyRing()
    keys.add_mac(MacEpoch(1), os.urandom(32))
    keys.add_dek(DekEpoch(1), os.urandom(32))
    return keys


@dataclass
class Counter:
    """A partition's directory on a real disk, and how often it was synced."""

    disk: BlockingDisk
    partition: Partition
    syncs: int = 0

    def run(self, plan: Plan) -> None:
        self.disk.execute(self.partition, plan)
        self.syncs += sum(isinstance(step, Sync | SyncFiles | SyncDirectory) for step in plan)


class Segmented:
    """One log, one group, any number of partitions."""

    def __init__(self, root: Path, partitions: int, keys: KeyRing) -> None:
        self.disk = BlockingDisk(open_files_max=20_000)
        self.counter = Counter(self.disk, self.disk.open_partition(root))
        self.keys = keys
        identity = LedgerIdentity(PartitionId(1), LogId(os.urandom(16)))
        self.log, plan = create_log(identity, keys, LogConfig(), IoWriterMode.BLOCKING)
        self.counter.run(plan)
        self.group, plan = create_group(
            PartitionId(1),
            StoreId(os.urandom(16)),
            keys,
            CONFIG,
            members=[ME],
            registry=PolicyRegistry(),
        )
        self.counter.run(plan)
        ids = [TopicPartitionId(at) for at in range(partitions)]
        self.carry_out(self.group.plan_define({at: (Majority(), Automatic()) for at in ids}))
        self.counter.syncs = 0

    def carry_out(self, plan: StorePlan) -> None:
        self.counter.run(plan.steps)
        self.group.stored(plan.receipt)

    def append(self, batches: list[Batch]) -> None:
        """One tick: durable in the log, on its quorum of one, and in its partitions' memory."""
        entry = Entry(Term(1), LogIndex(self.log.last_index + 1), self.group.propose(batches))
        plan = self.log.plan_append([entry])
        self.counter.run(plan.steps)
        self.log.stored(plan.receipt)
        self.group.appended([entry], 0)
        self.group.fsynced(ME, self.log.durable_index)
        self.group.apply([entry])
        if self.group.store.tail_bytes >= FLUSH_BYTES:
            self.carry_out(self.group.plan_flush())

    def close(self) -> None:
        self.disk.close()


def ticks(partitions: int, total: int, payload: bytes) -> Iterator[list[Batch]]:
    """Yield ticks of batches, round-robin over the partitions."""
    at = 0
    for start in range(0, total, BATCHES_PER_TICK):
        tick = []
        for _ in range(min(BATCHES_PER_TICK, total - start)):
            tick.append(Batch(TopicPartitionId(at), payload, 1, TimestampMs(start)))
            at = (at + 1) % partitions
        yield tick


@dataclass
class Rate:
    batches: int
    seconds: float
    checkpoint_seconds: float
    syncs: int
    checkpoint_syncs: int
    cpu_seconds: float  # of this process: what a busy neighbour does not change

    @property
    def per_second(self) -> float:
        return self.batches / self.seconds


def measure_segmented(root: Path, partitions: int, total: int, payload: bytes) -> Rate:
    segmented = Segmented(root, partitions, new_keys())
    for tick in ticks(partitions, partitions, payload):  # each partition has its file before
        segmented.append(tick)
    segmented.carry_out(segmented.group.plan_checkpoint())
    segmented.counter.syncs = 0
    waiting = list(ticks(partitions, total, payload))
    gc.freeze()  # as the runtime does after its start
    begin, cpu = time.perf_counter(), time.process_time()
    for tick in waiting:
        segmented.append(tick)
    appended = time.perf_counter()
    before = segmented.counter.syncs
    segmented.carry_out(segmented.group.plan_checkpoint())
    end, cpu = time.perf_counter(), time.process_time() - cpu
    syncs = segmented.counter.syncs
    segmented.close()
    return Rate(total, end - begin, end - appended, syncs, syncs - before, cpu)


def measure_logs(root: Path, logs: int, total: int, payload: bytes) -> Rate:
    """One log for each partition; a tick syncs every log that it touches."""
    disk = BlockingDisk(open_files_max=4 * logs + 16)
    keys = new_keys()
    config = LogConfig(segment_bytes=1 << 20, zero_ahead_bytes=0, ledger_zero_ahead_bytes=4096)
    opened: list[tuple[Counter, Log]] = []
    for at in range(logs):
        (root / str(at)).mkdir()
        counter = Counter(disk, disk.open_partition(root / str(at)))
        identity = LedgerIdentity(PartitionId(at), LogId(os.urandom(16)))
        log, plan = create_log(identity, keys, config, IoWriterMode.BLOCKING)
        counter.run(plan)
        first = log.plan_append([Entry(Term(1), LogIndex(1), payload)])
        counter.run(first.steps)
        log.stored(first.receipt)
        counter.syncs = 0
        opened.append((counter, log))
    waiting = list(ticks(logs, total, payload))
    gc.freeze()
    begin, cpu = time.perf_counter(), time.process_time()
    for tick in waiting:
        mine: dict[int, list[Entry]] = {}
        for batch in tick:
            entries = mine.setdefault(batch.partition, [])
            index = LogIndex(opened[batch.partition][1].last_index + 1 + len(entries))
            entries.append(Entry(Term(1), index, batch.payload))
        for at, entries in mine.items():
            counter, log = opened[at]
            append = log.plan_append(entries)
            counter.run(append.steps)
            log.stored(append.receipt)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    disk.close()
    return Rate(total, seconds, 0.0, sum(counter.syncs for counter, _ in opened), 0, cpu)


def append_table(console: Console, directory: Path, total_bytes: int, payload: bytes) -> None:
    table = Table(
        title=f"appends of {len(payload)} B, {BATCHES_PER_TICK} per tick, fsync each tick"
    )
    columns = ("partitions", "layout", "batches", "batches/s", "of one", "before checkpoint")
    for name in (*columns, "CPU µs", "syncs", "checkpoint"):
        table.add_column(name, justify="left" if name == "layout" else "right")
    total = total_bytes // len(payload)
    with fresh(directory) as root:  # warm up: the first run pays for imports and the page cache
        measure_segmented(root, 1, total // 10, payload)
    alone = 0.0
    for partitions in (1, 100, 10_000):
        with fresh(directory) as root:
            rate = measure_segmented(root, partitions, total, payload)
        alone = alone or rate.per_second
        add_row(table, partitions, "one log", rate, alone)
    for partitions, touched in ((1, 1), (100, 100), (10_000, 1000)):
        few = min(total, 20 * BATCHES_PER_TICK if touched < 1000 else BATCHES_PER_TICK)
        with fresh(directory) as root:
            rate = measure_logs(root, touched, few, payload)
        name = "a log each" if touched == partitions else f"a log each ({touched} touched)"
        add_row(table, partitions, name, rate, alone)
    console.print(table)


def add_row(table: Table, partitions: int, layout: str, rate: Rate, alone: float) -> None:
    table.add_row(
        f"{partitions:,}",
        layout,
        f"{rate.batches:,}",
        f"{rate.per_second:,.0f}",
        f"{rate.per_second / alone:.2f}",
        f"{rate.batches / (rate.seconds - rate.checkpoint_seconds):,.0f}",
        f"{rate.cpu_seconds / rate.batches * 1e6:.2f}",
        f"{rate.syncs:,}",
        f"{rate.checkpoint_seconds:.2f} s, {rate.checkpoint_syncs:,} syncs",
    )


def read_table(console: Console, directory: Path, total_bytes: int, payload: bytes) -> None:
    with fresh(directory) as root:
        segmented = Segmented(root, 1, new_keys())
        for tick in ticks(1, total_bytes // len(payload), payload):
            segmented.append(tick)
        segmented.carry_out(segmented.group.plan_checkpoint())
        storage = PartitionStorage(root)
        parts = sorted(str(path) for path in (root / "segmented/parts").glob("*.seg"))
        actions: dict[str, Callable[[], object]] = {
            "cat > /dev/null": lambda: run_quietly(["cat", *parts]),
            "cat, read from its pipe": lambda: drain(["cat", *parts]),
            "PartitionReader, 1 MiB a read": lambda: read_partition(segmented, storage),
        }
        for state, prepare in (("cold", lambda: evict(parts)), ("warm", lambda: None)):
            table = Table(title=f"reading {total_bytes >> 20} MiB in sequence, {state} page cache")
            for name in ("what", "MB/s", "of cat", "of cat to a reader"):
                table.add_column(name, justify="left" if name == "what" else "right")
            rates = {name: best_of(do, total_bytes, prepare) for name, do in actions.items()}
            to_nobody, to_reader, _ = rates.values()
            for name, rate in rates.items():
                table.add_row(
                    name, f"{rate:,.0f}", f"{rate / to_nobody:.2f}", f"{rate / to_reader:.2f}"
                )
            console.print(table)
        profile(console, "reading", lambda: read_partition(segmented, storage))
        storage.close()
        segmented.close()


def read_partition(segmented: Segmented, storage: PartitionStorage) -> int:
    """Read it all, as a consumer does: a view now and then, about a mebibyte at a time."""
    reader = PartitionReader(storage, segmented.keys, CONFIG)
    view = segmented.group.view(TopicPartitionId(0))
    index, seen = view.start_index, 0
    while chunks := reader.read(view, index, 1 << 20):
        index = chunks[-1].next_index
        seen += sum(len(chunk.payloads) for chunk in chunks)
    assert index == view.readable_next
    return seen


def run_quietly(command: list[str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def drain(command: list[str]) -> None:
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        while process.stdout.read(1 << 20):
            pass


def evict(parts: list[str]) -> None:
    """Let the kernel forget the pages of these files."""
    for part in parts:
        descriptor = os.open(part, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def best_of(
    action: Callable[[], object], total_bytes: int, prepare: Callable[[], None], times: int = 3
) -> float:
    best = float("inf")
    for _ in range(times):
        prepare()
        begin = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - begin)
    return total_bytes / best / 1e6


def open_table(console: Console, directory: Path, partitions: int = 10_000) -> None:
    with fresh(directory) as root:
        segmented = Segmented(root, partitions, new_keys())
        for tick in ticks(partitions, 2 * partitions, b"x" * 100):
            segmented.append(tick)
        segmented.carry_out(segmented.group.plan_checkpoint())
        storage = DirectoryStorage(root)
        begin = time.perf_counter()
        found = recover_group(
            storage,
            segmented.keys,
            CONFIG,
            segmented.log,
            members=[ME],
            registry=PolicyRegistry(),
            committed_index=segmented.log.durable_index,
            now=0,
        )
        assert found is not None
        segmented.counter.run(found.plan)
        found.replay()
        seconds = time.perf_counter() - begin
        storage.close()
        segmented.close()
    console.print(f"opening {partitions:,} partitions: {seconds:.2f} s\n")


def profile(console: Console, what: str, action: Callable[[], object]) -> None:
    """Print where the time of an action goes."""
    profiler = cProfile.Profile()
    profiler.runcall(action)
    stats = pstats.Stats(profiler)
    total = stats.total_tt  # type: ignore[attr-defined]  # typeshed leaves it out
    rows = sorted(stats.stats.items(), key=lambda row: -row[1][2])[:8]  # type: ignore[attr-defined]
    table = Table(title=f"where {what} spends its time")
    table.add_column("function")
    table.add_column("calls", justify="right")
    table.add_column("share", justify="right")
    for (file, line, name), (_, calls, own, _, _) in rows:
        where = f"{Path(file).name}:{line} {name}" if line else name
        table.add_row(where, f"{calls:,}", f"{own / total:.0%}")
    console.print(table)


def append_profile(console: Console, directory: Path, payload: bytes) -> None:
    with fresh(directory) as root:
        segmented = Segmented(root, 10_000, new_keys())
        waiting = list(ticks(10_000, 100_000, payload))
        gc.freeze()

        def run() -> None:
            for tick in waiting:
                segmented.append(tick)
            segmented.carry_out(segmented.group.plan_checkpoint())

        profile(console, "appending to 10,000 partitions", run)
        segmented.close()


@contextmanager
def fresh(directory: Path) -> Iterator[Path]:
    """Give a new directory, and empty its files afterwards; `main` removes them at the end.

    ext4 passes over inodes that were freed in the last seconds one by one, so whoever creates ten
    thousand files just after ten thousand were removed waits for the removal, not for us.
    """
    root = Path(tempfile.mkdtemp(dir=directory))
    yield root
    for path in root.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mebibytes", type=int, default=512, help="payload of each run")
    parser.add_argument("--payload", type=int, default=256, help="bytes of each batch")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="on the disk to measure")
    arguments = parser.parse_args()
    console = Console(width=130)
    payload = os.urandom(arguments.payload)
    total_bytes = arguments.mebibytes << 20
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="segmented-") as name:
        directory = Path(name)
        append_table(console, directory, total_bytes, payload)
        append_profile(console, directory, payload)
        read_table(console, directory, total_bytes, payload)
        open_table(console, directory)


if __name__ == "__main__":
    main()
