"""The planner beside a naive twin that walks index by index; any logs, limits and filters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantum.archive.types import Bounds, LogPiece, PrgId
from quantum.lake.errors import LogGone
from quantum.lake.filters import NO_FILTERS, Filters
from quantum.lake.offsets import Offsets
from quantum.lake.planner import (
    BatchLimits,
    Cutting,
    HighWater,
    Offer,
    OnGap,
    Task,
    admit,
    cut,
    plan,
)
from quantum.lake.refusals import BadOption, OffsetAhead

A, B = PrgId("dev", 0), PrgId("dev", 1)
SMALL = Cutting(task_bytes=100, warmup_bytes_max=150)


def offer(prg: PrgId, *spans: tuple[int, int], anchors: tuple[int, ...] = ()) -> Offer:
    """Make a log of pieces with ten bytes for each entry."""
    pieces = tuple(LogPiece(first, last, 10 * (last - first + 1)) for first, last in spans)
    if not pieces:
        return Offer(Bounds(prg, 1, 0), anchors)
    return Offer(Bounds(prg, pieces[0].first, pieces[-1].last, pieces), anchors)


# Any log.


@st.composite
def offers(draw: st.DrawFn) -> dict[PrgId, Offer]:
    found: dict[PrgId, Offer] = {}
    for number in range(draw(st.integers(1, 4))):
        prg = PrgId("dev", number)
        at = draw(st.integers(1, 8))
        pieces: list[LogPiece] = []
        for _ in range(draw(st.integers(0, 6))):
            length = draw(st.integers(1, 9))
            times = draw(st.sampled_from([(None, None), (at, at + length)]))
            pieces.append(LogPiece(at, at + length - 1, draw(st.integers(1, 400)), *times))
            at += length + draw(st.sampled_from([0, 0, 0, 2]))
        last = pieces[-1].last if pieces else 0
        first = pieces[0].first if pieces else 1
        anchors = draw(st.sets(st.integers(0, max(1, last)), max_size=3))
        found[prg] = Offer(Bounds(prg, first, last, tuple(pieces)), tuple(sorted(anchors)))
    return found


@st.composite
def starts(draw: st.DrawFn, high_water: dict[PrgId, Offer]) -> Offsets:
    known = draw(st.sets(st.sampled_from(sorted(high_water))))
    return Offsets({prg: draw(st.integers(0, high_water[prg].bounds.last)) for prg in known})


limits = st.builds(
    BatchLimits,
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1, 500),
    st.none() | st.integers(1, 5),
)
cuttings = st.builds(Cutting, st.integers(1, 300), st.integers(0, 400), st.booleans())


def naive_readable(high_water: HighWater, prg: PrgId, index: int) -> bool:
    bounds = high_water[prg].bounds
    return any(piece.first <= index <= piece.last for piece in bounds.pieces)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_every_index_is_in_one_task_and_a_gap_is_a_gap(data: st.DataObject) -> None:
    high_water = data.draw(offers())
    start = data.draw(starts(high_water))
    cutting = data.draw(cuttings)
    end, tasks = plan(start, high_water, data.draw(limits), NO_FILTERS, cutting, OnGap.ROW)
    seen: dict[tuple[PrgId, int], Task] = {}
    for task in tasks:
        assert task.first <= task.last
        for index in range(task.first, task.last + 1):
            assert (task.prg, index) not in seen, "an index in two tasks"
            seen[task.prg, index] = task
    for prg in high_water:
        wanted = set(range(start[prg] + 1, end[prg] + 1))
        assert {index for each, index in seen if each == prg} == wanted
        for index in wanted:
            assert seen[prg, index].is_gap is not naive_readable(high_water, prg, index)
    assert list(tasks) == sorted(tasks, key=lambda task: (task.prg, task.first))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_batch_moves_on_within_its_limits(data: st.DataObject) -> None:
    high_water, wanted = data.draw(offers()), data.draw(limits)
    start = data.draw(starts(high_water))
    end = admit(start, high_water, wanted)
    moved = {prg: end[prg] - start[prg] for prg in high_water}
    assert all(0 <= moved[prg] <= high_water[prg].bounds.last - start[prg] for prg in high_water)
    waiting = [prg for prg in high_water if high_water[prg].bounds.last > start[prg]]
    assert bool(waiting) is any(moved.values()), "no progress, or some out of nothing"
    read = [
        (prg, index)
        for prg in high_water
        for index in range(start[prg] + 1, end[prg] + 1)
        if naive_readable(high_water, prg, index)
    ]
    files = {
        (prg, piece) for prg, index in read for piece in _pieces_at(high_water[prg].bounds, index)
    }
    size = sum(piece.bytes for _, piece in files)
    alone = len(read) <= 1  # one entry goes through whatever the limits say
    assert alone or wanted.records is None or len(read) <= wanted.records
    assert alone or wanted.files is None or len(files) <= wanted.files
    if wanted.bytes is not None and not alone:
        per_entry = sum(
            -(-piece.bytes // (piece.last - piece.first + 1))
            for prg, index in read
            for piece in _pieces_at(high_water[prg].bounds, index)
        )
        rounding = len(read) + len(high_water)
        assert min(size, per_entry) <= wanted.bytes + rounding


def _pieces_at(bounds: Bounds, index: int) -> list[LogPiece]:
    return [piece for piece in bounds.pieces if piece.first <= index <= piece.last]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_batch_after_batch_reads_all_and_ends(data: st.DataObject) -> None:
    high_water, wanted = data.draw(offers()), data.draw(limits)
    at = Offsets()
    for _ in range(sum(offer.bounds.last for offer in high_water.values()) + 1):
        following = admit(at, high_water, wanted)
        if following == at:
            break
        at = following
    assert all(at[prg] == high_water[prg].bounds.last for prg in high_water)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_an_exact_task_begins_where_the_log_leads_from_its_anchor(data: st.DataObject) -> None:
    high_water = data.draw(offers())
    cutting = data.draw(cuttings)
    _, tasks = plan(Offsets(), high_water, BatchLimits(), NO_FILTERS, cutting, OnGap.ROW)
    for task in tasks:
        if task.anchor is None:
            between = [each for each in high_water[task.prg].anchors if task.first <= each]
            assert task.is_gap or not cutting.exact or not between or task.last <= between[0]
            continue
        assert task.anchor in high_water[task.prg].anchors
        assert task.anchor < task.first
        way = range(task.anchor + 1, task.first)
        assert all(naive_readable(high_water, task.prg, index) for index in way)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_filter_leaves_out_nothing_that_it_wants(data: st.DataObject) -> None:
    high_water = data.draw(offers())
    first, last = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 60))
    since = data.draw(st.integers(0, 30))
    wanted = NO_FILTERS.with_indexes(first, last).with_times(first_ms=since)
    if data.draw(st.booleans()):
        wanted = wanted.with_prgs(frozenset({0, 2}))
    _, tasks = plan(Offsets(), high_water, BatchLimits(), wanted, SMALL, OnGap.ROW)
    seen = {
        (task.prg, index)
        for task in tasks
        if not task.is_gap
        for index in range(task.first, task.last + 1)
    }
    for prg, offered in high_water.items():
        for piece in offered.bounds.pieces:
            late = piece.last_time_ms is None or piece.last_time_ms >= since
            for index in range(piece.first, piece.last + 1):
                is_wanted = first <= index <= last and wanted.wants_partition(prg)
                assert ((prg, index) in seen) is (is_wanted and late)


# Stories.


def test_limits_are_shared_out_by_how_far_partitions_are_behind() -> None:
    high_water = {A: offer(A, (1, 90)), B: offer(B, (1, 10))}
    assert admit(Offsets(), high_water, BatchLimits(records=10)) == Offsets({A: 9, B: 1})
    assert admit(Offsets(), high_water, BatchLimits(bytes=100)) == Offsets({A: 9, B: 1})
    assert admit(Offsets({A: 9, B: 1}), high_water, BatchLimits(records=1)) == Offsets(
        {A: 10, B: 1}
    )


def test_a_limit_below_one_entry_still_moves() -> None:
    high_water = {A: offer(A, (1, 3)), B: offer(B, (1, 9))}
    assert admit(Offsets(), high_water, BatchLimits(bytes=1)) == Offsets({A: 0, B: 1})


def test_files_are_pieces() -> None:
    high_water = {A: offer(A, (1, 5), (6, 9), (10, 11))}
    assert admit(Offsets(), high_water, BatchLimits(files=2)) == Offsets({A: 9})
    assert admit(Offsets({A: 7}), high_water, BatchLimits(files=1)) == Offsets({A: 9})


def test_a_partition_that_appears_later_is_read_from_its_first_entry() -> None:
    at, _ = plan(Offsets(), {A: offer(A, (1, 4))}, BatchLimits())
    end, tasks = plan(at, {A: offer(A, (1, 4)), B: offer(B, (1, 2))}, BatchLimits())
    assert [(task.prg, task.first, task.last) for task in tasks] == [(B, 1, 2)]
    assert end == Offsets({A: 4, B: 2})


def test_a_compacted_start_fails_and_says_where() -> None:
    with pytest.raises(LogGone) as caught:
        plan(Offsets({A: 2}), {A: offer(A, (11, 20))}, BatchLimits())
    error = caught.value
    assert (error.prg, error.first, error.last, error.readable_from) == (A, 3, 10, 11)
    assert "dev/0" in str(error)
    assert "index=3" in str(error)


def test_a_compacted_start_becomes_a_gap_by_option() -> None:
    high_water = {A: offer(A, (11, 14), anchors=(12,))}
    end, tasks = plan(Offsets(), high_water, BatchLimits(records=3), on_gap=OnGap.ROW)
    assert end == Offsets({A: 13})
    assert tasks == (
        Task(A, 1, 10, is_gap=True),
        Task(A, 11, 12, anchor=None),
        Task(A, 13, 13, anchor=12),
    )


def test_a_hole_in_an_archive_is_a_gap_too() -> None:
    high_water = {A: offer(A, (1, 3), (7, 8), anchors=(0,))}
    _, tasks = plan(Offsets(), high_water, BatchLimits(), on_gap=OnGap.ROW)
    assert tasks == (
        Task(A, 1, 3, anchor=0),
        Task(A, 4, 6, is_gap=True),
        Task(A, 7, 8, anchor=None),
    )


def test_a_filter_that_wants_nothing_of_a_gap_does_not_fail() -> None:
    high_water = {A: offer(A, (11, 20))}
    _, tasks = plan(Offsets(), high_water, BatchLimits(), NO_FILTERS.with_indexes(first=12))
    assert [(task.first, task.last) for task in tasks] == [(12, 20)]


def test_a_log_that_is_shorter_than_what_was_read_is_refused() -> None:
    with pytest.raises(OffsetAhead) as caught:
        admit(Offsets({A: 9}), {A: offer(A, (1, 4))}, BatchLimits())
    assert (caught.value.prg, caught.value.index) == (A, 4)


@pytest.mark.parametrize("on_gap", OnGap)
def test_what_is_not_there_yet_is_no_gap(on_gap: OnGap) -> None:
    high_water = {A: offer(A, (1, 4))}
    with pytest.raises(OffsetAhead):
        cut(Offsets(), Offsets({A: 5}), high_water, NO_FILTERS, SMALL, on_gap)
    with pytest.raises(OffsetAhead):
        cut(Offsets(), Offsets({A: 4, B: 1}), high_water, NO_FILTERS, SMALL, on_gap)


def test_cuts_stay_near_anchors() -> None:
    near = {A: offer(A, *((1 + 10 * nth, 10 + 10 * nth) for nth in range(8)), anchors=(0, 40))}
    tasks = cut(Offsets(), Offsets({A: 80}), near, NO_FILTERS, SMALL)
    assert [(task.first, task.last, task.anchor) for task in tasks] == [
        (1, 10, 0),
        (11, 40, 0),  # a third cut would replay more than it reads
        (41, 50, 40),
        (51, 80, 40),
    ]
    loose = Cutting(SMALL.task_bytes, exact=False)
    assert len(cut(Offsets(), Offsets({A: 80}), near, NO_FILTERS, loose)) == 8


def test_a_partition_that_vanished_keeps_its_offset() -> None:
    end = admit(Offsets({B: 5}), {A: offer(A, (1, 1))}, BatchLimits())
    assert end == Offsets({A: 1, B: 5})


def test_a_limit_is_a_number_from_one_on() -> None:
    with pytest.raises(BadOption):
        BatchLimits(records=0)


def test_unwanted_tenants_are_passed_over() -> None:
    other = PrgId("other", 0)
    high_water = {A: offer(A, (1, 4)), other: offer(other, (1, 4))}
    end, tasks = plan(
        Offsets(), high_water, BatchLimits(records=2), Filters(tenants=frozenset({"dev"}))
    )
    assert {task.prg for task in tasks} == {A}
    assert end == Offsets({A: 2, other: 4})
