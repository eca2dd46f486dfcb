"""The view of the log against a naive twin that keeps everything in one list."""

from __future__ import annotations

import random

import pytest

from clustor.log.types import Entry, EntryKind, LogIndex, Term
from clustor.raft.memory_log import KEPT_BYTES, MemoryLog

OVERHEAD = 24


class Twin:
    """A log as a plain list, with the base before it."""

    def __init__(self) -> None:
        self.base = (0, 0)
        self.entries: list[Entry] = []

    @property
    def last_index(self) -> int:
        return self.base[0] + len(self.entries)

    def term_at(self, index: int) -> int | None:
        if index == self.base[0]:
            return self.base[1]
        at = index - self.base[0] - 1
        return self.entries[at].term if 0 <= at < len(self.entries) else None

    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.base[1]


def _grow(rng: random.Random, twin: Twin, log: MemoryLog) -> None:
    term = twin.last_term()
    entries: list[Entry] = []
    for _ in range(rng.randint(1, 6)):
        term += rng.choice((0, 0, 0, 1, 2))
        kind = rng.choice((EntryKind.DATA, EntryKind.DATA, EntryKind.MEMBERSHIP_CHANGE))
        index = LogIndex(twin.last_index + len(entries) + 1)
        entries.append(Entry(Term(max(term, 1)), index, b"x" * rng.randint(0, 30), kind))
    twin.entries += entries
    log.append(entries)


def _step(rng: random.Random, twin: Twin, log: MemoryLog) -> None:
    action = rng.choice(("grow", "grow", "payloads", "cut", "evict", "compact", "restore"))
    if action == "payloads":
        term = Term(max(1, twin.last_term()))
        twin.entries += log.append_payloads(term, [b"p"] * rng.randint(0, 3))
    elif action == "cut" and log.cache_first <= twin.last_index:
        first = LogIndex(rng.randint(log.cache_first, twin.last_index))
        del twin.entries[first - twin.base[0] - 1 :]
        log.truncate_from(first)
    elif action == "evict" and twin.entries:
        log.evict_through(rng.randint(log.cache_first - 1, twin.last_index))
    elif action == "compact":
        index = LogIndex(rng.randint(twin.base[0], twin.last_index))
        term_there = twin.term_at(index)
        assert term_there is not None
        del twin.entries[: index - twin.base[0]]
        twin.base = (index, term_there)
        log.compact_through(index)
    elif action == "restore" and rng.random() < 0.2:
        index = LogIndex(twin.last_index + rng.randint(1, 3))
        twin.base, twin.entries = (index, twin.last_term() + 1), []
        log.restore(index, Term(twin.base[1]))
    else:
        _grow(rng, twin, log)


@pytest.mark.parametrize("seed", range(60))
def test_it_behaves_as_the_naive_twin(seed: int) -> None:
    rng = random.Random(seed)
    twin, log = Twin(), MemoryLog(evict_entries_min=1)
    for _ in range(60):
        _step(rng, twin, log)
        assert (log.last_index, log.last_term) == (twin.last_index, twin.last_term())
        assert (log.base_index, log.base_term) == twin.base
        for index in range(max(0, twin.base[0] - 2), twin.last_index + 3):
            assert log.term_at(index) == twin.term_at(index), index
        cached = [entry for entry in twin.entries if entry.index >= log.cache_first]
        assert log.slice(log.cache_first, log.last_index, 1 << 40) == cached
        assert log.system == [e for e in twin.entries if e.kind is EntryKind.MEMBERSHIP_CHANGE]
        _check_bytes(log, cached)
        _check_runs(twin, log)


def _check_bytes(log: MemoryLog, cached: list[Entry]) -> None:
    sizes = [len(entry.payload) + OVERHEAD for entry in cached]
    before = log.bytes_through(log.cache_first - 1)
    assert log.bytes_total - before == sum(sizes)
    for entry, through in zip(cached, range(1, len(sizes) + 1), strict=True):
        assert log.bytes_through(entry.index) - before == sum(sizes[:through])


def _check_runs(twin: Twin, log: MemoryLog) -> None:
    for index in range(twin.base[0] + 1, twin.last_index + 1):
        start = index
        while start - 1 > twin.base[0] and twin.term_at(start - 1) == twin.term_at(index):
            start -= 1
        assert log.run_start(index) == start
        for term in {entry.term for entry in twin.entries}:
            fitting = [i for i in range(twin.base[0], index + 1) if (twin.term_at(i) or 0) <= term]
            expected = max(fitting, default=twin.base[0])
            assert log.last_at_or_below_term(term, index) == expected


def test_a_slice_is_cut_by_bytes_but_never_empty() -> None:
    log = MemoryLog()
    log.append_payloads(Term(1), [b"x" * 100] * 10)
    assert len(log.slice(1, 10, 3 * 124)) == 3
    assert len(log.slice(1, 10, 3 * 124 - 1)) == 2
    assert len(log.slice(1, 10, 1)) == 1
    assert log.slice(11, 20, 1000) == []


def test_the_first_conflict_is_the_first_entry_that_is_new_or_different() -> None:
    log = MemoryLog()
    log.append([Entry(Term(t), LogIndex(i), b"") for i, t in enumerate((1, 1, 2, 2), 1)])

    def conflict(first: int, *terms: int) -> int:
        return log.first_conflict(
            [Entry(Term(t), LogIndex(i), b"") for i, t in enumerate(terms, first)]
        )

    assert conflict(2, 1, 2, 2) == 3
    assert conflict(2, 1, 2, 2, 2) == 3
    assert conflict(3, 3) == 0
    assert conflict(2, 1, 3, 3) == 1
    assert conflict(5, 9) == 0


def test_a_gap_or_a_falling_term_is_our_own_bug() -> None:
    log = MemoryLog()
    log.append_payloads(Term(3), [b""])
    with pytest.raises(AssertionError):
        log.append([Entry(Term(3), LogIndex(3), b"")])
    with pytest.raises(AssertionError):
        log.append([Entry(Term(2), LogIndex(2), b"")])


def test_few_large_entries_do_not_stay_for_ever() -> None:
    log, size = MemoryLog(), 1 << 20
    for index in range(1, 101):
        log.append([Entry(Term(1), LogIndex(index), bytes(size))])
        log.evict_through(index)
        held = log.bytes_total - log.bytes_through(log.cache_first - 1)
        assert held <= 2 * KEPT_BYTES + 2 * size
        assert held >= min(index * size, KEPT_BYTES - size)  # for a replica that is a little behind
    assert log.cache_first > 1 and log.term_at(LogIndex(1)) == 1
    assert [entry.index for entry in log.slice(log.cache_first, 100, 1 << 40)][-1] == 100
