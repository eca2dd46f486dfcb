"""Ways to notice that a log breaks a promise: each raises AssertionError or LogError."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from clustor.log.ledger import (
    LEDGER_FILE,
)
from clustor.log.reader import LogReader
from clustor.log.types import LogIndex, LogState
from clustor.sim.disk import CrashChoice
from tests.clustor.log.harness import (
    SMALL,
    Distinct,
    Moment,
    Operation,
    World,
    append,
    check_after_crash,
    compact,
    crash_points,
    install,
    now,
    overwrite,
    read_back,
    rotate_key,
    run,
    seal,
)
from tests.clustor.log.rot import (
    HISTORIES,
    Rest,
    compact_everything,
    drop,
    files_of,
    flipped,
    outcome_of,
)
from tests.clustor.log.test_crash import random_history

SCRIPTS: dict[str, list[Operation]] = {
    "appends": [append(10), append(20, 0, 30)],
    "rotation": [append(1500), append(1500), append(1500)],
    "seal": [append(10), seal(), append(10)],
    "suffix replaced": [append(10, 10, 10), overwrite(2, 20), overwrite(1, 30, 30)],
    "key rotation": [append(10), rotate_key(), append(10)],
    "compaction": [append(1500), append(1500), append(1500), compact(0), append(10)],
    "snapshot installed": [append(10, 10), install(3), append(10)],
}


def crash_everywhere(rng: Random) -> None:
    """Lose power between any two steps of each script, and go on from what is found."""
    for reorder in (False, True):
        for script in SCRIPTS.values():
            world, distinct = World.new(reorder=reorder), Distinct()
            for operation in script:
                for moment in crash_points(world, operation):
                    disks = moment.disk.crashes(rng, max_exhaustive=24, samples=6)
                    for crashed in distinct.crashed(moment, disks):
                        after = check_after_crash(crashed)
                        run(after, append(33, tag=99))
                        check_after_crash(now(after))


def long_histories(rng: Random) -> None:
    for _ in range(4):
        random_history(rng.randrange(10**6), operations=20, crashes_each=4)


def kill_then_lose_power(rng: Random) -> None:
    """A process dies, the next one recovers and acknowledges; only then is power lost.

    What the dead process wrote was never synced, so recovery must sync what it relies on.
    """
    for config in (SMALL, replace(SMALL, reservation_blocks=1)):
        for script in [*SCRIPTS.values(), [append(10, 10, 10), drop(2)]]:
            world = World.new(config)
            for operation in script:
                for moment in crash_points(world, operation):
                    after = check_after_crash(moment.crashed(moment.disk.copy()), config)
                    check_after_crash(_powerless(after), config)


def _powerless(world: World) -> Moment:
    """The worst that a loss of power leaves of a world at rest."""
    disk = world.disk.crash(CrashChoice())
    return Moment(disk, world.keys, world.witness, [world.contents])


def acknowledged_is_proven(rng: Random) -> None:
    """The ledger alone, as the worst crash leaves it, proves everything acknowledged."""
    for script in SCRIPTS.values():
        world = World.new()
        for operation in script:
            run(world, operation)
            worst = world.disk.crash(CrashChoice())
            proven = LogReader.open(worst, world.keys).image.facts.proven_index
            assert proven >= world.log.durable_index, (proven, world.log.durable_index)


def rot_in_segments(rng: Random) -> None:
    for history in ("closed and open", "suffix replaced"):
        rest = Rest.after(HISTORIES[history])
        for file in files_of(rest.world.disk):
            size = rest.world.disk.size(file)
            for position in range(0, size if "segment" in file else 0, 3):
                outcome_of(rest, flipped(rest.world.disk, file, position, rng.randrange(8)))


def rot_in_the_ledger(rng: Random) -> None:
    """A record that was durable is never cut off as torn: with it would go the mode's epoch."""
    rest = Rest.after(HISTORIES["mode changed"])
    disk, epoch = rest.world.disk, rest.world.log.durability_mode_epoch
    for position in range(0, disk.size(LEDGER_FILE), 3):
        outcome = outcome_of(rest, flipped(disk, LEDGER_FILE, position, rng.randrange(8)))
        if outcome.state is LogState.HEALTHY:
            assert outcome.durability_mode_epoch == epoch


def numbers_are_not_used_again(rng: Random) -> None:
    """Everything is compacted away, the process restarts: the next segment has a new number."""
    for script in ([append(10), seal(), compact_everything()], [append(10), install(1)]):
        world = World.new()
        for operation in script:
            run(world, operation)
        for _ in range(2):
            world = check_after_crash(now(world))
            run(world, append(20, tag=rng.randrange(10**6)))
            run(world, seal())
            run(world, compact_everything())


def compaction_respects_its_floor(rng: Random) -> None:
    for floor in range(1, 7):
        world = World.new()
        for operation in (append(10, 10), seal(), append(10), seal(), append(10, 10)):
            run(world, operation)
        world.disk.execute(world.log.plan_compact(LogIndex(floor)))
        base, held = read_back(world.disk, world.keys, world.log)
        assert base < floor, (base, floor)
        assert held == world.contents[1][base:]


def torn_ledgers_without_zeros_ahead(rng: Random) -> None:
    """Nothing but the cut removes what a torn write left behind."""
    bare = replace(SMALL, ledger_zero_ahead_bytes=0, zero_ahead_bytes=0)
    world, distinct = World.new(bare), Distinct()
    for _ in range(4):
        for moment in crash_points(world, append(10, 20)):
            disks = moment.disk.crashes(rng, max_exhaustive=200, samples=20)
            for crashed in distinct.crashed(moment, disks):
                after = check_after_crash(crashed, bare)
                run(after, append(33, tag=99))
                check_after_crash(now(after), bare)


DETECTORS: list[Callable[[Random], None]] = [
    acknowledged_is_proven,
    numbers_are_not_used_again,
    compaction_respects_its_floor,
    kill_then_lose_power,
    torn_ledgers_without_zeros_ahead,
    rot_in_segments,
    rot_in_the_ledger,
    crash_everywhere,
    long_histories,
]
