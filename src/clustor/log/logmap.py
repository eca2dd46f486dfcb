"""Where each live entry stands, and its term: small enough to keep for a log of any length."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from clustor.log.errors import LogMisuse
from clustor.log.types import LogIndex, SegmentSeq, Term

_CHECKPOINT_BYTES: Final = 65_536


@dataclass(slots=True)
class Extent:
    """Live entries with consecutive indices that stand one after another in one segment.

    A truncation only lowers `last_index`: runs may hold entries beyond it, and those are void.
    """

    segment_seq: SegmentSeq
    first_index: int
    last_index: int
    end_offset: int
    # A run every 64 KiB or so: its first index and its offset. The rest is found by walking.
    indices: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))


class LogMap:
    """The live entries of a log: extents in order of index, and the terms in runs."""

    def __init__(self, base_index: LogIndex, base_term: Term) -> None:
        self.base_index = base_index
        self.base_term = base_term
        self.extents: list[Extent] = []
        # Where each term starts: parallel lists, both strictly increasing.
        self._term_starts: list[int] = []
        self._terms: list[int] = []

    @property
    def last_index(self) -> LogIndex:
        return LogIndex(self.extents[-1].last_index) if self.extents else self.base_index

    @property
    def last_term(self) -> Term:
        return Term(self._terms[-1]) if self._terms else self.base_term

    def term_of(self, index: int) -> Term:
        """Return the term of a live entry or of the base; LogMisuse for any other index."""
        if index == self.base_index:
            return self.base_term
        if not self.base_index < index <= self.last_index:
            raise LogMisuse("no such entry", index=index, last_index=self.last_index)
        return Term(self._terms[bisect_right(self._term_starts, index) - 1])

    def append_terms(self, first_index: int, terms: list[int]) -> None:
        """Note the terms of consecutive entries. They never decrease."""
        last = self._terms[-1] if self._terms else -1
        if terms and terms[0] == last == terms[-1]:
            return
        for nth, term in enumerate(terms):
            if term != last:
                self._term_starts.append(first_index + nth)
                self._terms.append(term)
                last = term

    def append_run(
        self, segment_seq: SegmentSeq, offset: int, end_offset: int, first_index: int, count: int
    ) -> None:
        """Note a run that was written behind all others."""
        assert first_index == self.last_index + 1, (first_index, self.last_index)
        extent = self.extents[-1] if self.extents else None
        # Behind a truncation the next run starts an extent of its own, even in the same
        # segment: what lies between them on disk is void.
        if extent is None or extent.segment_seq != segment_seq or extent.end_offset != offset:
            extent = Extent(segment_seq, first_index, first_index - 1, offset)
            self.extents.append(extent)
        if not extent.offsets or offset - extent.offsets[-1] >= _CHECKPOINT_BYTES:
            extent.indices.append(first_index)
            extent.offsets.append(offset)
        extent.last_index = first_index + count - 1
        extent.end_offset = end_offset

    def truncate(self, from_index: int) -> None:
        """Void every entry from `from_index` on."""
        if from_index <= self.base_index:
            raise LogMisuse("cannot truncate into the snapshot", from_index=from_index)
        while self.extents and self.extents[-1].first_index >= from_index:
            self.extents.pop()
        if self.extents and self.extents[-1].last_index >= from_index:
            self.extents[-1].last_index = from_index - 1
            self.extents[-1].end_offset = -1  # nothing continues a cut extent
        while self._term_starts and self._term_starts[-1] >= from_index:
            self._term_starts.pop()
            self._terms.pop()

    def locate(self, index: int) -> tuple[Extent, int]:
        """Return the extent that holds a live entry, and an offset at or before its run."""
        nth = bisect_right(self.extents, index, key=lambda extent: extent.first_index) - 1
        if nth < 0 or not self.base_index < index <= self.last_index:
            raise LogMisuse("no such entry", index=index, last_index=self.last_index)
        extent = self.extents[nth]
        return extent, extent.offsets[bisect_right(extent.indices, index) - 1]

    def rebase(self, base_index: LogIndex, base_term: Term, segment_seq: SegmentSeq) -> None:
        """Forget everything through `base_index`, and every extent of an older segment."""
        self.extents = [
            extent
            for extent in self.extents
            if extent.segment_seq >= segment_seq and extent.last_index > base_index
        ]
        keep = bisect_right(self._term_starts, base_index + 1) - 1
        if self.extents and keep >= 0:
            self._term_starts = self._term_starts[keep:]
            self._terms = self._terms[keep:]
        elif not self.extents:
            self._term_starts, self._terms = [], []
        self.base_index, self.base_term = base_index, base_term
