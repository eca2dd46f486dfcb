"""`verify`: the table equals the log: no gap, no duplicate, no difference, row by row.

The log is read again from its own snapshots, not from anything that the table says of itself, and
the broker's machine decides again what was a message. Both sides are walked in the order of
offsets; where they part, the row is named. The Merkle root is of the rows that the log gives, so
two tables, or a table today and in a year, hold the same if they have the same root.

What the log has behind the table's last offset is counted, too: a table that lacks messages equals
its log as far as it goes, and is not up to date. Entries without a message leave nobody behind.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from quantum.archive.types import PrgId
from quantum.lake.archive import KeyProvider, LogSource
from quantum.lake.errors import while_reading
from quantum.lake.jobs.log_reading import batches_of, judge_of, kept_machine, offer_with
from quantum.lake.jobs.progress import Progress, Step, silence
from quantum.lake.jobs.reading import table_state
from quantum.lake.jobs.row_files import encoded_rows, stream_of
from quantum.lake.jobs.runner import Runner, runner_of
from quantum.lake.jobs.sources import open_logs
from quantum.lake.judging import ReplayJudge
from quantum.lake.offsets import Offsets
from quantum.lake.planner import OnGap, Task, cut
from quantum.lake.reader import judge_for, offer_of
from quantum.lake.schema import check_version
from quantum.lake.table import (
    DataFile,
    FileKind,
    MerkleTree,
    OffsetRange,
    TableState,
    TableStore,
    digest_of,
    leaf_of,
    root_of_streams,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "verify"
FINDINGS_MAX: Final = 20
Place: TypeAlias = "tuple[int, int]"
"""(raft_index, sub_index) of a row."""
Row: TypeAlias = "tuple[Place, bytes]"
"""A row's place and its leaf."""


@dataclass(frozen=True, slots=True)
class TableFinding:
    """One thing that is not as it should be."""

    kind: str  # missing, extra, different, file, state, stray
    prg: str
    raft_index: int
    sub_index: int
    sentence: str


