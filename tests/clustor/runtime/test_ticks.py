"""When a node ticks its groups: with the heartbeat, and when an election is due."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from clustor.runtime.disk.policy import DiskRoom
from clustor.runtime.telemetry.loop_watch import LoopWatch
from clustor.runtime.ticks import TICK_SECONDS, Ticks

PATIENCE_SECONDS = 60.0


@dataclass
class FollowingStub:
    """A replica that follows, whose election is due some time after the last heartbeat."""

    wait_ms: int
    elections: list[int] = field(default_factory=list)
    """How much later than it was due each election began."""
    leads: bool = False
    is_behind: bool = False

    def __post_init__(self) -> None:
        self.group = SimpleNamespace(election=SimpleNamespace(deadline_ms=1 << 62))

    def tick(self, now_ms: int, *, missed_ms: int, device_age_ms: int) -> None:
        assert missed_ms >= 0 and device_age_ms == 0
        election = self.group.election
        if now_ms >= election.deadline_ms:
            self.elections.append(now_ms - election.deadline_ms)
            election.deadline_ms = now_ms + self.wait_ms

    def lateness(self, measured_ms: int) -> None:
        assert measured_ms >= 0


class TickedStub:
    """As much of a node as ticks see."""

    def __init__(self, replica: FollowingStub) -> None:
        self._loop = asyncio.get_running_loop()
        group = SimpleNamespace(
            paused=False, replica=replica, admission=SimpleNamespace(tick=lambda _now_ms: None)
        )
        self.groups = {1: group}
        self.services: list[Any] = []
        self.duties = self.watch = None
        self.transport = SimpleNamespace(bytes_received=0)
        self.disk = SimpleNamespace(age_ns=lambda: 0)
        self.disk_room = cast("DiskRoom", SimpleNamespace(is_due=lambda _now_ms: False))
        self.loop_watch = LoopWatch()
        self.beats = 0

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def touch(self, _group: object) -> None:
        raise AssertionError("nothing was put off")

    def touch_news(self, _group: object) -> None:
        self.beats += 1

    def turn_soon(self) -> None: ...


async def until_elections(replica: FollowingStub, count: int) -> TickedStub:
    node = TickedStub(replica)
    ticks = Ticks(cast("Any", node), asyncio.get_running_loop())
    replica.group.election.deadline_ms = node.now_ms() + replica.wait_ms
    ticks.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(replica.elections) < count:
            await asyncio.sleep(0)
    ticks.stop()
    return node


async def test_an_election_that_is_due_between_two_ticks_does_not_wait_for_the_next() -> None:
    """Nodes whose draws differ by less than a tick must not all ask for votes at once.

    The least of many: a machine that is busy may be late, but is not always.
    """
    replica = FollowingStub(wait_ms=20)
    await until_elections(replica, 12)
    assert min(replica.elections) <= 5, replica.elections
    assert TICK_SECONDS * 1000 - replica.wait_ms > 5, "else a tick alone would do"


async def test_a_node_whose_elections_are_far_off_ticks_no_more_than_heartbeats_need() -> None:
    replica = FollowingStub(wait_ms=400)
    node = await until_elections(replica, 1)
    assert node.beats <= 400 / (TICK_SECONDS * 1000) + 2
