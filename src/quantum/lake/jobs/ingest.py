"""`ingest`: the messages of every partition's log become rows of a table, each once.

There is no checkpoint beside the table: how far it got is in the table's own commits, together
with the rows, so that the two cannot disagree. A batch is planned from there, written by tasks to
files that nobody knows of yet, and becomes part of the table by one commit. Whoever dies, the
next driver plans the same batch again; whoever is late finds its offsets taken.

Which records of the log are messages is the broker's own decision (`quantum.lake.judging`), so
tasks run its machine beside the log. A commit keeps the machine as it is behind the last offset:
the next batch begins there, whatever the cluster has compacted meanwhile.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from clustor.wall_clock import wall_clock_ms
from quantum.archive.types import PrgId
from quantum.lake.archive import KeyProvider, LogSource
from quantum.lake.columns import gap_row
from quantum.lake.errors import SourceUnreachable, while_reading
from quantum.lake.jobs.backfill import backfill, digests_of
from quantum.lake.jobs.errors import SparkFailed, StateUnknown
from quantum.lake.jobs.log_reading import batches_of, judge_of, kept_machine, offer_with
from quantum.lake.jobs.progress import Progress, Step, silence
from quantum.lake.jobs.row_files import RowSink, stream_of
from quantum.lake.jobs.runner import Runner, runner_of
from quantum.lake.jobs.sources import open_logs
from quantum.lake.jobs.views import View, ViewWriter, checked
from quantum.lake.judging import ReplayJudge
from quantum.lake.offsets import Offsets
from quantum.lake.planner import BatchLimits, Cutting, Offer, OnGap, Task, admit, cut, up_to
from quantum.lake.reader import confirm_gone
from quantum.lake.schema import NAMES, SCHEMA_VERSION, check_version
from quantum.lake.table import (
    EMPTY_ROOT,
    DataFile,
    FileKind,
    OffsetRange,
    RangeTaken,
    StreamName,
    Table,
    TableOperation,
    TableState,
    TableStore,
    VersionProposal,
    digest_of,
    ingested_name,
    open_store,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "ingest"
Target: TypeAlias = "dict[PrgId, int]"
"""The last index of each partition that a run goes to."""
STATE_BYTES_MAX: Final = 256 << 20
POLL_SECONDS: Final = 1.0
FAILURES_MAX: Final = 60
"""How often in a row a continuous run tries again before it gives up."""


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """How a table is filled."""

    limits: BatchLimits = BatchLimits(bytes=1 << 30)
    cutting: Cutting = Cutting()
    on_gap: OnGap = OnGap.FAIL
    from_earliest: bool = False
    """Begin a new stream with what is left of its log, instead of refusing if some is gone."""
    loose: bool = False
    """Take rows whose acceptance is not known, too (`row_kind` is `logged`)."""
    views: tuple[View, ...] = ()
    state_bytes_max: int = STATE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """What a task wrote: files that count when a commit names them."""

    prg: PrgId
    rows: int
    files: tuple[DataFile, ...]
    digest: str = ""
    state: DataFile | None = None


@dataclass(slots=True)
class IngestReport:
    """What a run added."""

    commits: int = 0
    rows: int = 0
    dead: int = 0
    taken_by_others: int = 0
    offsets: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Batch:
    source: LogSource
    tasks: tuple[Task, ...]
    ranges: dict[StreamName, OffsetRange]
    states: dict[PrgId, DataFile]
    version: int


def ingest(
    where: str | LogSource,
    table: str | TableStore,
    *,
    spark: SparkSession | Runner | None = None,
    keys: str | KeyProvider = "directory",
    broker: str | None = None,
    settings: IngestSettings = IngestSettings(),  # noqa: B008  # a frozen value
    once: bool = True,
    progress: Progress = silence,
    should_stop: Callable[[], bool] = lambda: False,
    after_commit: Callable[[Table], None] = lambda _: None,
    wait: Callable[[], None] = lambda: time.sleep(POLL_SECONDS),
) -> IngestReport:
    """Bring a table up to its logs; go on for ever, or `once` up to where they end now.

    `where` is what `open_source` takes, or a source. Raises LakeError and TableError; whatever is
    raised, the table holds whole batches, and the next call goes on behind them.
    """
    views = checked(settings.views)
    runner = runner_of(spark)
    store = open_store(table) if isinstance(table, str) else table
    opened = Table.open_or_create(store, schema_version=SCHEMA_VERSION, at_ms=wall_clock_ms())
    check_version(opened.state.schema_version)
    opened.show()
    report, failures = IngestReport(), 0
    target: Target | None = None
    while not should_stop():
        try:
            backfill(opened, views, spark=runner, progress=progress)
            source = open_logs(where, keys, broker)
            if once and target is None:
                target = ends_of(source)
            moved = _one_batch(source, opened, runner, settings, report, progress, target)
            failures = 0
        except (SourceUnreachable, SparkFailed) as error:
            failures += 1
            if once or failures > FAILURES_MAX:
                raise
            progress(Step(JOB, f"trying again: {error}"))
            moved = False
        if moved:
            after_commit(opened)
        elif once:
            break
        else:
            wait()
    report.offsets = {name: each.last for name, each in opened.refresh().ranges.items()}
    return report


def _one_batch(  # noqa: PLR0917
    source: LogSource,
    table: Table,
    runner: Runner,
    settings: IngestSettings,
    report: IngestReport,
    progress: Progress,
    target: Target | None,
) -> bool:
    """Plan, write and commit one batch; say whether there was anything."""
    batch = plan_batch(source, table.refresh(), settings, target)
    if not batch.tasks:
        return False
    written = runner.run(
        partial(write_task, batch.source, table.store, settings, batch.states, batch.version),
        _named(batch.tasks),
    )
    proposal = proposal_of(table.state, batch.ranges, written, digests_of(settings.views))
    try:
        commit = table.commit(proposal, at_ms=wall_clock_ms())
    except RangeTaken as taken:
        report.taken_by_others += 1
        progress(Step(JOB, f"another driver was quicker: {taken}"))
        return True
    rows = sum(each.rows for each in written)
    report.commits += 1
    report.rows += rows
    report.dead += sum(file.rows for file in commit.add if file.kind == FileKind.DEAD)
    entries = sum(each.last - each.first + 1 for each in batch.ranges.values())
    progress(
        Step(
            JOB,
            f"version {commit.version}: {rows} rows of {entries} entries",
            figures={"version": commit.version, "rows": rows, "entries": entries},
        )
    )
    return True


def _named(tasks: Sequence[Task]) -> list[tuple[Task, bool]]:
    """Say of each task whether it is its partition's last one, which keeps the machine."""
    last = {task.prg: nth for nth, task in enumerate(tasks)}
    return [(task, last[task.prg] == nth) for nth, task in enumerate(tasks)]


