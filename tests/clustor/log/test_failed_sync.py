"""A process dies or a sync fails, and the next process sees what no disk holds.

What was written and not synced is visible until power is lost. After a failed sync the kernel
may even call such pages clean: a reader still sees them, and the next sync succeeds without
writing them. Whatever recovery attests, and what is appended behind it, must survive.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clustor.log.steps import Sync
from clustor.sim.disk import CrashChoice, SimDisk
from tests.clustor.log.harness import (
    Moment,
    Operation,
    World,
    append,
    check_after_crash,
    compact,
    crash_points,
    install,
    overwrite,
    run,
    seal,
)

SCRIPTS: dict[str, list[Operation]] = {
    "appends": [append(10), append(20, 0, 30), append(600)],
    "reservation": [append(5000), append(9000)],
    "rotation": [append(1500), append(1500), append(1500)],
    "seal": [append(10), seal(), append(10)],
    "suffix replaced": [append(10, 10, 10), overwrite(2, 20)],
    "compaction": [append(1500), append(1500), append(1500), compact(0)],
    "snapshot installed": [append(10, 10), install(3), append(10)],
}


def failed_syncs(world: World, operation: Operation, *, evict: bool) -> Iterator[Moment]:
    """Carry an operation out; yield, for each of its syncs, the disk on which that one failed."""
    plan, done, allowed = operation(world)
    for nth, step in enumerate(plan):
        if isinstance(step, Sync):
            disk: SimDisk = world.disk.copy()
            disk.fail_next_sync(step.file, evict=evict)
            with pytest.raises(OSError, match="Input/output error"):
                disk.run_step(step)
            witness = world.witness.copy()
            witness.watch(plan[: nth + 1])
            yield Moment(disk, world.keys, witness, allowed)
        world.disk.run_step(step)
    world.witness.watch(plan)
    done()


@pytest.mark.parametrize("evict", [False, True], ids=["cache keeps the bytes", "cache drops them"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_what_recovery_attests_after_a_failed_sync_survives_a_loss_of_power(
    script: list[Operation], evict: bool
) -> None:
    world = World.new()
    for operation in script:
        for moment in failed_syncs(world, operation, evict=evict):
            after = check_after_crash(moment)
            run(after, append(33, tag=99))
            disk = after.disk.crash(CrashChoice())
            check_after_crash(Moment(disk, after.keys, after.witness, [after.contents]))


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_what_follows_the_death_of_a_process_survives_a_loss_of_power(
    script: list[Operation],
) -> None:
    """No disk fails and no power is lost at first: the next process finds names not yet synced."""
    world = World.new()
    for operation in script:
        for moment in crash_points(world, operation):
            after = check_after_crash(moment.crashed(moment.disk.copy()))
            run(after, append(33, tag=99))
            disk = after.disk.crash(CrashChoice())
            check_after_crash(Moment(disk, after.keys, after.witness, [after.contents]))
