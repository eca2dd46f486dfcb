"""Reading a log again while it is written: no false alarm at any step, and no damage overlooked."""

from __future__ import annotations

from random import Random

import pytest

from clustor.log.config import LogConfig
from clustor.log.errors import AuthenticationFailed, ChecksumMismatch, MissingFile
from clustor.log.extent_bounds import readable_segments
from clustor.log.ledger import LEDGER_FILE
from clustor.log.metadata import METADATA_FILE
from clustor.log.scrub import Scrub, SegmentSlice, read_slice, read_small_files
from clustor.log.segment import SEGMENT_HEADER_BYTES, segment_file
from clustor.log.types import SegmentSeq
from clustor.sim.disk import SimDisk
from tests.clustor.log.harness import (
    SMALL,
    Operation,
    World,
    append,
    compact,
    install,
    overwrite,
    run,
    seal,
)

LARGE = LogConfig(
    segment_bytes=1 << 20,
    reservation_blocks=64,
    zero_ahead_bytes=512,
    fs_block_bytes=512,
    ledger_zero_ahead_bytes=128,
    ledger_rewrite_bytes=1024,
)


def read_all(world: World, *, at_rest: bool) -> int:
    """Read what may be read now; return how many bytes that is."""
    total = 0
    for seq, until in readable_segments(world.log, at_rest=at_rest).items():
        wanted = SegmentSlice(seq, SEGMENT_HEADER_BYTES, 1 << 30, until)
        try:
            found = read_slice(world.disk, world.keys, wanted)
        except FileNotFoundError:
            assert not at_rest, "compacted away while it was read"
            continue
        assert found.problem is None and found.reached_end, (seq, until, found)
        total += found.end_offset - SEGMENT_HEADER_BYTES
    return total


def drawn(rng: Random) -> Operation:
    sizes = [rng.choice((10, 200, 3_000)) for _ in range(rng.randint(1, 4))]
    return rng.choice(
        (append(*sizes), append(*sizes), overwrite(3, *sizes), seal(), compact(4), install(2))
    )


@pytest.mark.parametrize("seed", range(30))
def test_no_step_of_any_plan_looks_like_damage(seed: int) -> None:
    rng = Random(seed)
    world = World.new(rng.choice((SMALL, LARGE)))
    for _ in range(25):
        operation = drawn(rng)
        plan, done, _ = operation(world)
        for step in plan:
            world.disk.execute((step,))
            read_all(world, at_rest=False)
        done()
        read_all(world, at_rest=True)
        assert read_small_files(world.disk, world.log.ledger_bytes) is None
        assert read_small_files(world.disk, None) is None


def test_a_log_that_is_always_written_is_read_all_the_same() -> None:
    """Of a busy segment the last 64 KiB or so wait; everything before them does not."""
    world = World.new(LARGE)
    for _ in range(40):
        run(world, append(8_000))
    append(8_000)(world)  # planned, and never at rest again
    whole = read_all(world, at_rest=False)
    assert whole > 40 * 8_000 - 2 * 65_536


@pytest.mark.parametrize("at_rest", [True, False])
def test_a_turned_bit_is_found_in_the_open_segment_too(at_rest: bool) -> None:
    world = World.new(LARGE)
    for _ in range(40):
        run(world, append(8_000))
    world.disk.flip_bit(segment_file(1), 100_000, 2)
    until = readable_segments(world.log, at_rest=at_rest)[SegmentSeq(1)]
    found = read_slice(
        world.disk, world.keys, SegmentSlice(SegmentSeq(1), SEGMENT_HEADER_BYTES, 1 << 30, until)
    )
    assert isinstance(found.problem, AuthenticationFailed)


def test_the_small_files_are_checked_too() -> None:
    world = World.new()
    for _ in range(5):
        run(world, append(60))
    assert read_small_files(world.disk, world.log.ledger_bytes) is None
    world.disk.flip_bit(LEDGER_FILE, 60, 1)
    assert isinstance(read_small_files(world.disk, None), ChecksumMismatch)
    world.disk.flip_bit(LEDGER_FILE, 60, 1)
    world.disk.flip_bit(LEDGER_FILE, world.log.ledger_bytes - 20, 1)  # in its last record
    assert isinstance(read_small_files(world.disk, world.log.ledger_bytes), ChecksumMismatch)
    assert read_small_files(world.disk, None) is None, "it might be a write under way"
    world.disk.flip_bit(LEDGER_FILE, world.log.ledger_bytes - 20, 1)
    world.disk.flip_bit(METADATA_FILE, 20, 1)
    assert isinstance(read_small_files(world.disk, None), ChecksumMismatch)
    assert isinstance(read_small_files(SimDisk(), None), MissingFile)


def test_all_of_it_is_read_when_somebody_asks_and_counts_as_coverage() -> None:
    world = World.new()
    for _ in range(30):
        run(world, append(60))
    run(world, seal())
    scrub = Scrub(started_ms=0)
    sizes = [(SegmentSeq(1), world.disk.size(segment_file(1)))]
    day = 86_400_000
    assert scrub.coverage_age_days(3 * day) == 3
    slices = scrub.take_all(sizes)
    assert [(each.segment_seq, each.from_offset) for each in slices] == [(1, SEGMENT_HEADER_BYTES)]
    found = read_slice(world.disk, world.keys, slices[0])
    scrub.on_read(slices[0], found, 3 * day)
    assert found.reached_end and scrub.coverage_age_days(3 * day) == 0
