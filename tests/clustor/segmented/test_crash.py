"""Power is lost between any two steps of anything the room plans, log and partitions together.

After every crash: what was acknowledged is there byte for byte, nothing else is, no nonce sealed
two plaintexts, and the log was not cut into what a partition needs.
"""

from __future__ import annotations

from random import Random

import pytest

from clustor.log.steps import Plan
from clustor.segmented import PolicyRegistry, create_group
from clustor.segmented.recovery import open_store
from clustor.sim.disk import SimDisk
from tests.clustor.log.harness import new_keys
from tests.clustor.segmented.harness import (
    ALONE,
    GROUP,
    SMALL,
    STORE_ID,
    Moment,
    Operation,
    World,
    append,
    batch,
    check_after_crash,
    checkpoint,
    compact,
    crash_points,
    cut_log,
    define,
    draw_operation,
    finish,
    flush,
    now,
    remove,
    retain,
    rotate_key,
    run,
    seal_log,
    start,
)

LONG = b"x" * 300
SCRIPTS: dict[str, list[Operation]] = {
    "appends": [append(batch(0, b"a=1"), batch(1, b"b=1")), append(batch(0, b"a=2"))],
    "partial flush": [
        append(batch(0, b"a=1"), batch(1, LONG), batch(2, b"c=1")),
        flush(),
        append(batch(1, LONG), batch(2, b"c=2")),
        checkpoint(1),
        checkpoint(1),
        append(batch(0, b"a=2")),
        checkpoint(),
    ],
    "files roll": [
        append(batch(0, LONG), batch(0, LONG + b"2")),
        checkpoint(),
        append(batch(0, LONG + b"3"), batch(0, LONG + b"4")),
        checkpoint(),
    ],
    "truncation": [
        append(batch(0, LONG * 5)),
        append(batch(1, LONG * 5)),
        checkpoint(1),
        append(batch(0, LONG * 5)),
        seal_log(),
        cut_log(),
        checkpoint(),
        cut_log(),
        append(batch(2, b"c=1")),
    ],
    "retention": [
        append(batch(0, LONG, timestamp=100), batch(0, LONG, timestamp=200)),
        append(batch(0, LONG, timestamp=900), batch(1, b"q", timestamp=5000)),
        checkpoint(),
        retain(size_bytes=700),
        append(batch(0, b"a=1", timestamp=1000)),
        checkpoint(),
        retain(age_ms=10),
    ],
    "compaction": [
        append(batch(0, b"a=1" + LONG), batch(0, b"b=1" + LONG), batch(0, b"a=2" + LONG)),
        append(batch(0, b"b="), batch(0, b"a=3" + LONG), batch(0, b"c=" + LONG)),
        checkpoint(),
        compact(0, tombstone_ms=0),
        append(batch(0, b"d=1")),
        checkpoint(),
    ],
    "partitions come and go": [
        append(batch(0, b"a=1"), batch(1, LONG)),
        define(7),
        append(batch(7, b"new=1"), batch(1, LONG)),
        checkpoint(),
        append(batch(7, b"new=2"), batch(2, b"c=1")),
        remove(7),
        remove(2),
        append(batch(0, b"a=2")),
    ],
    "key rotation": [
        append(batch(0, b"a=1")),
        checkpoint(),
        rotate_key(),
        append(batch(0, b"a=2")),
        checkpoint(),
        compact(0),
    ],
}


@pytest.mark.parametrize("reorder", [False, True], ids=["journalled names", "reordered names"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_after_a_crash_anywhere_partitions_hold_what_was_acknowledged(
    script: list[Operation], reorder: bool
) -> None:
    world = World.new(reorder=reorder)
    rng = Random(0)
    states = 0
    for operation in script:
        for moment in crash_points(world, operation):
            for disk in moment.disk.crashes(rng, max_exhaustive=12, samples=6):
                after = check_after_crash(moment.crashed(disk))
                run(after, append(batch(0, b"after=1"), batch(1, b"after=2")))
                run(after, checkpoint())
                check_after_crash(now(after))
                states += 1
    assert states > 20


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_crash_while_recovering_loses_nothing_either(script: list[Operation]) -> None:
    world = World.new()
    rng = Random(1)
    for operation in script:
        for moment in crash_points(world, operation):
            disk = moment.disk.random_crash(rng)
            _crash_the_recovery(moment.crashed(disk), rng)


def _crash_the_recovery(moment: Moment, rng: Random) -> None:
    log, recovery = start(moment)
    for nth, between in enumerate(moment.disk.copy().crash_points(recovery.plan)):
        witness = moment.witness.copy()
        witness.watch(recovery.plan[:nth])
        crashed = between.random_crash(rng)
        again = check_after_crash(
            Moment(crashed, moment.keys, witness, moment.allowed, moment.clock)
        )
        run(again, append(batch(0, b"again=1")))
    finish(moment, log, recovery)


def test_a_crash_while_creating_leaves_no_store_or_a_whole_one() -> None:
    keys = new_keys()

    def plan() -> Plan:
        return create_group(GROUP, STORE_ID, keys, SMALL, members=ALONE, registry=PolicyRegistry())[
            1
        ]

    rng = Random(2)
    outcomes = set()
    for disk in SimDisk().crash_points(plan()):
        for crashed in disk.crashes(rng, max_exhaustive=300, samples=30):
            found = open_store(crashed, keys, SMALL)
            outcomes.add(found is not None)
            if found is None:
                crashed.execute(plan())
            assert open_store(crashed, keys, SMALL) is not None
    assert outcomes == {False, True}


def random_history(seed: int, operations: int, crashes_each: int) -> int:
    """Run a long history in which every operation may be the last before a crash."""
    rng = Random(seed)
    world = World.new(reorder=rng.random() < 0.5)
    states = 0
    for tag in range(operations):
        moments = list(crash_points(world, draw_operation(rng, world, tag)))
        moments = moments or [now(world)]
        for _ in range(crashes_each):
            moment = rng.choice(moments)
            check_after_crash(moment.crashed(moment.disk.random_crash(rng)))
            states += 1
        if rng.random() < 0.25:
            moment = rng.choice(moments)
            world = check_after_crash(moment.crashed(moment.disk.random_crash(rng)))
    return states


@pytest.mark.parametrize("seed", range(12))
def test_long_histories_with_crashes(seed: int) -> None:
    assert random_history(seed, operations=40, crashes_each=5) == 200


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_fifty_thousand_crash_states(seed: int) -> None:
    assert random_history(seed, operations=50, crashes_each=10) == 500
