"""The data source on a real Spark cluster: a master and two workers that know nothing of us."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantum.lake.session import spark_session
from tests.quantum.lake.messages import fill
from tests.quantum.lake.standalone import StandaloneSpark

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Spark's own, of its dependencies
    pytest.mark.timeout(1800),  # seconds on an idle machine, minutes on a crowded one
]


def test_two_workers_read_what_was_shipped_to_them(tmp_path: Path) -> None:
    written = fill(tmp_path / "var", entries=4)
    small = {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
    }
    with StandaloneSpark(tmp_path) as cluster:
        assert cluster.alive_workers() == 2
        session = spark_session(cluster.master, config=small)
        try:
            frame = session.read.format("quantum").option("path", str(tmp_path / "var")).load()
            rows = frame.select("payload", "row_kind").collect()
        finally:
            session.stop()
        assert sorted(bytes(row.payload) for row in rows) == sorted(written)
        logs = list(tmp_path.glob("work-*/app-*/*/stderr"))
        assert len({log.parent.parent.parent.name for log in logs}) == 2, "a worker did nothing"
