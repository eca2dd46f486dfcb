"""Reading a log with the broker's machine beside it, from wherever its state is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from clustor.log.types import Entry, EntryKind
from clustor.replica.header import split_header
from quantum.archive.types import Bounds, IndexRange, PrgId
from quantum.broker import Broker
from quantum.broker.errors import BrokerError
from quantum.lake.archive import LogSource
from quantum.lake.archive.translating import in_readers_words
from quantum.lake.errors import DamagedBlock, LogGone
from quantum.lake.jobs.errors import StateUnknown
from quantum.lake.judging import (
    Judge,
    LooseJudge,
    ReplayJudge,
    decode_known,
    packed_head,
)
from quantum.lake.planner import Offer
from quantum.lake.rows import RowBuilder
from quantum.lake.settings import loose_owner_of, settings_of


def offer_of(source: LogSource, bounds: Bounds, *more: int) -> Offer:
    """Say after which indexes the broker's state is known: snapshots, the beginning, and `more`."""
    anchors = {int(each.base_index) for each in source.snapshots(bounds.prg)}
    if bounds.first <= 1:
        anchors.add(0)
    usable = (each for each in (*anchors, *more) if bounds.first - 1 <= each <= bounds.last)
    return Offer(bounds, tuple(sorted(set(usable))))


def machine_at(
    source: LogSource, prg: PrgId, anchor: int, saved: bytes | None = None
) -> ReplayJudge:
    """Return the broker of a partition as it was after the entry `anchor`.

    `saved` is its snapshot where the caller has one; else the source's snapshot of that index is
    taken, or for 0 the beginning. Raises StateUnknown, DamagedBlock.
    """
    settings = settings_of(source, prg)
    if settings is None:
        raise StateUnknown("the source does not say how the tenant is set", prg=prg, index=anchor)
    machine = ReplayJudge(settings)
    if anchor == 0 and saved is None:
        return machine
    content: Iterator[bytes]
    if saved is not None:
        content = iter((saved,))
    else:
        found = [each for each in source.snapshots(prg) if each.base_index == anchor]
        if not found:
            raise LogGone("the snapshot is gone", prg=prg, first=anchor, last=anchor)
        with in_readers_words(prg, anchor):
            _, content = split_header(source.open_snapshot(found[-1]))
    try:
        with in_readers_words(prg, anchor):
            machine.restore(content)
    except BrokerError as error:
        raise DamagedBlock(str(error), prg=prg, index=anchor) from error
    return machine


def judge_of(
    source: LogSource, prg: PrgId, anchor: int | None, saved: bytes | None = None
) -> Judge:
    """Return who says which records are messages: the machine, or without a state a loose one."""
    if anchor is None or settings_of(source, prg) is None:
        return LooseJudge(prg.number, partial(loose_owner_of, source, prg))
    return machine_at(source, prg, anchor, saved)


def batches_of(
    source: LogSource,
    prg: PrgId,
    first: int,
    last: int,
    *,
    anchor: int | None,
    judge: Judge,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the entries from `first` through `last`, in order.

    What lies between the anchor and `first` is applied and not yielded.
    """
    builder = RowBuilder(prg, judge)
    begin = first if anchor is None else anchor + 1
    if begin <= last:
        for entry in source.entries(IndexRange(prg, begin, last)):
            if entry.index < first:
                builder.learn(entry)
                continue
            builder.add(entry)
            if builder.is_full:
                yield builder.take()
    yield builder.take()


def apply_through(machine: Broker, entries: Iterator[Entry], until_ms: int | None) -> int:
    """Apply entries up to the last one that was stamped by `until_ms`; return its index."""
    from clustor.replica import decode_batch

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
