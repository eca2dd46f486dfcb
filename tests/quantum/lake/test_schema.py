"""The rule of evolution: columns are added at the end; the old is read, the newer is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quantum.lake import schema
from quantum.lake.refusals import BadOption, UnknownSchemaVersion
from quantum.lake.schema import COLUMNS, Column, arrow_schema, conform, spark_ddl

VERSION_1 = [
    *("tenant", "prg", "raft_index", "sub_index", "topic", "payload", "qos", "retain"),
    *("content_type", "user_properties", "publisher", "session_epoch", "message_id"),
    *("forward_seq", "stream_partition", "stream_offset", "timestamp", "protocol"),
    *("origin_prg", "origin_term", "row_kind", "gap_through"),
]


def test_version_1_is_frozen() -> None:
    assert [column.name for column in COLUMNS if column.since == 1] == VERSION_1
    assert spark_ddl(version=1).startswith("tenant STRING, prg INT, raft_index BIGINT")


def test_later_columns_come_later() -> None:
    versions = [column.since for column in COLUMNS]
    assert versions == sorted(versions)
    assert all(field.nullable for field in arrow_schema())


def test_some_columns_in_the_order_asked_for() -> None:
    assert arrow_schema(["payload", "topic"]).names == ["payload", "topic"]
    assert spark_ddl(["payload", "topic"]) == "payload BINARY, topic STRING"
    with pytest.raises(BadOption, match="no such column"):
        arrow_schema(["payload", "colour"])


@pytest.fixture
def tomorrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release with a later version."""
    added = (*COLUMNS, Column("colour", pa.string(), "STRING", since=3))
    monkeypatch.setattr(schema, "COLUMNS", added)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)


def a_table(version: int) -> pa.Table:
    columns = arrow_schema(version=version)
    return pa.table([pa.nulls(2, field.type) for field in columns], schema=columns)


@pytest.mark.usefixtures("tomorrow")
def test_what_an_older_release_wrote_is_read() -> None:
    old = a_table(1)
    today = pa.schema(
        [pa.field(column.name, column.arrow) for column in schema.COLUMNS],
        metadata={schema.VERSION_KEY: b"3"},
    )
    assert "colour" not in old.column_names
    arrays = conform(old)
    assert arrays.schema.names == today.names
    assert arrays.column("colour").null_count == 2
    assert arrays.column("topic").equals(old.column("topic"))


def test_a_table_without_a_word_is_of_the_first_version() -> None:
    assert conform(a_table(1).replace_schema_metadata(None)).num_rows == 2


def test_what_a_later_release_wrote_is_refused() -> None:
    later = a_table(2).replace_schema_metadata({schema.VERSION_KEY: b"3"})
    with pytest.raises(UnknownSchemaVersion, match="version=3, known=2"):
        conform(later)
    with pytest.raises(UnknownSchemaVersion):
        conform(later.replace_schema_metadata({schema.VERSION_KEY: b"many"}))


def test_what_is_no_table_of_ours_is_refused() -> None:
    with pytest.raises(BadOption, match="lacks a column"):
        conform(a_table(1).drop_columns(["topic"]))
    place = VERSION_1.index("prg")
    other = a_table(1).set_column(place, "prg", pa.array(["0", "1"]))
    with pytest.raises(BadOption, match="another type"):
        conform(other)
