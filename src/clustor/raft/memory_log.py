"""The log as a group sees it: every term, a window of entries, and no disk.

Terms are kept as runs from the snapshot base to the end, so that any position can be compared.
Entries are kept from the oldest that is not both applied and durable here; older ones are read
from disk by the runtime when a slow follower needs them, and never block the group.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from clustor.log.types import Entry, EntryKind, LogIndex, Term
from clustor.raft.types import NO_INDEX, NO_TERM

ENTRY_OVERHEAD_BYTES = 24
"""What one entry costs on the wire and on disk beside its payload, for limits and lags."""

EVICT_ENTRIES_MIN = 1024
"""Eviction moves the whole window, so it waits until it is worth it."""
KEPT_BYTES = 16 << 20
"""Of large entries as many stay as a replica that is a little behind may want next."""

_PLAIN = (EntryKind.DATA, EntryKind.NO_OP)


class MemoryLog:
    """Terms by runs from `base_index` on, and the entries of a recent window.

    The runtime fills it by `append` at start; it evicts no entry that is not applied.

    Invariant: `base_index <= cache_first - 1 <= last_index`, runs ascend in index and term, and
    an index has an entry in the window if and only if it is at or above `cache_first`.
    """

    def __init__(
        self,
        base_index: LogIndex = NO_INDEX,
        base_term: Term = NO_TERM,
        *,
        evict_entries_min: int = EVICT_ENTRIES_MIN,
    ) -> None:
        self._evict_entries_min = evict_entries_min
        self._restart(base_index, base_term)

    def _restart(self, base_index: LogIndex, base_term: Term) -> None:
        self.base_index = base_index
        self.base_term = base_term
        self.last_index = base_index
        self.last_term = base_term
        self.cache_first = LogIndex(base_index + 1)
        self.system: list[Entry] = []  # membership, transitions, fences: all since the base
        self._run_first: list[int] = []
        self._run_term: list[Term] = []
        self._entries: list[Entry] = []
        self._ends: list[int] = []  # bytes from the base through each entry of the window
        self._cache_start_bytes = 0
        self._marks: list[tuple[int, int]] = [(base_index, 0)]  # (index, bytes through it)

    @property
    def bytes_total(self) -> int:
        """Return the bytes of all entries since the base."""
        return self._ends[-1] if self._ends else self._cache_start_bytes

    def term_at(self, index: int) -> Term | None:
        """Return the term at `index`, or None where this log has none or knows none."""
        if index > self.last_index or index < self.base_index:
            return None
        if index == self.base_index:
            return self.base_term
        return self._run_term[bisect_right(self._run_first, index) - 1]

    def holds(self, term: Term, index: int) -> bool:
        """Say whether this very entry is in the log; below the base everything is settled."""
        return index < self.base_index or self.term_at(index) == term

    def run_start(self, index: int) -> LogIndex:
        """Return the first index, above the base, of the run of equal terms that holds `index`."""
        if index <= self.base_index:
            return LogIndex(index)
        return LogIndex(self._run_first[bisect_right(self._run_first, index) - 1])

    def last_at_or_below_term(self, term: Term, index: int) -> LogIndex:
        """Return the last position at or below `index` whose term is not above `term`."""
        at = bisect_right(self._run_first, min(index, self.last_index)) - 1
        last = min(index, self.last_index)
        while at >= 0 and self._run_term[at] > term:
            last = self._run_first[at] - 1
            at -= 1
        return LogIndex(max(last, self.base_index))

    def append_payloads(self, term: Term, payloads: Sequence[bytes]) -> list[Entry]:
        """Append one DATA entry per payload at the end, and return them."""
        entries = [
            Entry(term, LogIndex(index), payload)
            for index, payload in enumerate(payloads, self.last_index + 1)
        ]
        if entries:
            self._extend(entries, term)
        return entries

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries that follow the last one; terms never decrease."""
        if not entries:
            return
        assert entries[0].index == self.last_index + 1, "a gap, or a conflict that was not cut"
        first = 0
        for position, entry in enumerate(entries):
            if entry.term != entries[first].term:
                self._extend(entries[first:position], entries[first].term)
                first = position
        self._extend(entries[first:] if first else entries, entries[first].term)
        self.system += [entry for entry in entries if entry.kind not in _PLAIN]

    def _extend(self, entries: Sequence[Entry], term: Term) -> None:
        assert term >= self.last_term, "terms went backwards"
        if not self._run_term or self._run_term[-1] != term:
            self._run_first.append(self.last_index + 1)
            self._run_term.append(term)
        sizes = [len(entry.payload) + ENTRY_OVERHEAD_BYTES for entry in entries]
        sizes[0] += self.bytes_total
        self._ends += accumulate(sizes)
        self._entries += entries
        self.last_index = LogIndex(self.last_index + len(entries))
        self.last_term = term

    def truncate_from(self, index: LogIndex) -> None:
        """Drop `index` and everything after it; the window must still hold it."""
        assert index >= self.cache_first, "cut below the window"
        del self._entries[index - self.cache_first :]
        del self._ends[index - self.cache_first :]
        while self._run_first and self._run_first[-1] >= index:
            self._run_first.pop()
            self._run_term.pop()
        while self.system and self.system[-1].index >= index:
            self.system.pop()
        self.last_index = LogIndex(index - 1)
        self.last_term = self._run_term[-1] if self._run_term else self.base_term

    def replace(self, entries: Sequence[Entry]) -> None:
        """Put repaired entries in the place of the same ones, where the window holds them."""
        for entry in entries:
            if entry.index >= self.cache_first:
                assert self.holds(entry.term, entry.index)
                self._entries[entry.index - self.cache_first] = entry
        sizes = [len(entry.payload) + ENTRY_OVERHEAD_BYTES for entry in self._entries]
        self._ends = list(accumulate(sizes, initial=self._cache_start_bytes))[1:]
        repaired = {entry.index for entry in entries}
        others = [entry for entry in self.system if entry.index not in repaired]
        found = [entry for entry in entries if entry.kind not in _PLAIN]
        self.system = sorted(others + found, key=lambda entry: entry.index)

    def first_conflict(self, entries: Sequence[Entry]) -> int:
        """Return the position of the first entry that is not in this log already."""
        if not entries or entries[0].index > self.last_index:
            return 0
        if self.holds(entries[-1].term, entries[-1].index):
            return len(entries)  # one equal entry means equal prefixes: log matching
        for position, entry in enumerate(entries):
            if not self.holds(entry.term, entry.index):
                return position
        return len(entries)

    def slice(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        """Return the window's entries from `first` through `last`, at most `bytes_max` of them.

        At least one entry is returned where there is one: a limit never stops progress.
        """
        assert first >= self.cache_first, "below the window"
        start = first - self.cache_first
        stop = min(last, self.last_index) - self.cache_first + 1
        if start >= stop:
            return []
        before = self._ends[start - 1] if start else self._cache_start_bytes
        if self._ends[stop - 1] - before > bytes_max:
            stop = max(start + 1, bisect_right(self._ends, before + bytes_max, start, stop))
        return self._entries[start:stop]

    def bytes_through(self, index: int) -> int:
        """Return the bytes from the base through `index`, rounded down below the window."""
        if index >= self.cache_first:
            return self._ends[min(index, self.last_index) - self.cache_first]
        if index >= self.cache_first - 1:
            return self._cache_start_bytes
        return self._marks[max(0, bisect_right(self._marks, (index, 1 << 62)) - 1)][1]

    def evict_through(self, index: int) -> None:
        """Let go of the entries through `index`; their terms stay."""
        count = index - self.cache_first + 1
        if count <= 0:
            return
        if count < self._evict_entries_min:
            end = self._ends[count - 1]
            if end - self._cache_start_bytes < 2 * KEPT_BYTES:
                return
            count = max(1, bisect_right(self._ends, end - KEPT_BYTES, 0, count))
            index = self.cache_first + count - 1
        self._cache_start_bytes = self._ends[count - 1]
        del self._entries[:count]
        del self._ends[:count]
        self.cache_first = LogIndex(index + 1)
        self._marks.append((index, self._cache_start_bytes))

    def compact_through(self, index: LogIndex) -> None:
        """Make `index` the base: what is at or below it is in a snapshot and gone from here."""
        term = self.term_at(index)
        assert term is not None and index >= self.base_index, "compaction outside the log"
        if index >= self.cache_first:
            count = index - self.cache_first + 1
            self._cache_start_bytes = self._ends[count - 1]
            del self._entries[:count]
            del self._ends[:count]
            self.cache_first = LogIndex(index + 1)
        self._rebase(index, term)

    def _rebase(self, index: LogIndex, term: Term) -> None:
        run = bisect_right(self._run_first, index) - 1
        if run >= 0:
            del self._run_first[:run]
            del self._run_term[:run]
            self._run_first[0] = index + 1
            if self.last_index <= index:
                self._run_first.clear()
                self._run_term.clear()
            elif len(self._run_first) > 1 and self._run_first[1] == index + 1:
                del self._run_first[0]
                del self._run_term[0]
        base_bytes = self.bytes_through(index)
        self._marks = [(index, 0)] + [
            (at, through - base_bytes) for at, through in self._marks if at > index
        ]
        self._ends = [end - base_bytes for end in self._ends]
        self._cache_start_bytes = max(0, self._cache_start_bytes - base_bytes)
        self.system = [entry for entry in self.system if entry.index > index]
        self.base_index = index
        self.base_term = term

    def restore(self, base_index: LogIndex, base_term: Term) -> None:
        """Start over behind a snapshot; a suffix that continues it stays."""
        if base_index <= self.base_index:
            return
        if self.term_at(base_index) == base_term:
            self.compact_through(base_index)
        else:
            self._restart(base_index, base_term)
