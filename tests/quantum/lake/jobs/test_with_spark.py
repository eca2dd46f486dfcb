"""The jobs on a real Spark session, the one that all tests of the lake share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quantum.lake.errors import LogGone
from quantum.lake.jobs import (
    Fleet,
    IngestSettings,
    SparkFailed,
    SparkRunner,
    UsageLimits,
    View,
    breaches,
    compact,
    ingest,
    loads_of,
    read_dead_letters,
    read_table,
    read_view,
    replay,
    report,
    simulate,
    usage,
    verify,
)
from quantum.lake.jobs.measuring import measure_topics
from quantum.lake.jobs.runner import Result, Task
from quantum.lake.planner import BatchLimits
from quantum.lake.table import DirectoryStore, Table
from tests.quantum.lake.jobs.logs import DAY_MS, NOON_MS, MemorySource
from tests.quantum.lake.jobs.test_ingest import story

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")  # Spark's own, of its dependencies

VIEW = View("numbers", "n/+", "json", {"value": "long"})


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fill a table by Spark, in several commits, with a view and dead letters."""
    log, _ = story()
    log.publish(1, b'{"value": 1}', b'{"value": 2}', b"broken", topic="n/a", client="d")
    log.now_ms = NOON_MS + DAY_MS
    log.publish(0, b'{"value": 3}', topic="n/b", client="d")
    table = tmp_path_factory.mktemp("table")
    settings = IngestSettings(limits=BatchLimits(records=9), views=(VIEW,))
    found = ingest(log, str(table), spark=spark, settings=settings)
    assert found.commits == 2
    assert verify(log, str(table), spark=spark).is_equal
    return table


def test_spark_reads_what_is_committed(spark: SparkSession, filled: Path) -> None:
    frame = read_table(spark, str(filled))
    assert frame.count() == 15
    assert frame.select("date").distinct().count() == 2
    first = read_table(spark, str(filled), version=1).count()
    assert 0 < first < 15
    assert read_table(spark, str(filled), tenant="other").count() == 0
    (filled / "_data" / "orphan.parquet").write_bytes(b"junk")
    assert read_table(spark, str(filled)).count() == 15
    assert spark.read.parquet(str(filled)).count() == 15
    frame.createOrReplaceTempView("messages")
    asked = "select count(*) as n from messages where topic = 'n/a' and qos = 1"
    assert spark.sql(asked).collect()[0]["n"] == 3


def test_views_and_dead_letters_are_tables(spark: SparkSession, filled: Path) -> None:
    values = read_view(spark, str(filled), "numbers").orderBy("value").collect()
    assert [row["value"] for row in values] == [1, 2, 3]
    assert [row["payload"] for row in read_dead_letters(spark, str(filled)).collect()] == [
        b"broken"
    ]
    assert spark.read.parquet(str(filled / "_views" / "numbers")).count() == 3
    assert read_view(spark, str(filled), "nothing").count() == 0


def test_usage_counts_by_tenant_topic_and_hour(spark: SparkSession, filled: Path) -> None:
    collected = usage(spark, str(filled)).collect()
    rows = {(row["topic"], row["hour"].day): row for row in collected}
    counted_here = {(row["topic"], row["hour"].day): row for row in measure_topics(str(filled))}
    for place, row in rows.items():  # issue 20, item 13: this process and Spark count alike
        assert row.asDict() | {"hour": row["hour"].astimezone(UTC)} == counted_here.pop(place)
    assert not counted_here
    numbers = rows["n/a", 15]
    assert (numbers["messages"], numbers["bytes"], numbers["publishers"]) == (3, 30, 1)
    assert (numbers["payload_p50"], numbers["payload_p99"]) == (12, 12)
    assert rows["n/b", 16]["messages"] == 1
    allowed = {"dev": UsageLimits(messages=13, bytes=10_000), "other": UsageLimits(messages=1)}
    found = breaches(spark, str(filled), allowed).collect()
    assert [(row["resource"], row["used"], row["allowed"]) for row in found] == [
        ("messages", 14, 13)
    ]


def test_a_page_with_plots(spark: SparkSession, filled: Path) -> None:
    page = report(spark, str(filled))
    assert page.count("<svg") == 2
    assert "dev: n/a" in page
    assert "dev/0" in page
    assert report(None, str(filled)) == page
    loads = loads_of(simulate(Fleet(sessions=2_000, prgs=9, grown_prgs=10, nodes=3)))
    more = report(spark, str(filled), limits={"dev": UsageLimits(messages=13)}, loads=loads)
    assert more.count("<svg") == 3
    assert "Limits that were exceeded" in more and "<td>13</td>" in more


def test_replay_and_compact_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    log, _ = story()
    store = DirectoryStore(tmp_path)
    ingest(log, store, settings=IngestSettings(limits=BatchLimits(records=1)))
    found = replay(log, spark=spark)
    assert [each.digest for each in found] == [log.machine(n).digest().hex() for n in (0, 1)]
    before = read_table(spark, store).count()
    assert compact(store, spark=spark, files_min=2).files_after == 2
    assert read_table(spark, store).count() == before
    assert Table.open(store).state.version > 10


def test_a_worker_that_dies_leaves_the_table_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """The process that carries a task out is killed behind its last file; the next run goes on."""
    log, accepted = story()
    marker = tmp_path / "died"

    class Killing(SparkRunner):
        def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
            def killed(task: Task) -> Result:
                result = work(task)
                if not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            return super().run(killed, tasks)

    table = tmp_path / "table"
    with pytest.raises(SparkFailed):
        ingest(log, str(table), spark=Killing(spark))
    assert read_table(spark, str(table)).count() == 0
    assert list(table.glob("_data/*.parquet"))
    ingest(log, str(table), spark=Killing(spark))
    assert read_table(spark, str(table)).count() == len(accepted)
    assert spark.read.parquet(str(table)).count() == len(accepted)


def test_errors_of_tasks_arrive_as_they_are(spark: SparkSession) -> None:
    log = MemorySource()

    def gone(task: int) -> int:
        raise LogGone("compacted", prg=log.prgs()[0], first=task, last=9)

    with pytest.raises(LogGone) as raised:
        SparkRunner(spark).run(gone, [3])
    assert (raised.value.first, raised.value.last) == (3, 9)

    def broken(_: int) -> int:
        raise ZeroDivisionError("our own bug")

    with pytest.raises(SparkFailed):
        SparkRunner(spark).run(broken, [0])
    assert SparkRunner(spark).run(broken, []) == []
