"""A cluster and its archive as one log: what neither has is gone, what is away is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from clustor.log.types import Entry, LogIndex, Term
from quantum.archive.types import Bounds, IndexRange, LogPiece, PrgId, SnapshotRef
from quantum.lake.archive.falling_through import FallThroughSource
from quantum.lake.errors import BadAddress, LogGone, SourceUnreachable
from quantum.lake.planner import Task
from quantum.lake.reader import confirm_gone

PRG = PrgId("dev", 0)


@dataclass
class Stretch:
    """`LogSource` of the entries from `first` through `last`; `last` 0: no such partition."""

    first: int
    last: int

    def _check(self) -> None:
        if not self.last:
            raise BadAddress("this partition has no archive here", prg=PRG)

    def prgs(self) -> list[PrgId]:
        return [PRG] if self.last else []

    def bounds(self, prg: PrgId) -> Bounds:
        self._check()
        return Bounds(prg, self.first, self.last, (LogPiece(self.first, self.last, 100),))

    def entries(self, span: IndexRange) -> Iterator[Entry]:
        self._check()
        if span.first < self.first:
            last = min(span.last, self.first - 1)
            raise LogGone("gone", prg=PRG, first=span.first, last=last, readable_from=self.first)
        for index in range(span.first, span.last + 1):
            yield Entry(Term(1), LogIndex(index), b"")

    def snapshots(self, prg: PrgId) -> list[SnapshotRef]:
        return []

    def open_snapshot(self, ref: SnapshotRef) -> Iterator[bytes]:
        raise NotImplementedError


def indexes(source: FallThroughSource, first: int, last: int) -> list[int]:
    return [entry.index for entry in source.entries(IndexRange(PRG, first, last))]


def test_what_was_compacted_comes_from_the_archive() -> None:
    both = FallThroughSource(Stretch(50, 100), Stretch(1, 80))
    assert indexes(both, 1, 100) == list(range(1, 101))
    assert (both.bounds(PRG).first, both.bounds(PRG).last) == (1, 100)


def test_what_neither_has_is_gone() -> None:
    both = FallThroughSource(Stretch(50, 100), Stretch(20, 80))
    confirm_gone(both, Task(PRG, 1, 19, is_gap=True))
    with pytest.raises(LogGone) as gone:
        indexes(both, 1, 100)
    assert (gone.value.first, gone.value.last, gone.value.readable_from) == (1, 19, 20)


def test_an_archive_that_is_away_is_no_gap_and_no_excuse() -> None:
    """Neither for a row in place of entries, nor for rows that nobody could judge."""
    both = FallThroughSource(Stretch(50, 100), Stretch(1, 0))
    assert both.bounds(PRG).first == 50
    with pytest.raises(SourceUnreachable, match="no archive of it") as away:
        confirm_gone(both, Task(PRG, 1, 49, is_gap=True))
    assert (away.value.prg, away.value.index) == (PRG, 1)
    with pytest.raises(SourceUnreachable, match="no archive of it"):
        both.snapshots(PRG)


def test_an_archive_that_has_not_begun_is_not_missed() -> None:
    both = FallThroughSource(Stretch(1, 100), Stretch(1, 0))
    assert indexes(both, 1, 100) == list(range(1, 101))
    assert both.snapshots(PRG) == []
