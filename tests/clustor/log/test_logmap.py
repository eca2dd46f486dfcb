"""The map of live entries against a naive twin that remembers every one of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustor.log.errors import LogMisuse
from clustor.log.logmap import LogMap
from clustor.log.types import LogIndex, SegmentSeq, Term


class Twin:
    """Every live entry by index: its segment, its run's offset and its term."""

    def __init__(self) -> None:
        self.base = (0, 0)
        self.live: dict[int, tuple[int, int, int]] = {}

    @property
    def last_index(self) -> int:
        return max(self.live, default=self.base[0])

    @property
    def last_term(self) -> int:
        return self.live[self.last_index][2] if self.live else self.base[1]

    def truncate(self, from_index: int) -> None:
        self.live = {index: where for index, where in self.live.items() if index < from_index}

    def rebase(self, base_index: int, base_term: int) -> None:
        self.live = {index: where for index, where in self.live.items() if index > base_index}
        self.base = (base_index, base_term)


class Both:
    """A map and its twin, told the same."""

    def __init__(self) -> None:
        self.map = LogMap(LogIndex(0), Term(0))
        self.twin = Twin()
        self.segment_seq = 1
        self.offset = 128

    def append(self, terms_up: list[bool], length: int) -> None:
        first, term, terms = self.twin.last_index + 1, self.twin.last_term, []
        for nth, up in enumerate(terms_up):
            term += up
            terms.append(term)
            self.twin.live[first + nth] = (self.segment_seq, self.offset, term)
        end = self.offset + length
        self.map.append_run(SegmentSeq(self.segment_seq), self.offset, end, first, len(terms))
        self.map.append_terms(first, terms)
        self.offset = end

    def truncate(self, back: int) -> None:
        from_index = max(self.twin.last_index - back, self.twin.base[0] + 1)
        self.map.truncate(from_index)
        self.twin.truncate(from_index)

    def next_segment(self) -> None:
        self.segment_seq += 1
        self.offset = 128

    def rebase(self, segments_kept: int) -> None:
        """Keep the newest segments whole, as compaction does."""
        start = self.segment_seq - segments_kept
        kept = [index for index, (seq, _, _) in self.twin.live.items() if seq >= start]
        base = min(kept) - 1 if kept else self.twin.last_index
        if base < self.twin.base[0]:
            return
        term = self.twin.live[base][2] if base in self.twin.live else self.twin.base[1]
        self.map.rebase(LogIndex(base), Term(term), SegmentSeq(start))
        self.twin.rebase(base, term)

    def check(self) -> None:
        assert self.map.last_index == self.twin.last_index
        assert self.map.last_term == self.twin.last_term
        base_index, base_term = self.twin.base
        assert self.map.term_of(base_index) == base_term
        for index, (seq, offset, term) in self.twin.live.items():
            assert self.map.term_of(index) == term
            extent, found = self.map.locate(index)
            assert extent.segment_seq == seq
            assert extent.first_index <= index <= extent.last_index
            self._check_walk(index, found, offset)
        for absent in (base_index - 1, base_index, self.twin.last_index + 1):
            with pytest.raises(LogMisuse):
                self.map.locate(absent)
        for absent in (base_index - 1, self.twin.last_index + 1):
            with pytest.raises(LogMisuse):
                self.map.term_of(absent)

    def _check_walk(self, index: int, found: int, offset: int) -> None:
        """A walk from where the map points meets the run, and little on the way."""
        assert found <= offset
        assert offset - found < 65_536 + 40_000
        seq = self.twin.live[index][0]
        starts = {at for s, at, _ in self.twin.live.values() if s == seq}
        assert found in starts, "an offset at which no live run starts"


APPEND = st.tuples(
    st.just("append"), st.lists(st.booleans(), min_size=1, max_size=5), st.integers(60, 40_000)
)
OPERATIONS = st.lists(
    st.one_of(
        APPEND,
        APPEND,
        st.tuples(st.just("truncate"), st.integers(0, 8)),
        st.tuples(st.just("next_segment")),
        st.tuples(st.just("rebase"), st.integers(0, 3)),
    ),
    max_size=25,
)


@given(OPERATIONS)
@settings(max_examples=300)
def test_the_map_agrees_with_its_naive_twin(operations: list[tuple[object, ...]]) -> None:
    both = Both()
    for name, *arguments in operations:
        getattr(both, str(name))(*arguments)
        both.check()


def test_truncating_into_the_snapshot_is_refused() -> None:
    entries = LogMap(LogIndex(5), Term(2))
    for from_index in (0, 5):
        with pytest.raises(LogMisuse):
            entries.truncate(from_index)
    entries.truncate(6)
    assert (entries.last_index, entries.last_term) == (5, 2)


def test_a_long_extent_costs_a_checkpoint_every_64_kib() -> None:
    both = Both()
    for _ in range(1_000):
        both.append([False], 1_000)
    extent, _ = both.map.locate(1)
    assert 14 <= len(extent.offsets) <= 17
    both.check()
