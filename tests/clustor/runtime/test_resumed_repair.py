"""A quarantine that an operator ends without a rebuild: the replica is read again, and believed if
it reads well. Its peers are gone, so nobody can rebuild it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from clustor.control import Quarantine, QuarantineCause, ReportQuarantine
from clustor.control.objects import canonical
from tests.clustor.replica.harness import PARTITION
from tests.clustor.runtime.test_fenced_groups import FakeControl
from tests.clustor.runtime.test_repairing import Process, World, segment_of, story


def held_by(process: Process) -> Quarantine:
    return Quarantine(
        partition_id=int(PARTITION),
        node_id=int(process.node_id),
        cause=QuarantineCause.INTEGRITY,
        detail="damage",
        since=1,
    )


@pytest.mark.parametrize("is_damaged", [False, True])
def test_it_is_read_again_and_believed_only_if_it_reads_well(
    is_damaged: bool, tmp_path: Path
) -> None:
    async def run() -> None:
        world = World(tmp_path, seed=5)
        node = world.cluster.leader()
        await world.until(lambda: len(world.count()) > 10, "writes are acknowledged")
        process = world.processes[node.id]
        control = FakeControl()
        cast("Any", process).control = control
        for other in [each for each in world.cluster.nodes.values() if each is not node]:
            world.cluster.crash(other)
        if is_damaged:
            node.disk.flip_bit(segment_of(node), 200, 1)
        node.up.log_damaged("a scrub found it")
        world.cluster.turn(node)
        await world.until(lambda: len(control.calls) == 1, "it is reported")
        held = held_by(process)
        control.cache.change({held.key(): canonical(held)}, 1)
        for _ in range(300):
            await world.tick()
        assert node.up.failed is not None, "nobody has ended the quarantine"
        control.cache.change({held.key(): None}, 2)
        if not is_damaged:
            await world.until(lambda: node.up.ready, "it is believed")
            assert process.quarantines.find(PARTITION) is None
            assert process.group.quarantine is None
            return
        await world.until(lambda: len(control.calls) >= 2, "it is reported again")
        assert all(isinstance(each, ReportQuarantine) for each in control.calls)
        assert node.up.failed is not None and process.group.quarantine is not None

    story(run)
