"""`format("quantum")` in a real Spark: what the logs hold, once, or an error that says where."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from clustor.runtime.keys.store import KEK_FILE, KEYS_DIRECTORY, create_keyring
from quantum.lake.schema import GAP, NAMES, arrow_schema, spark_ddl
from tests.quantum.lake.log_directory import LogDirectory
from tests.quantum.lake.messages import batch, damage, fill, numbered

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Spark's own, of its dependencies
    pytest.mark.timeout(900),  # seconds on an idle machine, minutes on a crowded one
]


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("quantum").options(path=str(path), **options).load()


def payloads(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.payload) for row in frame.select("payload").collect())


def run_stream(spark: SparkSession, path: Path, out: Path, **options: str) -> StreamingQuery:
    """Read all there is into Parquet, and wait for the end."""
    frame = spark.readStream.format("quantum").options(path=str(path), **options).load()
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(out / "rows"))
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600), "still running"
    return query


def test_a_batch_has_every_message_once(spark: SparkSession, tmp_path: Path) -> None:
    written = fill(tmp_path / "var")
    frame = load(spark, tmp_path / "var")
    assert to_arrow_schema(frame.schema, timezone="UTC").equals(arrow_schema())
    rows = frame.orderBy("prg", "raft_index", "sub_index").collect()
    assert sorted(bytes(row.payload) for row in rows) == sorted(written)
    assert {(row.tenant, row.prg, row.topic) for row in rows} == {
        ("dev", 0, "plant/0"),
        ("dev", 1, "plant/1"),
    }
    assert {row.row_kind for row in rows} == {"message"}


def test_some_columns_and_a_where(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "var")
    narrow = spark.read.format("quantum").schema(spark_ddl(["payload", "raft_index", "prg"]))
    frame = narrow.option("path", str(tmp_path / "var")).option("partitionBytes", "200").load()
    assert frame.columns == ["payload", "raft_index", "prg"]
    found = frame.where("prg = 1 and raft_index > 4").collect()
    assert {(row.prg, row.raft_index) for row in found} == {(1, 5), (1, 6)}
    assert len(found) == 10


def test_every_query_over_one_frame_gets_what_it_asks_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark plans a frame once, whatever the queries over it want."""
    written = fill(tmp_path / "var")
    frame = load(spark, tmp_path / "var", partitionBytes="200")
    assert frame.where("tenant = 'nobody'").count() == 0
    assert frame.count() == len(written)
    first, second = frame.where("raft_index <= 3"), frame.where("raft_index > 3")
    assert first.count() + second.count() == len(written)
    assert payloads(first.union(second)) == sorted(written)
    assert payloads(frame.where("prg = 0").union(frame.where("prg = 1"))) == sorted(written)


def test_what_is_not_wanted_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """By options for every query, by a WHERE for a frame that is read once."""
    written = fill(tmp_path / "var")
    wanted = {"prgs": "1", "indexMin": "3", "indexMax": "4", "since": "1970-01-02T00:00:00Z"}
    by_options = load(spark, tmp_path / "var", topicPrefix="plant/", tenant="dev", **wanted)
    rows = payloads(by_options)
    assert rows == sorted(written)[40:50]
    assert load(spark, tmp_path / "var", until="1970-01-02T00:00:00Z").count() == 0
    once = load(spark, tmp_path / "var", partitionBytes="200", pushdown="on")
    by_where = once.where("prg = 1 and raft_index in (3, 4) and topic like 'plant/%'")
    assert payloads(by_where) == rows
    small = load(spark, tmp_path / "var", partitionBytes="200").rdd.getNumPartitions()
    narrow = once.where("prg = 1 and raft_index > 4 ").rdd.getNumPartitions()
    assert narrow < small / 2