@dataclass(slots=True)
class PrgVerdict:
    """What the comparison of one partition gave."""

    prg: str
    first: int
    last: int
    rows_log: int = 0
    rows_table: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    findings: list[TableFinding] = field(default_factory=list)
    uncompared: list[tuple[int, int]] = field(default_factory=list)
    """Offsets of the table that the source cannot judge any more."""
    behind_entries: int = 0
    behind_rows: int = 0
    """What the log has that no commit covers yet; of entries that are gone, one row."""
    root_log: str = ""
    root_table: str = ""
    digest: str = ""

    def found(self, kind: str, place: Place, sentence: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(TableFinding(kind, self.prg, *place, sentence))

    @property
    def is_equal(self) -> bool:
        return not self.findings and self.root_log == self.root_table

    @property
    def is_covered(self) -> bool:
        """The table has offsets of this partition."""
        return self.last >= self.first


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """What `verify` says of a table."""

    version: int
    partitions: tuple[PrgVerdict, ...]
    strays: tuple[TableFinding, ...]
    root: str

    @property
    def is_equal(self) -> bool:
        """Nothing that was compared differs."""
        return not self.strays and all(each.is_equal for each in self.partitions)

    @property
    def is_whole(self) -> bool:
        """Everything in the table was compared."""
        return not any(each.uncompared for each in self.partitions)

    @property
    def is_empty(self) -> bool:
        """No log was ever taken into the table: nothing was compared."""
        return not any(each.is_covered for each in self.partitions)

    @property
    def behind_rows(self) -> int:
        """How many messages of the logs the table does not have yet."""
        return sum(each.behind_rows for each in self.partitions)


def verify(
    where: str | LogSource,
    table: str | TableStore,
    *,
    spark: SparkSession | Runner | None = None,
    keys: str | KeyProvider = "directory",
    broker: str | None = None,
    version: int | None = None,
    progress: Progress = silence,
) -> TableVerdict:
    """Compare a table with its logs. Raises LakeError, and TableError where there is no table."""
    runner = runner_of(spark)
    opened, state = table_state(table, version)
    check_version(state.schema_version)
    source = open_logs(where, keys, broker)
    streams = sorted({*map(PrgId.parse, state.ranges), *source.prgs()})
    for prg in streams:
        with while_reading(prg, (state.next_offset(stream_of(prg)) or 1)):
            source.bounds(prg)  # so that what it learns travels with it
    verdicts: list[PrgVerdict] = []
    work = partial(verify_partition, source, opened.store, state)
    wave = 64
    for begin in range(0, len(streams), wave):
        verdicts += runner.run(work, streams[begin : begin + wave])
        sentence = f"{len(verdicts)} of {len(streams)} partitions compared"
        progress(Step(JOB, sentence, len(verdicts), len(streams)))
    strays = tuple(find_strays(opened.store, state)) if version is None else ()
    roots = {each.prg: bytes.fromhex(each.root_log) for each in verdicts if each.is_covered}
    return TableVerdict(int(state.version), tuple(verdicts), strays, root_of_streams(roots).hex())


def verify_partition(
    source: LogSource, store: TableStore, state: TableState, prg: PrgId
) -> PrgVerdict:
    """Compare the rows of one partition. Runs where Spark says."""
    covered = state.ranges.get(stream_of(prg))
    if covered is None:
        first = source.bounds(prg).first
        verdict = PrgVerdict(str(prg), first, first - 1)
        _count_behind(source, store, state, prg, verdict)
        return verdict
    verdict = PrgVerdict(str(prg), covered.first, covered.last)
    files = [each for each in state.of_kind(FileKind.ROWS) if each.stream == stream_of(prg)]
    tasks = _tasks(source, prg, covered, verdict)
    trees = MerkleTree(), MerkleTree()
    compare(
        _log_rows(source, tasks, state, verdict),
        _table_rows(store, files, tasks, verdict),
        verdict,
        *trees,
    )
    verdict.root_log, verdict.root_table = trees[0].root().hex(), trees[1].root().hex()
    _count_behind(source, store, state, prg, verdict)
    return verdict


def _count_behind(
    source: LogSource, store: TableStore, state: TableState, prg: PrgId, verdict: PrgVerdict
) -> None:
    """Count what `ingest` would add, from the machine that the last commit kept."""
    saved = state.state_of(stream_of(prg))
    with while_reading(prg, verdict.last + 1):
        offer = offer_with(source, prg, saved)
    verdict.behind_entries = max(0, offer.bounds.last - verdict.last)
    if not verdict.behind_entries:
        return
    end = Offsets({prg: offer.bounds.last})
    for task in cut(Offsets({prg: verdict.last}), end, {prg: offer}, on_gap=OnGap.ROW):
        if task.is_gap:
            verdict.behind_rows += 1
            continue
        with while_reading(prg, task.first):
            judge = judge_of(source, task, kept_machine(store, saved, task.anchor))
        batches = batches_of(source, task, judge, state.schema_version)
        verdict.behind_rows += sum(batch.num_rows for batch in batches)


def _tasks(source: LogSource, prg: PrgId, covered: OffsetRange, verdict: PrgVerdict) -> list[Task]:
    """Plan the reading of what the table covers; note what the source cannot judge any more."""
    with while_reading(prg, covered.first):
        offer = offer_of(source, prg)
    last = min(covered.last, offer.bounds.last)
    if last < covered.last:
        verdict.uncompared.append((last + 1, covered.last))
    start, end = Offsets({prg: covered.first - 1}), Offsets({prg: max(last, covered.first - 1)})
    tasks = []
    for task in cut(start, end, {prg: offer}, on_gap=OnGap.ROW):
        if task.is_gap or task.anchor is None:
            verdict.uncompared.append((task.first, task.last))
        else:
            tasks.append(task)
    return tasks


def _log_rows(
    source: LogSource, tasks: list[Task], state: TableState, verdict: PrgVerdict
) -> Iterator[Row]:
    """Yield what the log says; at its end compare the machine with the one of the commit."""
    judge = None
    for task in tasks:
        with while_reading(task.prg, task.first):
            judge = judge_for(source, task)
        for batch in batches_of(source, task, judge, state.schema_version):
            yield from _rows_of(batch)
    if isinstance(judge, ReplayJudge) and tasks[-1].last == verdict.last:
        verdict.digest = judge.digest().hex()
        kept = state.digests.get(stream_of(tasks[-1].prg), "")
        if kept and kept != verdict.digest:
            verdict.found(
                "state", (verdict.last, 0), "the commit knows another state of the broker"
            )


def _table_rows(
    store: TableStore, files: list[DataFile], tasks: list[Task], verdict: PrgVerdict
) -> Iterator[Row]:
    """Yield what the table says of the offsets that are compared, in their order."""
    for group in overlapping(files):
        readers = [_file_rows(store, file, verdict) for file in group]
        for row in heapq.merge(*readers):
            if any(task.first <= row[0][0] <= task.last for task in tasks):
                yield row


def overlapping(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Group files whose offsets overlap, so that only those are open at the same time."""
    group: list[DataFile] = []
    last = -1
    for file in sorted(files, key=lambda each: each.first):
        if group and file.first > last:
            yield group
            group = []
        group.append(file)
        last = max(last, file.last)
    if group:
        yield group


def _file_rows(store: TableStore, file: DataFile, verdict: PrgVerdict) -> Iterator[Row]:
    place = (file.first, 0)
    try:
        data = store.read(file.path)
    except FileNotFoundError:
        verdict.found("file", place, f"{file.path} is gone")
        return
    if digest_of(data) != file.digest:
        verdict.found("file", place, f"{file.path} is not what was committed")
    try:
        for batch in pq.ParquetFile(BytesIO(data)).iter_batches():
            yield from _rows_of(batch)
    except (pa.ArrowException, OSError) as error:
        verdict.found("file", place, f"{file.path} cannot be read: {error}")


def _rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    indexes = batch.column("raft_index").to_pylist()
    subs = batch.column("sub_index").to_pylist()
    for index, sub, row in zip(indexes, subs, encoded_rows(batch), strict=True):
        yield (index, -1 if sub is None else sub), leaf_of(row)


def compare(
    log: Iterator[Row],
    table: Iterator[Row],
    verdict: PrgVerdict,
    log_tree: MerkleTree,
    table_tree: MerkleTree,
) -> None:
    """Walk both sides in order, and note where they part."""
    left, right = next(log, None), next(table, None)
    while left is not None or right is not None:
        takes_left = right is None or (left is not None and left[0] <= right[0])
        takes_right = left is None or (right is not None and right[0] <= left[0])
        if takes_left and takes_right:
            assert left is not None and right is not None
            if left[1] != right[1]:
                verdict.different += 1
                verdict.found("different", left[0], "the table has other content than the log")
        elif takes_left:
            assert left is not None
            verdict.missing += 1
            verdict.found("missing", left[0], "the log has a message that the table lacks")
        else:
            assert right is not None
            verdict.extra += 1
            verdict.found("extra", right[0], "the table has a row that the log does not have here")
        if takes_left and left is not None:
            verdict.rows_log += 1
            log_tree.append(left[1])
            left = next(log, None)
        if takes_right and right is not None:
            verdict.rows_table += 1
            table_tree.append(right[1])
            right = next(table, None)


def find_strays(store: TableStore, state: TableState) -> Iterator[TableFinding]:
    """Find files that plain readers see although no version names them."""
    known = {f"{file.place}/{file.path.rpartition('/')[2]}": file for file in state.files.values()}
    digests = {file.digest: file.path for file in state.files.values()}
    for each in store.names(""):
        plain = not any(part[:1] in "_." for part in each.name.split("/"))
        if not plain or each.name in known or each.name in state.files:
            continue
        original = digests.get(digest_of(store.read(each.name)))
        what = f"a copy of {original}" if original else "not of this table"
        yield TableFinding("stray", "", 0, 0, f"{each.name} is {what}: plain readers see its rows")
