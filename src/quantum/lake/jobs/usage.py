"""`usage`: who published how much, per tenant, topic and hour; and what exceeds a limit."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from quantum.lake.jobs.reading import read_table
from quantum.lake.refusals import BadOption
from quantum.lake.table import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

USAGE_COLUMNS: Final = (
    *("tenant", "topic", "hour", "messages", "bytes", "publishers", "sessions"),
    *("payload_p50", "payload_p99"),
)


RESOURCES: Final = ("messages", "bytes", "publishers", "sessions")
"""What can be limited."""


class UsageLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tenant may publish in an hour; None asks for nothing."""

    messages: int | None = None
    bytes: int | None = None
    publishers: int | None = None
    sessions: int | None = None


def read_limits(path: Path) -> dict[str, UsageLimits]:
    """Read `[tenant-id]` tables of limits from TOML. Raises BadOption."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), dict[str, UsageLimits])
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise BadOption("cannot read the limits", file=path, cause=error) from error


def usage(spark: SparkSession, table: str | TableStore, *, version: int | None = None) -> DataFrame:
    """Return a row for each tenant, topic and hour.

    `sessions` counts (publisher, session epoch). A function of the table's version: run again it
    gives the same.
    """
    messages = _messages(spark, table, version)
    return _measured(messages, "tenant", "topic", "hour").orderBy("tenant", "hour", "topic")


def usage_of_tenants(
    spark: SparkSession, table: str | TableStore, *, version: int | None = None
) -> DataFrame:
    """Return a row for each tenant and hour."""
    return _measured(_messages(spark, table, version), "tenant", "hour").orderBy("tenant", "hour")


def breaches(
    spark: SparkSession,
    table: str | TableStore,
    limits: dict[str, UsageLimits],
    *,
    version: int | None = None,
) -> DataFrame:
    """Return the hours in which a tenant exceeded a limit, and by how much."""
    from pyspark.sql import functions as f

    wanted = [
        (tenant, name, limit)
        for tenant, each in sorted(limits.items())
        for name, limit in msgspec.structs.asdict(each).items()
        if limit is not None
    ]
    allowed = spark.createDataFrame(wanted, "tenant STRING, resource STRING, allowed BIGINT")
    used = usage_of_tenants(spark, table, version=version).unpivot(
        ["tenant", "hour"], list(RESOURCES), "resource", "used"
    )
    return (
        used.join(allowed, ["tenant", "resource"])
        .where(f.col("used") > f.col("allowed"))
        .select("tenant", "hour", "resource", "used", "allowed")
        .orderBy("tenant", "hour", "resource")
    )


def _messages(spark: SparkSession, table: str | TableStore, version: int | None) -> DataFrame:
    from pyspark.sql import functions as f

    frame = read_table(spark, table, version=version)
    frame = frame.where(~f.col("row_kind").isin("gap", "will"))  # nobody published a will
    return frame.select(
        "tenant",
        "topic",
        "publisher",
        "session_epoch",
        f.date_trunc("hour", "timestamp").alias("hour"),
        f.coalesce(f.octet_length("payload"), f.lit(0)).alias("size"),
    )


def _measured(messages: DataFrame, *keys: str) -> DataFrame:
    from pyspark.sql import functions as f

    return messages.groupBy(*keys).agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.countDistinct("publisher").alias("publishers"),
        f.countDistinct("publisher", "session_epoch").alias("sessions"),
        f.percentile_approx("size", 0.5).alias("payload_p50"),
        f.percentile_approx("size", 0.99).alias("payload_p99"),
    )
