"""The broker's state at a moment as Parquet tables: sessions, subscriptions, retained, queues."""

from __future__ import annotations

from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from quantum.archive.types import PrgId
from quantum.lake.archive import KeyProvider, LogSource
from quantum.lake.jobs.errors import StateTaken
from quantum.lake.jobs.replay import STATE_TABLES, ReplayLimit, state_rows
from quantum.lake.jobs.runner import Runner, runner_of
from quantum.lake.jobs.sources import open_logs
from quantum.lake.table import TableStore, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ARROW: Final = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
}


def state_schema(name: str) -> pa.Schema:
    """Return the columns of one of `STATE_TABLES`."""
    columns = (column.split() for column in STATE_TABLES[name].split(", "))
    return pa.schema([pa.field(column, _ARROW[kind]) for column, kind in columns])


def write_state(
    where: str | LogSource,
    target: str | TableStore,
    *,
    spark: SparkSession | Runner | None = None,
    keys: str | KeyProvider = "directory",
    broker: str | None = None,
    at: ReplayLimit = ReplayLimit(),  # noqa: B008  # a frozen value
) -> dict[str, int]:
    """Write the state of all partitions below `target`, a directory for each table.

    Every partition writes its own files; none crosses the driver. Doing it again adds nothing, and
    a run that was cut short is completed. Returns how many rows there are. Raises StateTaken where
    the state of another moment is there already: the two would be read as one.
    """
    source = open_logs(where, keys, broker)
    prgs = source.prgs()
    for prg in prgs:
        source.bounds(prg)
    store = open_store(target) if isinstance(target, str) else target
    work = partial(write_partition, source, store, at)
    totals = dict.fromkeys(STATE_TABLES, 0)
    for counts in runner_of(spark).run(work, prgs):
        for name, count in counts.items():
            totals[name] += count
    return totals


def write_partition(
    source: LogSource, store: TableStore, at: ReplayLimit, prg: PrgId
) -> dict[str, int]:
    """Write one partition's state. Runs where Spark says; a second attempt finds its files."""
    counts: dict[str, int] = {}
    index, tables = state_rows(source, at, prg)
    _check_moment(store, prg, index)
    for name, rows in tables.items():
        counts[name] = len(rows)
        if rows or prg.number == 0:  # so that an empty table has a schema
            buffer = BytesIO()
            pq.write_table(pa.Table.from_pylist(rows, state_schema(name)), buffer)
            store.create(f"{name}/{_file(prg)}{index}.parquet", buffer.getvalue())
    return counts


def _file(prg: PrgId) -> str:
    """Return how the names of a partition's files begin; what follows is an index."""
    return f"{prg.tenant}-{prg.number}-"


def _check_moment(store: TableStore, prg: PrgId, index: int) -> None:
    for table in STATE_TABLES:
        for each in store.names(table):
            file = each.name.rpartition("/")[2]
            if file.startswith(_file(prg)) and file != f"{_file(prg)}{index}.parquet":
                raise StateTaken(
                    "the state of another moment is here: choose another directory",
                    prg=prg,
                    index=index,
                    file=each.name,
                )