def test_a_stream_goes_on_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    var, out = tmp_path / "var", tmp_path / "out"
    written = fill(var)
    query = run_stream(spark, var, out, maxRecordsPerTrigger="5")
    assert query.exception() is None
    sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    assert sum(sizes) == len(written)
    assert max(sizes) <= 5 * 5
    assert payloads(spark.read.parquet(str(out / "rows"))) == sorted(written)
    with LogDirectory(var, prgs=2, segment_bytes=1 << 20) as logs:
        logs.append(1, [batch(numbered(1, 3))])
    run_stream(spark, var, out, maxRecordsPerTrigger="5")
    assert payloads(spark.read.parquet(str(out / "rows"))) == sorted([*written, *numbered(1, 3)])


def test_what_is_gone_fails_or_becomes_a_row(spark: SparkSession, tmp_path: Path) -> None:
    var = tmp_path / "var"
    with LogDirectory(var, prgs=1, segment_bytes=1 << 20) as logs:
        for _ in range(4):
            logs.append(0, [batch([bytes(400_000)])])
        logs.compact(0, 3)
    with pytest.raises(PySparkException) as caught:
        load(spark, var).collect()
    assert "LogGone" in str(caught.value)
    assert "prg=dev/0, index=1" in str(caught.value)
    names = ["raft_index", "gap_through", "row_kind"]
    rows = load(spark, var, onGap="row").select(names).orderBy("raft_index").collect()
    assert (rows[0].row_kind, rows[0].raft_index) == (GAP, 1)
    assert [row.raft_index for row in rows[1:]] == list(range(rows[0].gap_through + 1, 5))
    left = load(spark, var, startingOffsets="earliest").select("raft_index").count()
    assert left == len(rows) - 1


def test_a_damaged_block_stops_a_stream_and_it_goes_on_when_repaired(
    spark: SparkSession, tmp_path: Path
) -> None:
    var, out = tmp_path / "var", tmp_path / "out"
    written = fill(var)
    segment, whole = damage(var, 1)
    with pytest.raises(PySparkException) as caught:
        run_stream(spark, var, out)
    assert "DamagedBlock" in str(caught.value)
    assert "prg=dev/1" in str(caught.value)
    segment.write_bytes(whole)
    run_stream(spark, var, out)
    assert payloads(spark.read.parquet(str(out / "rows"))) == sorted(written)


def test_keys_are_named_and_never_shown(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    var = tmp_path / "var"
    fill(var, entries=1)
    secret = (var / KEYS_DIRECTORY / KEK_FILE).read_text().strip()
    frame = load(spark, var, keys=f"directory:{var}").where("prg = 0")
    assert frame.count() == 5
    frame.explain(extended=True)
    plan = frame._jdf.queryExecution().toString()
    create_keyring(tmp_path / "other")
    with pytest.raises(PySparkException) as caught:
        load(spark, var, keys=f"directory:{tmp_path / 'other'}").count()
    assert "dev/0" in str(caught.value)
    told = capfd.readouterr()
    for text in (str(caught.value), told.err):  # issue 20, item 12
        assert "\tat " not in text and "direct cause" not in text, text
    assert "wanted=key" in str(caught.value) and "given=key" in str(caught.value)
    shown = "".join(told) + plan + str(caught.value)
    assert "quantum" in shown
    assert secret not in shown
    with pytest.raises(PySparkException, match="names a provider") as refused:
        load(spark, var, keys=secret)
    assert secret not in str(refused.value)


def test_nothing_at_all(spark: SparkSession, tmp_path: Path) -> None:
    with LogDirectory(tmp_path / "var", prgs=1):
        pass
    assert load(spark, tmp_path / "var").count() == 0
    assert load(spark, tmp_path / "var").columns == list(NAMES)
    assert load(spark, tmp_path / "var").where("tenant = 'nobody'").count() == 0
    with pytest.raises(PySparkException, match="ends before what was read or planned"):
        load(spark, tmp_path / "var", onGap="row", endingOffsets='{"dev/0":3}').count()
    with pytest.raises(PySparkException, match="no such tenant here"):
        load(spark, tmp_path / "var", tenant="nobody").count()
