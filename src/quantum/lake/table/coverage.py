"""How far each typed view is written: through which offset of each stream, without a hole. Pure.

A view may come later than the rows, change its description, or be left out of a run. Whatever is
behind these offsets has to be written, or written anew, before the view is whole.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from quantum.lake.table.types import OffsetRange, StreamName, TableOperation


class Coverage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A view under one description: through which offset it holds each stream's rows."""

    digest: str
    through: dict[StreamName, int] = {}


Coverages = dict[str, Coverage]
Ranges = Mapping[StreamName, OffsetRange]


def uncovered(
    known: Mapping[str, Coverage], ranges: Ranges, view: str, digest: str
) -> dict[StreamName, OffsetRange]:
    """Return which offsets of a table a view does not hold yet."""
    coverage = known.get(view)
    through = coverage.through if coverage is not None and coverage.digest == digest else {}
    missing = {
        stream: OffsetRange(through.get(stream, each.first - 1) + 1, each.last)
        for stream, each in ranges.items()
    }
    return {stream: each for stream, each in missing.items() if each.first <= each.last}


def extended(
    known: Mapping[str, Coverage],
    ranges: Ranges,
    operation: TableOperation,
    added: Ranges,
    views: Mapping[str, str],
) -> Coverages:
    """Return what views hold after a commit that wrote `views`; `ranges` is what was there before.

    A commit that covers offsets writes its views for these alone, so a view goes on only where it
    had everything before. One that backfills makes its views whole.
    """
    found = dict(known)
    for view, digest in views.items():
        before = known.get(view)
        if before is None or before.digest != digest:
            before = Coverage(digest)
        through = dict(before.through)
        if operation == TableOperation.BACKFILL:
            through = {stream: each.last for stream, each in ranges.items()}
        for stream, each in added.items():
            had = ranges.get(stream)
            if had is None or through.get(stream) == had.last:
                through[stream] = each.last
        found[view] = Coverage(digest, through)
    return found
