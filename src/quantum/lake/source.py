"""The Spark data source `quantum`: shims over the planner and the reader.

    spark.read.format("quantum").option("path", "var").load()
    spark.readStream.format("quantum").option("cluster", "127.0.0.1:7301").load()

`quantum.lake.options` lists the options. Readers are picklable and keep nothing that `read` needs:
a partition carries its own source and task. Keys are looked up by name where they are used, and
asked for where a query is planned: what fails in an executor is said by Spark in pages of Java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from clustor.runtime.disk.memory import keep_freed_memory
from quantum.archive.types import PrgId
from quantum.lake.archive import LogSource
from quantum.lake.errors import BadAddress, LakeError, while_reading
from quantum.lake.filters import Filters
from quantum.lake.key_check import check_keys
from quantum.lake.keys_option import NamedKeys
from quantum.lake.known_states import KnownStates
from quantum.lake.offsets import Offsets
from quantum.lake.opening import open_source
from quantum.lake.options import APPLIED, EARLIEST, LATEST, SourceOptions, parse_options
from quantum.lake.planner import BatchLimits, Offer, OnGap, Task, admit, cut, gone, up_to
from quantum.lake.pushdown import push
from quantum.lake.reader import confirm_gone, offer_of, read_task
from quantum.lake.refusals import BadOption
from quantum.lake.schema import arrow_schema, chosen, spark_ddl

NO_LIMITS = BatchLimits()
NOTHING_READ = Offsets()
ROW = OnGap.ROW
_KNOWN_STATES = KnownStates()
"""Of this process; no row depends on it."""
_FITTING_KEYS: set[tuple[str, str, str]] = set()
"""(where, keys, tenant) that were found right in this process."""

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def plainly(method: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Let Spark print our sentence, and not every error that led to it with its own traceback."""

    @wraps(method)
    def called(*arguments: Given.args, **named: Given.kwargs) -> Returned:
        try:
            return method(*arguments, **named)
        except LakeError as error:
            raise error.with_traceback(None) from None

    return called


class QuantumPartition(InputPartition):
    """One task, and where its log is."""

    def __init__(self, source: LogSource, task: Task) -> None:
        self.source = source
        self.task = task


class QuantumDataSource(DataSource):
    """`format("quantum")`."""

    @classmethod
    def name(cls) -> str:
        return "quantum"

    @plainly
    def schema(self) -> str:
        options = parse_options(self.options)
        return spark_ddl(options.columns, options.version)

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options)
        kind = NarrowingReader if options.pushes_down else QuantumReader
        return kind(options, _names(schema, options))

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's
        options = parse_options(self.options)
        return QuantumStreamReader(options, _names(schema, options))


