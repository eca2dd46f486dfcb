"""When a node ticks its groups: with the heartbeat, and when an election is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from clustor.runtime.disk.policy import DiskRoom
from clustor.runtime.telemetry.loop_watch import LoopWatch
from clustor.runtime.ticks import TICK_SECONDS, Ticks


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


class LoopStub:
    """A loop whose time passes only from one timer to the next."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._made = 0

    def call_later(self, seconds: float, call: Callable[[], None]) -> object:
        self._made += 1
        self._calls.append((self.now_ms + round(seconds * 1000), self._made, call))
        return SimpleNamespace(cancel=lambda: None)

    def call_soon(self, call: Callable[..., None], *arguments: object) -> None:
        self.call_later(0, lambda: call(*arguments))

    def step(self) -> None:
        first = min(self._calls, key=lambda each: each[:2])
        self._calls.remove(first)
        self.now_ms = first[0]
        first[2]()


class TickedStub:
    """As much of a node as ticks see."""

    def __init__(self, replica: FollowingStub, loop: LoopStub) -> None:
        self._loop = loop
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
        return self._loop.now_ms

    def touch(self, _group: object) -> None:
        raise AssertionError("nothing was put off")

    def touch_news(self, _group: object) -> None:
        self.beats += 1

    def turn_soon(self) -> None: ...


def until_elections(replica: FollowingStub, count: int) -> TickedStub:
    loop = LoopStub()
    node = TickedStub(replica, loop)
    replica.group.election.deadline_ms = replica.wait_ms
    Ticks(cast("Any", node), cast("Any", loop)).start()
    while len(replica.elections) < count:
        loop.step()
    return node


def test_an_election_that_is_due_between_two_ticks_does_not_wait_for_the_next() -> None:
    """Nodes whose draws differ by less than a tick must not all ask for votes at once."""
    replica = FollowingStub(wait_ms=20)
    until_elections(replica, 12)
    assert replica.elections == [0] * 12


def test_a_node_whose_elections_are_far_off_ticks_no_more_than_heartbeats_need() -> None:
    replica = FollowingStub(wait_ms=410)
    node = until_elections(replica, 1)
    assert node.beats == 410 // (TICK_SECONDS * 1000) + 2, "at 0, 50, .. 400, and when it is due"
