"""How a `Log` rotates, seals, compacts and installs, and how short its ledger stays."""

from __future__ import annotations

import struct

import pytest

from clustor.log.config import LogConfig
from clustor.log.errors import LogMisuse
from clustor.log.frame import FRAME_BODY_BYTES_MAX
from clustor.log.ledger import (
    LEDGER_FILE,
    DurabilityRecord,
)
from clustor.log.segment import segment_file
from clustor.log.steps import DeleteFile, Rename, SyncDirectory, WriteFile
from clustor.log.types import (
    DurabilityMode,
    DurabilityModeEpoch,
    LogIndex,
    Term,
)
from tests.clustor.log.harness import (
    World,
    append,
    check_after_crash,
    compact,
    entries_from,
    install,
    now,
    read_back,
    rotate_key,
    run,
    seal,
    step_names,
)
from tests.clustor.log.test_log import SEGMENT_1, ledger_records, world_of

# Segments


def test_a_full_segment_is_closed_before_the_next_is_opened() -> None:
    world = world_of(append(1500), append(1500))
    planned = world.log.plan_append(entries_from(3, 1, 1500))
    names = step_names(planned.steps)
    sealed = names.index(f"Truncate {SEGMENT_1}")
    assert names[sealed + 1] == f"Sync {SEGMENT_1}"
    assert sealed < names.index(f"Create {segment_file(2)}")
    assert world.log.closed_segments() == (1,)


def test_a_new_key_opens_a_new_segment() -> None:
    world = world_of(append(10), append(10), rotate_key(), append(10))
    assert world.log.closed_segments() == (1,)
    segment = world.log.open_segment()
    assert segment is not None
    assert segment.header.dek_epoch == 2
    assert read_back(world.disk, world.keys, world.log) == world.contents


def test_a_run_longer_than_a_segment_gets_one_of_its_own() -> None:
    world = world_of(append(10), append(9000), append(10))
    assert world.log.closed_segments() == (1, 2)
    check_after_crash(now(world))


def test_a_batch_longer_than_a_run_is_several_runs_and_one_proof() -> None:
    big = LogConfig()
    world = World.new(big)
    sizes = [FRAME_BODY_BYTES_MAX - 16, 3_000_000, 3_000_000]
    planned = world.log.plan_append(entries_from(1, 1, *sizes))
    runs = [s for s in planned.steps if isinstance(s, WriteFile) and s.data[:4] == b"CRUN"]
    assert [struct.unpack_from("<I", run.data, 24)[0] for run in runs] == [2, 1]
    assert [b for b in ledger_records(planned.steps) if isinstance(b, DurabilityRecord)] == [
        planned.receipt
    ]
    world.disk.execute(planned.steps)
    _, held = read_back(world.disk, world.keys, world.log)
    assert [len(payload) for _, payload in held] == sizes


def test_sealing_twice_or_nothing_does_nothing() -> None:
    world = World.new()
    assert world.log.plan_seal() == ()
    run(world, append(10))
    run(world, seal())
    assert world.log.open_segment() is None
    assert world.log.plan_seal() == ()
    run(world, append(10))
    assert world.log.closed_segments() == (1,)


def test_a_seal_is_durable_before_the_ledger_says_so() -> None:
    world = world_of(append(10))
    names = step_names(world.log.plan_seal())
    assert names.index(f"Sync {SEGMENT_1}") < names.index(f"WriteFile {LEDGER_FILE}")
    assert names[-1] == f"Sync {LEDGER_FILE}"


# Compaction and installation

CLOSED = [append(10, 10, tag=1), seal(), append(10, tag=2), seal(), append(10, 10, tag=3)]


@pytest.mark.parametrize("floor", range(1, 7))
def test_compaction_keeps_everything_from_its_floor_on(floor: int) -> None:
    world = world_of(*CLOSED)
    _, held = world.contents
    plan = world.log.plan_compact(LogIndex(floor))
    base = int(world.log.entries.base_index)
    assert base < floor
    assert base == {1: 0, 2: 0, 3: 2, 4: 3, 5: 3, 6: 3}[floor]
    world.disk.execute(plan)
    assert read_back(world.disk, world.keys, world.log) == (base, held[base:])
    world.contents = (base, held[base:])
    check_after_crash(now(world))


def test_the_ledger_knows_before_the_first_file_goes() -> None:
    world = world_of(*CLOSED)
    plan = world.log.plan_compact(LogIndex(4))
    renamed = next(nth for nth, step in enumerate(plan) if isinstance(step, Rename))
    deletions = [
        nth
        for nth, step in enumerate(plan)
        if isinstance(step, DeleteFile) and not step.file.endswith(".tmp")
    ]
    assert plan[renamed + 1] == SyncDirectory("wal")
    assert len(deletions) == 4
    assert renamed + 1 < min(deletions)


def test_what_is_not_planned_to_be_durable_is_not_compacted() -> None:
    world = world_of(*CLOSED)
    with pytest.raises(LogMisuse):
        world.log.plan_compact(LogIndex(7))
    world.log.plan_truncate(LogIndex(4))
    with pytest.raises(LogMisuse):
        world.log.plan_compact(LogIndex(5))


def test_installing_starts_anew_behind_the_snapshot() -> None:
    world = world_of(append(10, 10), install(3))
    assert (world.log.last_index, world.log.last_term, world.log.durable_index) == (5, 2, 5)
    with pytest.raises(LogMisuse):
        world.log.plan_append(entries_from(5, 9, 1))
    with pytest.raises(LogMisuse):
        world.log.plan_install(LogIndex(4), Term(9))
    run(world, append(10))
    assert world.log.entries.term_of(5) == 2
    check_after_crash(now(world))


def test_the_epoch_of_a_transition_stands_in_every_later_record() -> None:
    world = world_of(append(10))
    modes = DurabilityMode.STRICT, DurabilityMode.GROUP_FSYNC
    world.disk.execute(
        world.log.plan_transition(Term(1), LogIndex(1), *modes, DurabilityModeEpoch(4))
    )
    for epoch in (0, 3, 4):
        with pytest.raises(LogMisuse):
            world.log.plan_transition(Term(1), LogIndex(1), *modes, DurabilityModeEpoch(epoch))
    run(world, append(10))
    run(world, compact(0))
    assert check_after_crash(now(world)).log.durability_mode_epoch == 4


def test_a_ledger_stays_short_over_a_long_history() -> None:
    config = LogConfig(segment_bytes=1 << 15, reservation_blocks=64, ledger_rewrite_bytes=1 << 14)
    world = World.new(config)
    longest = 0
    for nth in range(10_000):
        planned = world.log.plan_append(entries_from(nth + 1, 1, 10))
        world.disk.execute(planned.steps)
        world.log.stored(planned.receipt)
        if nth % 2_000 == 1_999:
            world.disk.execute(world.log.plan_compact(LogIndex(nth - 100)))
        longest = max(longest, world.disk.size(LEDGER_FILE))
    # One record per append of a segment that is full of the smallest appends, and the zeros.
    bound = config.ledger_rewrite_bytes + config.segment_bytes + 2 * config.ledger_zero_ahead_bytes
    assert longest <= bound, longest
    assert len(world.log.closed_segments()) < 20
