"""Options: what is meant, or one sentence; never a key."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from quantum.archive.types import PrgId
from quantum.lake.archive import DirectoryKeys
from quantum.lake.filters import NO_FILTERS
from quantum.lake.keys_option import NamedKeys, key_provider
from quantum.lake.offsets import Offsets
from quantum.lake.options import parse_options
from quantum.lake.planner import BatchLimits, OnGap
from quantum.lake.pushdown import push
from quantum.lake.refusals import BadOption, UnknownSchemaVersion

KEY = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"


def test_the_plain_case() -> None:
    options = parse_options({"path": "var"})
    assert (options.where, options.keys, options.rows) == ("var", "directory", "applied")
    assert (options.on_gap, options.starting, options.ending) == (OnGap.FAIL, "first", None)


def test_every_option_by_any_case() -> None:
    options = parse_options(
        {
            "CLUSTER": "127.0.0.1:7301",
            "path": "s3://bucket/prefix",
            "keys": "env:LAKE",
            "ongap": "ROW",
            "rows": "logged",
            "startingOffsets": '{"dev/0":3}',
            "endingOffsets": '{"dev/0":9}',
            "tenant": "dev,acme",
            "prgs": "0,2",
            "topicPrefix": "plant/",
            "indexMin": "4",
            "indexMax": "8",
            "since": "2026-11-15T20:00:00.0001+01:00",
            "until": "2026-11-15T20:00:00Z",
            "pushdown": "ON",
            "maxRecordsPerTrigger": "5",
            "maxBytesPerTrigger": "6",
            "maxFilesPerTrigger": "7",
            "partitionBytes": "8",
            "columns": "payload, topic",
            "schemaVersion": "1",
        }
    )
    assert options.where == "cluster:127.0.0.1:7301+s3://bucket/prefix"
    assert options.starting == Offsets({PrgId("dev", 0): 3})
    assert options.ending == Offsets({PrgId("dev", 0): 9})
    assert options.limits == BatchLimits(5, 6, 7)
    assert options.columns == ("payload", "topic")
    assert options.filters.tenants == frozenset({"dev", "acme"})
    assert options.filters.prgs == frozenset({0, 2})
    assert options.filters.topic_prefixes == (b"plant/",)
    assert (options.filters.index_min, options.filters.index_max) == (4, 8)
    assert options.filters.time_min_ms == 1_794_769_200_001
    assert options.filters.time_max_ms == 1_794_772_799_999
    assert options.pushes_down and not parse_options({"path": "var"}).pushes_down
    assert (options.cutting.task_bytes, options.cutting.exact) == (8, False)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "say where the log is"),
        ({"path": "var", "color": "red"}, "no such option"),
        ({"path": "var", "onGap": "skip"}, "one of fail, row"),
        ({"path": "var", "rows": "all"}, "one of applied, logged"),
        ({"path": "var", "maxRecordsPerTrigger": "0"}, "from 1 on"),
        ({"path": "var", "maxBytesPerTrigger": "1e9"}, "from 1 on"),
        ({"path": "var", "startingOffsets": "beginning"}, "JSON"),
        ({"path": "var", "endingOffsets": "{}x"}, "JSON"),
        ({"path": "var", "prgs": "a"}, "list of numbers"),
        ({"path": "var", "indexMin": "-1"}, "from 1 on"),
        ({"path": "var", "since": "yesterday"}, "a time with a zone"),
        ({"path": "var", "until": "2026-11-15T20:00:00"}, "a time with a zone"),
        ({"path": "var", "pushdown": "maybe"}, "one of off, on"),
        ({"path": "var", "columns": "topic,colour"}, "no such column"),
        ({"path": "var", "keys": "vault"}, "option keys is"),
    ],
)
def test_anything_else_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadOption, match=sentence):
        parse_options(given)


def test_a_later_schema_is_refused() -> None:
    with pytest.raises(UnknownSchemaVersion):
        parse_options({"path": "var", "schemaVersion": "3"})


@pytest.mark.parametrize(
    "secret", [KEY, KEY.upper(), "0x" + KEY, "env:" + KEY, '{"kek":"…"}', "QUJD" * 12]
)
def test_a_key_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse_options({"path": "var", "keys": secret})
    assert secret[:12] not in str(caught.value)
    assert "names a provider" in str(caught.value)


class OwnKeys:
    """A provider that a test names."""

    def keyring(self, prg: PrgId) -> object:
        return f"the keys of {prg}"


def test_a_provider_is_found_by_its_name() -> None:
    name = f"module:{__name__}.OwnKeys"
    assert NamedKeys(name, "var").keyring(PrgId("dev", 0)) == "the keys of dev/0"  # type: ignore[comparison-overlap]
    for other in ("module:nowhere.at_all", f"module:{__name__}.nothing", f"module:{__name__}.KEY"):
        with pytest.raises(BadOption):
            key_provider(other, "var")


# What a WHERE becomes.

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)
PUSHED = {
    "tenant": (EqualTo(("tenant",), "dev"), NO_FILTERS.with_tenants(frozenset({"dev"})), True),
    "tenants": (
        In(("tenant",), ("dev", "acme")),
        NO_FILTERS.with_tenants(frozenset({"dev", "acme"})),
        True,
    ),
    "partition": (EqualTo(("prg",), 3), NO_FILTERS.with_prgs(frozenset({3})), True),
    "prefix": (StringStartsWith(("topic",), "a/"), NO_FILTERS.with_prefix(b"a/"), False),
    "topic": (EqualTo(("topic",), "a"), NO_FILTERS.with_topics(frozenset({b"a"})), False),
    "index >": (GreaterThan(("raft_index",), 5), NO_FILTERS.with_indexes(first=6), True),
    "index >=": (GreaterThanOrEqual(("raft_index",), 5), NO_FILTERS.with_indexes(first=5), True),
    "index <": (LessThan(("raft_index",), 5), NO_FILTERS.with_indexes(last=4), True),
    "index <=": (LessThanOrEqual(("raft_index",), 5), NO_FILTERS.with_indexes(last=5), True),
    "index =": (EqualTo(("raft_index",), 5), NO_FILTERS.with_indexes(5, 5), True),
    "since": (GreaterThan(("timestamp",), NOON), NO_FILTERS.with_times(NOON_MS), False),
    "until": (LessThan(("timestamp",), NOON), NO_FILTERS.with_times(last_ms=NOON_MS + 1), False),
    "a local time": (LessThan(("timestamp",), NOON.replace(tzinfo=None)), NO_FILTERS, False),
    "not": (Not(EqualTo(("tenant",), "dev")), NO_FILTERS, False),
    "another column": (EqualTo(("qos",), 1), NO_FILTERS, False),
    "not null": (IsNotNull(("topic",)), NO_FILTERS, False),
    "nothing": (EqualTo(("tenant",), None), NO_FILTERS, False),
}


@pytest.mark.parametrize(("asked", "wanted", "is_done"), PUSHED.values(), ids=PUSHED.keys())
def test_a_filter_is_pushed_down(asked: Filter, wanted: object, is_done: bool) -> None:
    filters, left = push(NO_FILTERS, [asked])
    assert filters == wanted
    assert left == ([] if is_done else [asked])


def test_filters_narrow_each_other() -> None:
    filters, _ = push(
        NO_FILTERS.with_tenants(frozenset({"dev"})),
        [EqualTo(("tenant",), "acme"), GreaterThan(("raft_index",), 2)],
    )
    assert filters.tenants == frozenset()
    assert filters.index_min == 3


@pytest.mark.parametrize(
    ("where", "directory"),
    [
        ("some/var", "some/var"),
        ("cluster:127.0.0.1:9080", "var"),
        ("cluster:127.0.0.1:9080+s3://bucket/x", "var"),
        ("file:///archive", "var"),
    ],
)
def test_keys_are_beside_the_data_or_where_a_broker_keeps_them(
    where: str, directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = key_provider("directory", where)
    wanted = directory if directory == where else str(tmp_path / directory)
    assert found == DirectoryKeys(wanted)
    assert key_provider("directory:keys", where) == DirectoryKeys("keys")
