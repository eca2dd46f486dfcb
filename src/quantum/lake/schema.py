"""The columns of a row: one table for Arrow, for Spark and for what older releases wrote.

The rule of evolution: a version adds nullable columns at the end, and changes nothing before them.
So what an old release wrote is read with nulls in the columns that it did not know (`conform`), and
a job that was written for version n asks for version n and sees what it always saw. What a *later*
release wrote is refused: its columns may mean what nobody here knows. A table stays of the version
that it was made with.

Version 2 has the columns of version 1. Wills have rows (kind `will`), and `protocol` says what the
connection spoke: `mqtt5`, `mqtt3` (3.1 and 3.1.1), or null where a record does not tell (those of
older brokers, QoS 2 that crossed partitions, wills) and has no properties, which only MQTT 5 has.
In version 1 it is `mqtt5` for a record with properties, `mqtt` for any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from quantum.lake.refusals import BadOption, UnknownSchemaVersion

SCHEMA_VERSION: Final = 2
VERSION_KEY: Final = b"quantum.schema_version"
"""The metadata of Arrow and Parquet schemas that names the version."""

MESSAGE: Final = "message"
WILL: Final = "will"
LOGGED: Final = "logged"
GAP: Final = "gap"

_TEXT: Final = pa.string()
_TIME: Final = pa.timestamp("us", tz="UTC")
_PAIRS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", _TEXT), pa.field("value", _TEXT)]))
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its types, and the version that brought it."""

    name: str
    arrow: pa.DataType
    spark: str
    since: int = 1


COLUMNS: Final[tuple[Column, ...]] = (
    Column("tenant", _TEXT, "STRING"),
    Column("prg", pa.int32(), "INT"),
    Column("raft_index", pa.int64(), "BIGINT"),
    Column("sub_index", pa.int32(), "INT"),
    Column("topic", _TEXT, "STRING"),
    Column("payload", pa.binary(), "BINARY"),
    Column("qos", pa.int32(), "INT"),
    Column("retain", pa.bool_(), "BOOLEAN"),
    Column("content_type", _TEXT, "STRING"),
    Column("user_properties", _PAIRS, "ARRAY<STRUCT<key: STRING, value: STRING>>"),
    Column("publisher", _TEXT, "STRING"),
    Column("session_epoch", pa.int64(), "BIGINT"),
    Column("message_id", pa.int32(), "INT"),
    Column("forward_seq", pa.int64(), "BIGINT"),
    Column("stream_partition", pa.int32(), "INT"),
    Column("stream_offset", pa.int64(), "BIGINT"),
    Column("timestamp", _TIME, "TIMESTAMP"),
    Column("protocol", _TEXT, "STRING"),
    Column("origin_prg", pa.int32(), "INT"),
    Column("origin_term", pa.int64(), "BIGINT"),
    Column("row_kind", _TEXT, "STRING"),
    Column("gap_through", pa.int64(), "BIGINT"),
)
"""(tenant, prg, raft_index, sub_index) names a row. (tenant, origin_prg, session_epoch,
message_id, forward_seq) is the idempotence key of quantumqtt §4.7.

`row_kind` is `message`, or `will`: nobody was told that it was published, and it has no
`message_id`; or `logged` where the state of the broker before the entry is gone: such
a row may be a publish that was refused or came twice. A `gap` row stands for all entries from
`raft_index` through `gap_through`, which are gone, and has nothing else but its partition."""

NAMES: Final = tuple(column.name for column in COLUMNS)
_BY_NAME: Final = {column.name: column for column in COLUMNS}


def check_version(version: int) -> None:
    """Raises UnknownSchemaVersion for one that this release does not know."""
    if not 1 <= version <= SCHEMA_VERSION:
        raise UnknownSchemaVersion(
            "this release does not know the schema version", version=version, known=SCHEMA_VERSION
        )


def columns_of(version: int) -> tuple[Column, ...]:
    """Return the columns of a version, in order."""
    check_version(version)
    return tuple(column for column in COLUMNS if column.since <= version)


def chosen(names: Sequence[str], version: int = SCHEMA_VERSION) -> tuple[Column, ...]:
    """Return the columns of these names, in their order. Raises BadOption for others."""
    known = {column.name for column in columns_of(version)}
    strange = [name for name in names if name not in known]
    if strange:
        raise BadOption("there is no such column", columns=",".join(strange))
    return tuple(_BY_NAME[name] for name in names)


def arrow_schema(names: Sequence[str] | None = None, version: int = SCHEMA_VERSION) -> pa.Schema:
    """Return the Arrow schema of all columns of a version, or of some in the order asked for."""
    columns = columns_of(version) if names is None else chosen(names, version)
    fields = [pa.field(column.name, column.arrow) for column in columns]
    return pa.schema(fields, metadata={VERSION_KEY: str(version).encode()})


def spark_ddl(names: Sequence[str] | None = None, version: int = SCHEMA_VERSION) -> str:
    """Return the same for Spark."""
    columns = columns_of(version) if names is None else chosen(names, version)
    return ", ".join(f"{column.name} {column.spark}" for column in columns)


def version_of(schema: pa.Schema) -> int:
    """Say which version wrote a table; those without a word about it are of the first."""
    metadata = schema.metadata or {}
    try:
        return int(metadata.get(VERSION_KEY, b"1"))
    except ValueError:
        raise UnknownSchemaVersion("the schema version is no number") from None


def conform(table: pa.Table) -> pa.Table:
    """Bring a table that this or an older release wrote to the columns of today.

    Raises UnknownSchemaVersion for a later release's table, and BadOption where a column that
    its version has is missing or of another type: that is no table of ours.
    """
    version = version_of(table.schema)
    for column in columns_of(version):
        if column.name not in table.column_names:
            raise BadOption("a table lacks a column", column=column.name, version=version)
    arrays = []
    for column in COLUMNS:
        if column.since > version:
            arrays.append(pa.nulls(table.num_rows, column.arrow))
            continue
        found = table.column(column.name)
        if found.type != column.arrow:
            raise BadOption("a column has another type", column=column.name, type=str(found.type))
        arrays.append(found)
    return pa.table(arrays, schema=arrow_schema(version=SCHEMA_VERSION))
