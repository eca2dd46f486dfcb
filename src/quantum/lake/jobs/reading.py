"""Reading a table with Spark: what its log says is in it, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantum.lake.schema import spark_ddl
from quantum.lake.table import FileKind, Table, TableState, TableStore, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DEAD_DDL = (
    "tenant STRING, prg INT, raft_index BIGINT, sub_index INT, topic STRING, "
    "timestamp TIMESTAMP, payload BINARY, view STRING, reason STRING"
)
_PLACE_DDL = (
    "tenant STRING, prg INT, raft_index BIGINT, sub_index INT, topic STRING, timestamp TIMESTAMP"
)


def read_table(
    spark: SparkSession,
    table: str | TableStore,
    *,
    version: int | None = None,
    tenant: str | None = None,
) -> DataFrame:
    """Return the messages of a table, of one version throughout, with their `date`.

    The newest version by default. What was replaced since stays readable for a day.
    """
    return _frame(spark, table, FileKind.ROWS, "", spark_ddl(), version, tenant)


def read_dead_letters(
    spark: SparkSession, table: str | TableStore, *, version: int | None = None
) -> DataFrame:
    """Return the payloads that did not fit a view, with the reason."""
    return _frame(spark, table, FileKind.DEAD, "", _DEAD_DDL, version, None)


def read_view(
    spark: SparkSession, table: str | TableStore, view: str, *, version: int | None = None
) -> DataFrame:
    """Return the rows of a typed view."""
    return _frame(spark, table, FileKind.TYPED, view, None, version, None)


def table_state(table: str | TableStore, version: int | None = None) -> tuple[Table, TableState]:
    """Open a table, and give its state at a version. Raises NoTable."""
    store = open_store(table) if isinstance(table, str) else table
    opened = Table.open(store)
    return opened, opened.state if version is None else opened.at_version(version)


def _frame(  # noqa: PLR0917
    spark: SparkSession,
    table: str | TableStore,
    kind: FileKind,
    view: str,
    ddl: str | None,
    version: int | None,
    tenant: str | None,
) -> DataFrame:
    from pyspark.sql import functions

    opened, state = table_state(table, version)
    files = [
        opened.store.uri(file.path)
        for file in state.of_kind(kind, view)
        if tenant is None or file.stream.rpartition("/")[0] == tenant
    ]
    reader = spark.read if ddl is None else spark.read.schema(ddl)
    if files:
        frame = reader.parquet(*files)
    else:
        frame = spark.createDataFrame([], ddl or _PLACE_DDL)
    return frame.withColumn("date", functions.to_date("timestamp"))
