"""The filters of a receiver on a stream: where it begins, and what it selects."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from quantum.protocols.amqp.engine import Described, Timestamp
from quantum.protocols.amqp.session.filters import read_filters

OFFSET_SPEC: Final = "rabbitmq:stream-offset-spec"
_OFFSET_MAX: Final = (1 << 63) - 1


class StartKind(Enum):
    """Where a receiver begins."""

    FIRST = "first"
    LAST = "last"
    NEXT = "next"
    OFFSET = "offset"
    TIME = "time"


_WORDS: Final = {each.value: each for each in (StartKind.FIRST, StartKind.LAST, StartKind.NEXT)}


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a receiver begins; `at` is the offset, or the time in milliseconds."""

    kind: StartKind = StartKind.NEXT
    at: int = 0


@dataclass(frozen=True, slots=True)
class StreamFilters:
    """What a receiver asked for and has; `told` is that in its own words."""

    start: StreamStart
    selector: str = ""
    told: dict[object, object] | None = None


def read_stream_filters(asked: dict[object, object] | None) -> StreamFilters:
    """Understand filters; those that are not known are not in force, and not said back.

    Raises SelectorError for a selector that is none, and ValueError for no place to begin at.
    """
    others: dict[object, object] = {}
    starts: dict[object, Described] = {}
    for name, each in (asked or {}).items():
        if isinstance(each, Described) and each.descriptor == OFFSET_SPEC:
            starts[name] = each
        else:
            others[name] = each
    if len(starts) > 1:
        raise ValueError("one place to begin at")
    start = next((read_start(each.value) for each in starts.values()), StreamStart())
    found = read_filters(others)
    # Who sent a record of a stream is not kept in a way that no-local could tell.
    told = {name: each for name, each in (found.told or {}).items() if not _is_no_local(each)}
    return StreamFilters(start, found.selector, {**told, **starts} or None)


def read_start(value: object) -> StreamStart:
    """Understand where to begin. Raises ValueError."""
    if isinstance(value, str) and value in _WORDS:
        return StreamStart(_WORDS[value])
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, int) and is_number and 0 <= value <= _OFFSET_MAX:
        kind = StartKind.TIME if isinstance(value, Timestamp) else StartKind.OFFSET
        return StreamStart(kind, int(value))
    raise ValueError("a stream begins at first, last, next, an offset or a timestamp")


def _is_no_local(each: object) -> bool:
    return isinstance(each, Described) and read_filters({"": each}).is_no_local
