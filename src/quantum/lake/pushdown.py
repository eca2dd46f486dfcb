"""What of a query's WHERE a plan can make use of. Pure, but for the names of Spark's filters.

Spark evaluates again what is not handled to the last row: topics and times are (a gap has neither),
tenants, partitions and indexes are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from quantum.lake.filters import Filters

_EXACT: Final = frozenset({"tenant", "prg", "raft_index"})


def push(filters: Filters, asked: Iterable[Filter]) -> tuple[Filters, list[Filter]]:
    """Return narrower filters, and what Spark still has to look at."""
    left: list[Filter] = []
    for each in asked:
        narrowed = _narrowed(filters, each)
        if narrowed is None or getattr(each, "attribute", ("",))[0] not in _EXACT:
            left.append(each)
        filters = filters if narrowed is None else narrowed
    return filters, left


def _narrowed(filters: Filters, asked: Filter) -> Filters | None:
    """Return what a filter makes of others; None where it says nothing to a plan."""
    match asked:
        case StringStartsWith(attribute=("topic",), value=str(prefix)):
            return filters.with_prefix(prefix.encode())
        case EqualTo(attribute=(str(name),), value=value) if value is not None:
            return _one_of(filters, name, (value,))
        case EqualNullSafe(attribute=(str(name),), value=value) if value is not None:
            return _one_of(filters, name, (value,))
        case In(attribute=(str(name),), value=values):
            return _one_of(filters, name, tuple(values))
        case (
            GreaterThan(attribute=(str(name),), value=value)
            | GreaterThanOrEqual(attribute=(str(name),), value=value)
            | LessThan(attribute=(str(name),), value=value)
            | LessThanOrEqual(attribute=(str(name),), value=value)
        ):
            return _ranged(filters, name, asked, value)
        case _:
            return None


def _one_of(filters: Filters, name: str, values: tuple[object, ...]) -> Filters | None:
    texts = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if type(value) is int]
    times = [value for value in values if isinstance(value, datetime)]
    if name == "tenant" and len(texts) == len(values):
        return filters.with_tenants(frozenset(texts))
    if name == "topic" and len(texts) == len(values):
        return filters.with_topics(frozenset(text.encode() for text in texts))
    if name == "prg" and len(numbers) == len(values):
        return filters.with_prgs(frozenset(numbers))
    if name == "raft_index" and len(values) == len(numbers) == 1:
        return filters.with_indexes(numbers[0], numbers[0])
    if name == "timestamp" and len(values) == len(times) == 1 and times[0].tzinfo is not None:
        at_ms = _milliseconds(times[0])
        return filters.with_times(at_ms, at_ms + 1)
    return None


def _ranged(filters: Filters, name: str, asked: Filter, value: object) -> Filters | None:
    if name == "raft_index" and type(value) is int:
        match asked:
            case GreaterThan():
                return filters.with_indexes(first=value + 1)
            case GreaterThanOrEqual():
                return filters.with_indexes(first=value)
            case LessThan():
                return filters.with_indexes(last=value - 1)
            case _:
                return filters.with_indexes(last=value)
    if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        at_ms = _milliseconds(value)
        if isinstance(asked, GreaterThan | GreaterThanOrEqual):
            return filters.with_times(first_ms=max(0, at_ms))
        return filters.with_times(last_ms=at_ms + 1)
    return None


def _milliseconds(value: datetime) -> int:
    """Round down; whoever looks for an end adds one."""
    return int(value.timestamp() * 1000)