def ends_of(source: LogSource) -> Target:
    """Say where the logs end now: a run that went on with what comes meanwhile would never end."""
    ends: Target = {}
    for prg in source.prgs():
        with while_reading(prg, 1):
            ends[prg] = source.bounds(prg).last
    return ends


def plan_batch(
    source: LogSource,
    state: TableState,
    settings: IngestSettings,
    target: Target | None = None,
) -> _Batch:
    """Say what comes behind the table's offsets, as far as one commit goes.

    Not beyond `target`, where there is one; a partition that it does not name was not there.
    """
    offers: dict[PrgId, Offer] = {}
    states: dict[PrgId, DataFile] = {}
    through: dict[PrgId, int] = {}
    for prg in source.prgs():
        following = state.next_offset(stream_of(prg))
        saved = state.state_of(stream_of(prg))
        if saved is not None:
            states[prg] = saved
        with while_reading(prg, following or 1):
            offers[prg] = offer_with(source, prg, saved)
        if following is None and settings.from_earliest:
            following = offers[prg].bounds.first
        through[prg] = (following or 1) - 1
        if target is not None:
            offers[prg] = up_to(offers[prg], target.get(prg, 0), through[prg])
    start = Offsets(through)
    end = admit(start, offers, settings.limits)
    tasks = cut(start, end, offers, cutting=settings.cutting, on_gap=settings.on_gap)
    for task in tasks:
        if task.anchor is None and not task.is_gap and not settings.loose:
            raise StateUnknown(
                "what the broker had taken before this entry is not known",
                prg=task.prg,
                index=task.first,
                hint="an archive with snapshots knows it; --loose takes rows without knowing",
            )
    moved = {
        stream_of(prg): OffsetRange(start[prg] + 1, end[prg])
        for prg in end
        if end[prg] > start[prg]
    }
    return _Batch(source, tasks, moved, states, state.schema_version)


def write_task(  # noqa: PLR0917
    source: LogSource,
    store: TableStore,
    settings: IngestSettings,
    states: dict[PrgId, DataFile],
    version: int,
    named: tuple[Task, bool],
) -> WrittenFiles:
    """Write the rows of one task to files that no commit names yet. Runs where Spark says."""
    task, is_last = named
    sink = RowSink(store, task.prg)
    if task.is_gap:
        confirm_gone(source, task)
        sink.write(gap_row(task.prg, task.first, task.last, NAMES, version))
        return WrittenFiles(task.prg, 1, tuple(sink.finish()))
    views = ViewWriter(store, task.prg, settings.views)
    with while_reading(task.prg, task.first):
        judge = judge_of(source, task, kept_machine(store, states.get(task.prg), task.anchor))
    rows = 0
    for batch in batches_of(source, task, judge, version):
        sink.write(batch)
        views.write(batch)
        rows += batch.num_rows
    files = (*sink.finish(), *views.finish())
    if not is_last or not isinstance(judge, ReplayJudge):
        return WrittenFiles(task.prg, rows, files)
    kept = _keep(store, task, judge, settings.state_bytes_max)
    return WrittenFiles(task.prg, rows, files, judge.digest().hex(), kept)


def _keep(store: TableStore, task: Task, machine: ReplayJudge, bytes_max: int) -> DataFile | None:
    """Keep the machine for the next batch, unless it is too large: snapshots do as well."""
    data = b"".join(machine.snapshot())
    if len(data) > bytes_max:
        return None
    stream = stream_of(task.prg)
    name = ingested_name(
        FileKind.STATE, stream, task.last, task.last, secrets.token_hex(8), suffix="state"
    )
    path = store.data_path("", name)
    store.create(path, data)
    return DataFile(
        path,
        FileKind.STATE,
        stream,
        task.last,
        task.last,
        0,
        len(data),
        digest_of(data),
        EMPTY_ROOT.hex(),
    )


def proposal_of(
    state: TableState,
    ranges: dict[StreamName, OffsetRange],
    written: Sequence[WrittenFiles],
    views: dict[str, str] | None = None,
) -> VersionProposal:
    """Make one commit of what all tasks wrote."""
    files = [file for each in written for file in each.files]
    kept = [each.state for each in written if each.state is not None]
    old = [
        file.path
        for file in state.files.values()
        if file.kind == FileKind.STATE and file.stream in ranges
    ]
    digests = {stream_of(each.prg): each.digest for each in written if each.digest}
    return VersionProposal(
        TableOperation.INGEST,
        state.schema_version,
        ranges,
        digests,
        (*files, *kept),
        tuple(old),
        views=views or {},
    )


__all__ = ["IngestReport", "IngestSettings", "ingest", "plan_batch", "write_task"]
