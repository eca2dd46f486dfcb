"""Reading a log with the broker's machine beside it, from wherever its state is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from clustor.log.types import Entry, EntryKind
from clustor.replica import decode_batch
from quantum.archive.types import IndexRange, PrgId
from quantum.broker import Broker
from quantum.broker.commands import decode_known
from quantum.broker.errors import BrokerError
from quantum.lake.archive import LogSource
from quantum.lake.errors import DamagedBlock
from quantum.lake.jobs.errors import StateUnknown
from quantum.lake.judging import Judge, ReplayJudge, packed_head
from quantum.lake.planner import Offer, Task
from quantum.lake.reader import begin_of, judge_for, offer_of
from quantum.lake.rows import RowBuilder
from quantum.lake.schema import SCHEMA_VERSION
from quantum.lake.settings import settings_of
from quantum.lake.table import DataFile, TableDamaged, TableStore, digest_of


def offer_with(source: LogSource, prg: PrgId, saved: DataFile | None) -> Offer:
    """Say what a source has of a partition, and what a table has kept of its machine."""
    offer = offer_of(source, prg)
    if saved is None or settings_of(source, prg, None) is None:
        return offer
    return Offer(offer.bounds, tuple(sorted({*offer.anchors, saved.last})))


def machine_at(source: LogSource, prg: PrgId, anchor: int) -> ReplayJudge:
    """Return the broker of a partition as it was after the entry `anchor`, by its snapshot.

    Raises StateUnknown where the source does not say how the tenant is set.
    """
    machine = judge_for(source, Task(prg, anchor + 1, anchor + 1, anchor))
    if not isinstance(machine, ReplayJudge):
        raise StateUnknown("the source does not say how the tenant is set", prg=prg, index=anchor)
    return machine


def judge_of(source: LogSource, task: Task, saved: bytes | None) -> Judge:
    """Return who says which records are messages; `saved` is the machine that a table kept."""
    settings = settings_of(source, task.prg, None)
    if saved is None or settings is None:
        return judge_for(source, task)
    machine = ReplayJudge(settings)
    try:
        machine.restore((saved,))
    except BrokerError as error:
        raise DamagedBlock(str(error), prg=task.prg, index=task.anchor) from error
    return machine


def kept_machine(store: TableStore, file: DataFile | None, anchor: int | None) -> bytes | None:
    """Return the machine that the last commit kept, if the task begins there."""
    if file is None or anchor != file.last:
        return None
    try:
        data = store.read(file.path)
    except FileNotFoundError:
        raise TableDamaged("the kept machine is gone", path=file.path) from None
    if digest_of(data) != file.digest:
        raise TableDamaged("the kept machine was changed", path=file.path)
    return data


def batches_of(
    source: LogSource, task: Task, judge: Judge, version: int = SCHEMA_VERSION
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, in order, as that version of the schema has them.

    What lies between its anchor and its first entry is applied and not yielded.
    """
    builder = RowBuilder(task.prg, judge, version=version)
    for entry in source.entries(IndexRange(task.prg, begin_of(source, task), task.last)):
        if entry.index < task.first:
            builder.learn(entry)
            continue
        builder.add(entry)
        if builder.is_full:
            yield builder.take()
    if builder.rows:
        yield builder.take()


def apply_through(machine: Broker, entries: Iterable[Entry], until_ms: int | None) -> int:
    """Apply entries up to the last one that was stamped by `until_ms`; return its index."""
    last = 0
    for entry in entries:
        commands = decode_batch(entry.payload) if entry.kind is EntryKind.DATA else []
        if until_ms is not None and stamp_of(commands) > until_ms:
            break
        if commands or entry.kind is EntryKind.DATA:
            machine.apply_batch(entry.index, commands)
        last = int(entry.index)
    return last


def stamp_of(commands: Sequence[bytes]) -> int:
    """Return the latest time that the commands of an entry carry, 0 where none does."""
    latest = 0
    for data in commands:
        if data[:1] == b"\0":
            head = packed_head(data)
            stamp = 0 if head is None else head.now_ms
        else:
            stamp = getattr(decode_known(data), "now_ms", 0)
        latest = max(latest, stamp)
    return latest
