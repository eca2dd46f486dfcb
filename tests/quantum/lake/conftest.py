"""One Spark for all tests of the room: it takes longer to start than any of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from quantum.lake.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.driver.memory": "512m",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.python.worker.reuse": "true",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on one core, its driver on loopback."""
    scratch = str(tmp_path_factory.mktemp("spark"))
    config = SMALL | {"spark.local.dir": scratch, "spark.sql.warehouse.dir": scratch}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = spark_session("local[1]", config=config)
    yield session
    session.stop()
