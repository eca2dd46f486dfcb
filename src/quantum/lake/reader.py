"""Read what a plan asks for: a source of logs in, record batches out. No Spark here.

A task needs no memory of other tasks: it restores the snapshot of its anchor, lets the broker apply
what lies between, and gives the rows from its first entry on. What a process remembers saves time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from clustor.log.types import Entry
from clustor.replica.header import split_header
from clustor.snapshot.errors import SnapshotFailure
from quantum.archive.types import IndexRange, PrgId
from quantum.broker import SnapshotUnusable
from quantum.lake.archive import LogSource
from quantum.lake.columns import gap_row
from quantum.lake.errors import LogGone, while_reading
from quantum.lake.filters import NO_FILTERS, Filters
from quantum.lake.judging import PARTS_ENTRIES_MAX, Judge, ReplayJudge
from quantum.lake.known_states import KnownStates
from quantum.lake.loose_judging import LooseJudge
from quantum.lake.planner import Offer, Task
from quantum.lake.refusals import EntryUnreadable
from quantum.lake.rows import RowBuilder
from quantum.lake.schema import NAMES, SCHEMA_VERSION
from quantum.lake.settings import settings_of, topic_owner_of


def offer_of(
    source: LogSource, prg: PrgId, *, exact: bool = True, broker: str | None = None
) -> Offer:
    """Say what a source has of a partition. Raises LakeError."""
    bounds = source.bounds(prg)
    if not exact or settings_of(source, prg, broker) is None:
        return Offer(bounds)
    anchors = {int(ref.base_index) for ref in source.snapshots(prg)}
    if bounds.first == 1:
        anchors.add(0)
    return Offer(bounds, tuple(sorted(anchors)))


def read_task(  # noqa: PLR0917  # what it needs
    source: LogSource,
    task: Task,
    names: Sequence[str] = NAMES,
    filters: Filters = NO_FILTERS,
    version: int = SCHEMA_VERSION,
    broker: str | None = None,
    known: tuple[KnownStates, str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task in order.

    `known` are states of this process, and the name under which this log's are there. Raises
    LakeError, which names the partition and the index; what was yielded before is good.
    """
    if task.is_gap:
        confirm_gone(source, task)
        yield gap_row(task.prg, task.first, task.last, names, version)
        return
    with while_reading(task.prg, task.first):
        entries, judge = _warmed(source, task, broker, known, filters)
    builder = RowBuilder(task.prg, judge, names, filters, version)
    last: Entry | None = None
    for last in entries:
        if last.index < task.first:
            builder.learn(last)
            continue
        builder.add(last)
        if builder.is_full:
            yield builder.take()
    if builder.rows:
        yield builder.take()
    if known is not None and last is not None and isinstance(judge, ReplayJudge):
        states, name = known
        states.put(name, last, judge)


def _warmed(
    source: LogSource,
    task: Task,
    broker: str | None,
    known: tuple[KnownStates, str] | None,
    filters: Filters,
) -> tuple[Iterator[Entry], Judge]:
    """Return the entries that lead to the task's last, and who judges them."""
    if known is not None and task.anchor is not None:
        states, name = known
        state = states.take(name, task.anchor, task.first)
        if state is not None:
            entries = source.entries(IndexRange(task.prg, state.index, task.last))
            before = next(entries, None)
            if before is not None and state.is_after(before):
                return entries, state.judge
    judge = judge_for(source, task, broker, filters)
    return source.entries(IndexRange(task.prg, begin_of(source, task), task.last)), judge


def begin_of(source: LogSource, task: Task) -> int:
    """Return from where a task is read: behind its anchor, or where a large message may begin."""
    if task.anchor is not None:
        return task.anchor + 1
    begin = task.first
    for piece in reversed(source.bounds(task.prg).pieces):
        if piece.first < begin <= piece.last + 1:
            begin = piece.first
    return max(begin, task.first - PARTS_ENTRIES_MAX)


def confirm_gone(source: LogSource, task: Task) -> None:
    """Ask the source itself about entries that no piece holds.

    What is damaged can be repaired, and what nobody serves now may come back: neither is gone, and
    nothing may be written in its place. Raises the source's own error then.
    """
    try:
        for _ in source.entries(IndexRange(task.prg, task.first, task.first)):
            raise EntryUnreadable(
                "a source lists a gap where it has an entry", prg=task.prg, index=task.first
            )
    except LogGone:
        return


def judge_for(
    source: LogSource, task: Task, broker: str | None = None, filters: Filters = NO_FILTERS
) -> Judge:
    """Return who decides which records are messages, as of the task's anchor."""
    settings = settings_of(source, task.prg, broker)
    if settings is None:
        return LooseJudge(task.prg.number, None, filters)
    if task.anchor is None:
        owner = topic_owner_of(source, task.prg, broker)
        return LooseJudge(task.prg.number, owner, filters, settings.dedupe_horizon_ms)
    judge = ReplayJudge(settings)
    if task.anchor:
        _restore(source, task.prg, task.anchor, judge)
    return judge


def _restore(source: LogSource, prg: PrgId, base_index: int, judge: ReplayJudge) -> None:
    for ref in source.snapshots(prg):
        if ref.base_index == base_index:
            try:
                _, content = split_header(source.open_snapshot(ref))
                judge.restore(content)
            except (SnapshotFailure, SnapshotUnusable) as error:
                raise EntryUnreadable(str(error), prg=prg, index=base_index) from error
            return
    raise LogGone(
        "the snapshot that a plan relied on is gone: plan again",
        prg=prg,
        first=base_index,
        last=base_index,
    )
