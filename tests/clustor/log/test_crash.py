"""Power is lost between any two steps, with every outcome of what was not synced."""

from __future__ import annotations

from random import Random

import pytest

from clustor.log.ledger import LedgerIdentity
from clustor.log.log import create_log
from clustor.log.recovery import recover
from clustor.log.segment import segment_file
from clustor.log.steps import Create, SyncDirectory
from clustor.log.types import LogIndex
from clustor.sim.disk import SimDisk
from tests.clustor.log.harness import (
    IDENTITY,
    MODE,
    SMALL,
    Distinct,
    Moment,
    Operation,
    World,
    append,
    check_after_crash,
    compact,
    crash_points,
    draw_operation,
    install,
    new_keys,
    now,
    overwrite,
    rotate_key,
    run,
    seal,
    start,
)
from tests.clustor.log.rot import TINY

SCRIPTS: dict[str, list[Operation]] = {
    "appends": [append(10), append(20, 0, 30), append(600)],
    "reservation": [append(5000), append(9000)],
    "rotation": [append(1500), append(1500), append(1500), append(1500)],
    "seal": [append(10), seal(), append(10)],
    "suffix replaced": [append(10, 10, 10), overwrite(2, 20), overwrite(1, 30, 30)],
    "suffix replaced across segments": [
        append(1500, 10),
        append(1500, 10),
        append(1500, 10),
        overwrite(4, 20),
        append(5),
    ],
    "key rotation": [append(10), rotate_key(), append(10), rotate_key(), append(10)],
    "compaction": [append(1500), append(1500), append(1500), compact(0), append(10), compact(0)],
    "snapshot installed": [append(10, 10), install(3), append(10)],
    "replaced, then compacted": [
        append(1500, 10),
        overwrite(1, 1500),
        append(1500),
        compact(1),
        overwrite(1, 7),
    ],
}


SMALL_SCRIPTS: dict[str, list[Operation]] = {
    "appends": [append(10), append(5, 5)],
    "reservation": [append(10), append(20), append(30), append(40)],
    "seal and rotation": [append(10), seal(), append(5)],
    "suffix replaced": [append(10, 10), overwrite(1, 20)],
    "key rotation": [append(5), rotate_key(), append(5)],
    "compaction": [append(9), seal(), append(9), compact(0)],
    "snapshot installed": [append(5), install(1)],
}


@pytest.mark.parametrize("script", SMALL_SCRIPTS.values(), ids=SMALL_SCRIPTS.keys())
def test_every_single_outcome_of_every_crash_of_a_small_script(script: list[Operation]) -> None:
    """Nothing is sampled here: `crash_states` raises where there are too many to see each."""
    world, distinct = World.new(TINY), Distinct()
    states = 0
    for operation in script:
        for moment in crash_points(world, operation):
            for crashed in distinct.crashed(moment, moment.disk.crash_states(20_000)):
                check_after_crash(crashed, TINY)
                states += 1
    assert states > 50


@pytest.mark.parametrize("reorder", [False, True], ids=["journalled names", "reordered names"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_after_a_crash_anywhere_the_log_holds_what_was_acknowledged(
    script: list[Operation], reorder: bool
) -> None:
    world, distinct = World.new(reorder=reorder), Distinct()
    rng = Random(0)
    states = 0
    for operation in script:
        for moment in crash_points(world, operation):
            disks = moment.disk.crashes(rng, max_exhaustive=60, samples=12)
            for crashed in distinct.crashed(moment, disks):
                after = check_after_crash(crashed)
                run(after, append(33, tag=99))
                run(after, overwrite(1, 44, tag=98))
                check_after_crash(now(after))
                states += 1
    assert states > 50


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_crash_while_recovering_loses_nothing_either(script: list[Operation]) -> None:
    world, first, second = World.new(), Distinct(), Distinct()
    rng = Random(1)
    for operation in script:
        for moment in crash_points(world, operation):
            disks = moment.disk.crashes(rng, max_exhaustive=6, samples=4)
            for crashed in first.crashed(moment, disks):
                _crash_the_recovery(crashed, second, rng)


def _crash_the_recovery(moment: Moment, distinct: Distinct, rng: Random) -> None:
    recovery = start(moment)
    for nth, between in enumerate(moment.disk.copy().crash_points(recovery.plan)):
        witness = moment.witness.copy()
        witness.watch(recovery.plan[:nth])
        halfway = Moment(between, moment.keys, witness, moment.allowed)
        disks = between.crashes(rng, max_exhaustive=6, samples=3)
        for crashed in distinct.crashed(halfway, disks):
            run(check_after_crash(crashed), append(5, tag=97))


def test_a_crash_while_creating_leaves_no_log_or_a_whole_one() -> None:
    keys = new_keys()
    _, plan = create_log(IDENTITY, keys, SMALL, MODE)
    rng = Random(2)
    outcomes = set()
    for disk in SimDisk().crash_points(plan):
        for crashed in disk.crashes(rng, max_exhaustive=500, samples=50):
            found = recover(crashed, keys, SMALL, MODE)
            outcomes.add(found is not None)
            if found is None:
                again, plan_again = create_log(
                    LedgerIdentity(IDENTITY.partition, IDENTITY.log_id), keys, SMALL, MODE
                )
                crashed.execute(plan_again)
                assert again.last_index == 0
            assert recover(crashed, keys, SMALL, MODE) is not None
    assert outcomes == {False, True}


def test_what_follows_a_truncation_stands_behind_it_even_if_a_segment_never_came_to_be() -> None:
    """The number of a lost segment was counted when the truncation was given its position."""
    world = World.new()
    run(world, append(10, 10))
    run(world, seal())
    world.disk.execute((Create(segment_file(2)), SyncDirectory("wal")))
    world = check_after_crash(now(world))
    plan = world.log.plan_truncate(LogIndex(2))
    world.disk.execute(plan)
    world.contents = (0, world.contents[1][:1])
    world = check_after_crash(now(world))
    run(world, append(7))
    check_after_crash(now(world))


def random_history(seed: int, operations: int, crashes_each: int) -> int:
    """Run a long history in which every operation may be the last before a crash."""
    rng = Random(seed)
    world = World.new(reorder=rng.random() < 0.5)
    states = 0
    for tag in range(operations):
        operation = draw_operation(rng, tag)
        moments = list(crash_points(world, operation))
        for _ in range(crashes_each):
            moment = rng.choice(moments)
            check_after_crash(moment.crashed(moment.disk.random_crash(rng)))
            states += 1
        if rng.random() < 0.3:
            moment = rng.choice(moments)
            world = check_after_crash(moment.crashed(moment.disk.random_crash(rng)))
    return states


@pytest.mark.parametrize("seed", range(20))
def test_long_histories_with_crashes(seed: int) -> None:
    assert random_history(seed, operations=25, crashes_each=4) == 100


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_a_hundred_thousand_crash_states(seed: int) -> None:
    assert random_history(seed, operations=50, crashes_each=20) == 1000
