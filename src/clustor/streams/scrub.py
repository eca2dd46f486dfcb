"""Read the files of streams again, one by one, before anybody needs them (clustor §9.4).

A start opens no partition's file, so a turned bit would wait for a reader. Every file is read once
in the days that a log is: a file that was never read here counts as read when it is first seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from clustor.log.scrub import COVERAGE_MS, DAY_MS, ROUND_MS
from clustor.streams.metadata import SegmentMeta
from clustor.streams.store import StreamStore
from clustor.streams.view import StreamView, take_view

_ROUNDS_PER_COVERAGE: Final = COVERAGE_MS // ROUND_MS - 1


@dataclass(frozen=True, slots=True)
class StreamPart:
    """One file of one partition, as far as it was written when it was noted."""

    partition: int
    file_seq: int
    size_bytes: int


def stream_parts(store: StreamStore) -> Iterator[StreamPart]:
    """Name the files that finished plans have written and no trim has taken."""
    for partition, files in store.partitions.items():
        for segment in files.readable:
            if segment.next_index > files.start_index:
                yield StreamPart(partition, segment.file_seq, segment.size_bytes)


def view_of_part(store: StreamStore, part: StreamPart) -> StreamView | None:
    """Return a view of just this file; None where it is gone meanwhile."""
    if part.partition not in store.partitions:
        return None
    view = take_view(store, part.partition)
    segments = tuple(at for at in _written(store, part) if at.file_seq == part.file_seq)
    return replace(view, segments=segments, pieces=()) if segments else None


def _written(store: StreamStore, part: StreamPart) -> Iterator[SegmentMeta]:
    files = store.files(part.partition)
    return (at for at in files.readable if at.next_index > files.start_index)


class StreamScrub:
    """Decides which files to read when."""

    def __init__(self) -> None:
        self._read_ms: dict[tuple[int, int], int] = {}

    def take_round(self, now_ms: int, store: StreamStore) -> list[StreamPart]:
        """Return the part that one round reads: what was not read for longest."""
        known = self.take_all(now_ms, store)
        count = -(-len(known) // _ROUNDS_PER_COVERAGE)
        return sorted(known, key=lambda at: self._read_ms[at.partition, at.file_seq])[:count]

    def take_all(self, now_ms: int, store: StreamStore) -> list[StreamPart]:
        """Return everything, to be read now: somebody asks."""
        known = list(stream_parts(store))
        before = self._read_ms
        keys = ((at.partition, at.file_seq) for at in known)
        self._read_ms = {key: before.get(key, now_ms) for key in keys}
        return known

    def on_read(self, part: StreamPart, now_ms: int) -> None:
        key = (part.partition, part.file_seq)
        if key in self._read_ms:
            self._read_ms[key] = now_ms

    def coverage_age_days(self, now_ms: int) -> float:
        """The age of the oldest reading that any file relies on."""
        return (now_ms - min(self._read_ms.values(), default=now_ms)) / DAY_MS
