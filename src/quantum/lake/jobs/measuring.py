"""The figures of `usage` without Spark: a small table is counted in this process.

The rows are those that `usage`, `usage_of_tenants` and `breaches` give, by the same rules; a test
holds the two against each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from quantum.lake.jobs.progress import Progress, Step, silence
from quantum.lake.jobs.reading import table_state
from quantum.lake.jobs.row_files import read_file
from quantum.lake.jobs.usage import RESOURCES, UsageLimits, breaches, usage, usage_of_tenants
from quantum.lake.refusals import BadOption
from quantum.lake.table import FileKind, TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = ("tenant", "topic", "publisher", "session_epoch", "timestamp", "payload")
_NOT_PUBLISHED: Final = frozenset({"gap", "will"})
_WRITTEN: Final = ("*.parquet", "_SUCCESS", ".*.crc")
_USAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("tenant", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("hour", pa.timestamp("us", tz="UTC")),
        *(pa.field(name, pa.int64()) for name in (*RESOURCES, "payload_p50", "payload_p99")),
    ]
)
Rows: TypeAlias = "list[dict[str, Any]]"
Key: TypeAlias = "tuple[Any, ...]"


@dataclass(slots=True)
class _Measured:
    """What is counted of one key."""

    sizes: list[int] = field(default_factory=list)
    publishers: set[str] = field(default_factory=set)
    sessions: set[tuple[str, int]] = field(default_factory=set)

    def add(self, message: Mapping[str, Any]) -> None:
        publisher, epoch = message["publisher"], message["session_epoch"]
        self.sizes.append(len(message["payload"] or b""))
        if publisher is not None:
            self.publishers.add(publisher)
            if epoch is not None:
                self.sessions.add((publisher, epoch))

    def figures(self) -> dict[str, int]:
        self.sizes.sort()
        return {
            "messages": len(self.sizes),
            "bytes": sum(self.sizes),
            "publishers": len(self.publishers),
            "sessions": len(self.sessions),
            "payload_p50": percentile(self.sizes, 50),
            "payload_p99": percentile(self.sizes, 99),
        }


def percentile(ordered: list[int], percent: int) -> int:
    """Return the smallest value that so many percent of all do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def measure_topics(
    table: str | TableStore, *, version: int | None = None, progress: Progress = silence
) -> Rows:
    """Return a row for each tenant, topic and hour, as `usage` does."""
    messages = _messages(table, version, progress)
    found = _measured(messages, lambda each: (each["tenant"], each["hour"], each["topic"]))
    return [
        {"tenant": tenant, "topic": topic, "hour": hour, **measured.figures()}
        for (tenant, hour, topic), measured in found
    ]


def measure_tenants(
    table: str | TableStore, *, version: int | None = None, progress: Progress = silence
) -> Rows:
    """Return a row for each tenant and hour, as `usage_of_tenants` does."""
    messages = _messages(table, version, progress)
    found = _measured(messages, lambda each: (each["tenant"], each["hour"]))
    return [
        {"tenant": tenant, "hour": hour, **measured.figures()} for (tenant, hour), measured in found
    ]


def measure_breaches(tenants: Rows, limits: Mapping[str, UsageLimits]) -> Rows:
    """Return the hours in which a tenant exceeded a limit, as `breaches` does."""
    allowed = {tenant: msgspec.structs.asdict(each) for tenant, each in limits.items()}
    return [
        {
            "tenant": row["tenant"],
            "hour": row["hour"],
            "resource": resource,
            "used": row[resource],
            "allowed": limit,
        }
        for row in tenants
        for resource in sorted(RESOURCES)
        if (limit := allowed.get(row["tenant"], {}).get(resource)) is not None
        and row[resource] > limit
    ]


def _measured(
    messages: Iterator[dict[str, Any]], key_of: Callable[[dict[str, Any]], Key]
) -> list[tuple[Key, _Measured]]:
    measured: dict[Key, _Measured] = defaultdict(_Measured)
    for message in messages:
        measured[key_of(message)].add(message)
    return sorted(measured.items(), key=lambda pair: [(each is not None, each) for each in pair[0]])


def _messages(
    table: str | TableStore, version: int | None, progress: Progress
) -> Iterator[dict[str, Any]]:
    opened, state = table_state(table, version)
    files = state.of_kind(FileKind.ROWS)
    for nth, file in enumerate(files):
        progress(Step("usage", f"{nth} of {len(files)} files are counted", nth, len(files)))
        for batch in read_file(opened.store, file).to_batches():
            kinds = batch.column("row_kind").to_pylist()
            for kind, row in zip(kinds, batch.select(_COLUMNS).to_pylist(), strict=True):
                if kind not in _NOT_PUBLISHED:
                    yield row | {"hour": _hour_of(row["timestamp"])}


def _hour_of(moment: datetime | None) -> datetime | None:
    return None if moment is None else _whole_hour(moment.astimezone(UTC))


def _whole_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


# The same by Spark, where there is a session.


def usage_rows(
    spark: SparkSession | None,
    table: str | TableStore,
    *,
    version: int | None = None,
    progress: Progress = silence,
) -> Rows:
    """Return a row for each tenant, topic and hour."""
    if spark is None:
        return measure_topics(table, version=version, progress=progress)
    return _collected(usage(spark, table, version=version))


def tenant_rows(
    spark: SparkSession | None, table: str | TableStore, *, version: int | None = None
) -> Rows:
    """Return a row for each tenant and hour."""
    if spark is None:
        return measure_tenants(table, version=version)
    return _collected(usage_of_tenants(spark, table, version=version))


def breach_rows(
    spark: SparkSession | None,
    table: str | TableStore,
    limits: dict[str, UsageLimits],
    *,
    version: int | None = None,
) -> Rows:
    """Return the hours in which a tenant exceeded a limit."""
    if not limits:
        return []
    if spark is None:
        return measure_breaches(measure_tenants(table, version=version), limits)
    return _collected(breaches(spark, table, limits, version=version))


def write_usage(
    spark: SparkSession | None, table: str | TableStore, rows: Rows, target: str
) -> None:
    """Write `rows` as Parquet in place of what an earlier run wrote there. Raises BadOption."""
    if spark is not None:
        usage(spark, table).write.mode("overwrite").parquet(target)
        return
    if "://" in target:
        raise BadOption("what is not a directory here is written by Spark: --master local[*]")
    directory = Path(target)
    directory.mkdir(parents=True, exist_ok=True)
    old = [each for pattern in _WRITTEN for each in directory.glob(pattern)]
    fresh = directory / ".usage.parquet.new"
    pq.write_table(pa.Table.from_pylist(rows, _USAGE_SCHEMA), fresh)
    for each in old:
        each.unlink()
    fresh.rename(directory / "usage.parquet")


def _collected(frame: DataFrame) -> Rows:
    """Collect rows; Spark gives times in this machine's zone, and does not say so."""
    return [
        {
            name: value.astimezone(UTC) if isinstance(value, datetime) else value
            for name, value in row.asDict().items()
        }
        for row in frame.collect()
    ]