def _names(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """Check the schema that a user gave: any of our columns, in any order, of our types."""
    names = tuple(schema.fieldNames())
    chosen(names, options.version)
    given = to_arrow_schema(schema, timezone="UTC")
    for mine, yours in zip(arrow_schema(names, options.version), given, strict=True):
        if mine.type != yours.type:
            raise BadOption(
                "a column has another type", column=mine.name, type=mine.type, given=yours.type
            )
    return names


class _Logs:
    """The partitions behind the options: one source for each, so that each travels alone."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._sources: dict[PrgId, LogSource] = {}

    def _open(self) -> LogSource:
        options = self._options
        return open_source(options.where, NamedKeys(options.keys, options.where))

    def source(self, prg: PrgId) -> LogSource:
        return self._sources[prg]

    def offers(
        self, filters: Filters, *, exact: bool, read: Offsets = NOTHING_READ
    ) -> dict[PrgId, Offer]:
        """Look anew at what every wanted partition has. Raises LakeError.

        `read` is how far a query is, for errors to say.
        """
        listed = self._open()
        prgs = listed.prgs()
        named = self._options.filters.tenants or frozenset()  # not a WHERE, which may find nothing
        unknown = named - {prg.tenant for prg in prgs}
        if unknown:
            raise BadAddress("no such tenant here", tenants=",".join(sorted(unknown)))
        offers: dict[PrgId, Offer] = {}
        for prg in prgs:
            if filters.wants_partition(prg):
                source = self._sources[prg] = self._open()
                with while_reading(prg, read[prg] + 1):
                    self._check_keys(source, prg)
                    offers[prg] = offer_of(source, prg, exact=exact, broker=self._options.broker)
        return offers

    def _check_keys(self, source: LogSource, prg: PrgId) -> None:
        """Have one partition of each tenant confirm its keys, once in a process."""
        name = (self._options.where, self._options.keys, prg.tenant)
        if self._options.is_live and name not in _FITTING_KEYS:
            check_keys(source, prg)
            _FITTING_KEYS.add(name)


def _starting(options: SourceOptions, offers: dict[PrgId, Offer]) -> Offsets:
    starting = options.starting
    if isinstance(starting, Offsets):
        return starting
    if starting == LATEST:
        return Offsets({prg: offer.bounds.last for prg, offer in offers.items()})
    if starting == EARLIEST:
        return Offsets({prg: offer.bounds.first - 1 for prg, offer in offers.items()})
    return Offsets(dict.fromkeys(offers, 0))


class QuantumReader(DataSourceReader):
    """A batch: everything between two offsets."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._filters = options.filters

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        options, filters = self._options, self._filters
        logs = _Logs(options)
        offers = logs.offers(filters, exact=options.rows == APPLIED)
        start = _starting(options, offers)
        end = options.ending or admit(start, offers, NO_LIMITS, filters)
        return _partitions(logs, cut(start, end, offers, filters, options.cutting, ROW), options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._names, self._filters, self._options)


class NarrowingReader(QuantumReader):
    """A batch of which a WHERE reads less, by option `pushdown`.

    Spark up to 4.3 keeps one plan for a DataFrame: what the last WHERE made of it is what every
    other scan of the same frame reads, without a word. So this is for frames that are read once.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's
        self._filters, left = push(self._options.filters, filters)
        return left


class QuantumStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: batches between offsets that Spark keeps in its checkpoint."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._target: Offsets | None = None

    def _offers(self, logs: _Logs, read: Offsets = NOTHING_READ) -> dict[PrgId, Offer]:
        options = self._options
        return logs.offers(options.filters, exact=options.rows == APPLIED, read=read)

    @plainly
    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's
        return _starting(self._options, self._offers(_Logs(self._options))).to_document()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's
        limits = self._options.limits
        if limits.records is not None:
            return ReadMaxRows(limits.records)
        if limits.bytes is not None:
            return ReadMaxBytes(limits.bytes)
        return ReadAllAvailable() if limits.files is None else ReadMaxFiles(limits.files)

    @plainly
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        read = Offsets.from_document(start)
        offers = self._offers(_Logs(self._options), read)
        if self._options.is_live:  # a node may know less than the one that answered before
            offers = {prg: each for prg, each in offers.items() if each.bounds.last >= read[prg]}
        if self._target is not None:
            offers = {prg: up_to(offers[prg], self._target[prg], read[prg]) for prg in offers}
        return admit(read, offers, self._limits(limit), self._options.filters).to_document()

    def _limits(self, limit: ReadLimit) -> BatchLimits:
        """Spark hands over one limit of ours, or says that there is none for this trigger."""
        return NO_LIMITS if isinstance(limit, ReadAllAvailable) else self._options.limits

    @plainly
    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's
        offers = self._offers(_Logs(self._options))
        return Offsets({prg: offer.bounds.last for prg, offer in offers.items()}).to_document()

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's
        offers = self._offers(_Logs(self._options))
        self._target = Offsets({prg: offer.bounds.last for prg, offer in offers.items()})

    @plainly
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        options, logs = self._options, _Logs(self._options)
        begin, stop = Offsets.from_document(start), Offsets.from_document(end)
        if begin == stop:
            return []
        offers = self._offers(logs, begin)
        tasks = cut(begin, stop, offers, options.filters, options.cutting, ROW)
        return _partitions(logs, tasks, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._names, self._options.filters, self._options)


def _partitions(logs: _Logs, tasks: Sequence[Task], options: SourceOptions) -> list[InputPartition]:
    """Give every task its source. A gap is believed when the source says that it is one."""
    found: list[InputPartition] = []
    for task in tasks:
        source = logs.source(task.prg)
        if task.is_gap:
            confirm_gone(source, task)
            if options.on_gap is not ROW:
                raise gone(source.bounds(task.prg), task.first, task.last)
        found.append(QuantumPartition(source, task))
    return found


def _read(
    partition: Any, names: tuple[str, ...], filters: Filters, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    keep_freed_memory()
    if isinstance(partition, QuantumPartition):  # Spark makes an empty one where there are none
        source, task = partition.source, partition.task
        known = (_KNOWN_STATES, f"{options.where} {task.prg} {options.broker}")
        version, broker = options.version, options.broker
        try:
            yield from read_task(source, task, names, filters, version, broker, known)
        except LakeError as error:
            raise error.with_traceback(None) from None
