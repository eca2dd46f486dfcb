"""How much of a stream is kept: which offset is the first that its retention still wants. Pure.

A leader asks now and then and logs a `TrimStreams`. It looks at whole files: they are what can be
deleted, so up to one file more than was asked for stays, and never less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive messages of a partition that go together."""

    next_offset: int  # what follows it
    size_bytes: int
    newest_ms: int  # when the last of it was taken


def first_wanted(
    stretches: Iterable[Stretch], now_ms: int, *, retention_ms: int = 0, bytes_max: int = 0
) -> int | None:
    """Return the first offset to keep, or None where everything is; 0 is 'without a bound'.

    What is too old goes, to the last message; by size at least the newest stretch stays.
    """
    ordered = list(stretches)
    held = sum(each.size_bytes for each in ordered)
    first: int | None = None
    for nth, each in enumerate(ordered):
        held -= each.size_bytes
        is_old = retention_ms > 0 and each.newest_ms <= now_ms - retention_ms
        is_beyond = bytes_max > 0 and held >= bytes_max and nth < len(ordered) - 1
        if not (is_old or is_beyond):
            break
        first = each.next_offset
    return first


def share_of(bytes_max: int, partitions: int) -> int:
    """Return a partition's part of what a stream may keep; a bound never becomes none."""
    return max(1, bytes_max // partitions) if bytes_max else 0
