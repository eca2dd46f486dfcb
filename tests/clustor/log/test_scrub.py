"""The background scrub: everything once in seven days, a little every six hours."""

from __future__ import annotations

from clustor.log.errors import AuthenticationFailed
from clustor.log.scrub import COVERAGE_MS, ROUND_MS, Scrub, SegmentSlice, read_slice
from clustor.log.segment import SEGMENT_HEADER_BYTES, segment_file
from clustor.log.types import SegmentSeq
from tests.clustor.log.harness import World, append, run, seal

ONE = SegmentSeq(1)


def filled() -> World:
    world = World.new()
    for _ in range(30):
        run(world, append(60))
    run(world, seal())
    run(world, append(60))
    return world


def sizes(world: World) -> list[tuple[SegmentSeq, int]]:
    return [(SegmentSeq(seq), world.disk.size(segment_file(seq))) for seq in (1, 2)]


def test_every_byte_is_read_within_seven_days_and_a_hundredth_in_each_round() -> None:
    world = filled()
    scrub = Scrub(started_ms=0)
    now = 0
    total = dict(sizes(world))
    for _ in range(120):
        now += ROUND_MS
        for wanted in scrub.take_round(now, sizes(world)):
            assert wanted.bytes_min * 100 >= total[wanted.segment_seq]
            result = read_slice(world.disk, world.keys, wanted)
            assert result.problem is None
            assert result.reached_end or result.end_offset - wanted.from_offset >= wanted.bytes_min
            scrub.on_read(wanted, result, now)
        assert scrub.coverage_age_days(now) <= COVERAGE_MS / 86_400_000


def test_nothing_is_read_before_its_time_and_a_deleted_segment_is_forgotten() -> None:
    world = filled()
    scrub = Scrub(started_ms=0)
    assert scrub.take_round(ROUND_MS - 1, sizes(world)) == []
    assert len(scrub.take_round(ROUND_MS, sizes(world))) == 2
    assert scrub.next_deadline_ms() == 2 * ROUND_MS
    assert [s.segment_seq for s in scrub.take_round(2 * ROUND_MS, sizes(world)[1:])] == [2]


def test_damage_is_found_in_the_slice_that_holds_it_and_coverage_grows_old() -> None:
    world = filled()
    world.disk.flip_bit(segment_file(1), SEGMENT_HEADER_BYTES + 60, 3)
    scrub = Scrub(started_ms=0)
    now = ROUND_MS
    found = []
    for _ in range(60):
        for wanted in scrub.take_round(now, sizes(world)):
            result = read_slice(world.disk, world.keys, wanted)
            scrub.on_read(wanted, result, now)
            if result.problem is not None:
                found.append((wanted.segment_seq, type(result.problem)))
        now += ROUND_MS
    assert found[0] == (1, AuthenticationFailed)
    assert scrub.coverage_age_days(now) > 14


def test_a_segment_whose_header_is_damaged_is_a_problem_and_not_a_crash() -> None:
    world = filled()
    world.disk.flip_bit(segment_file(1), 20, 0)
    result = read_slice(world.disk, world.keys, SegmentSlice(ONE, SEGMENT_HEADER_BYTES, 1))
    assert result.problem is not None and not result.reached_end
