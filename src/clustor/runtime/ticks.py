"""How time passes on a node: one timer that ticks its groups, its services and whoever looks on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from clustor.log.types import PartitionId
from clustor.runtime.containment import contained
from clustor.runtime.disk import Disk
from clustor.runtime.disk.policy import DiskRoom
from clustor.runtime.group import HostedGroup
from clustor.runtime.node_parts import DutiesPort
from clustor.runtime.peers.transport import Transport
from clustor.runtime.service import NodeWatch, Service
from clustor.runtime.telemetry.loop_watch import LoopWatch

TICK_SECONDS: Final = 0.050
"""Groups and services tick together, as often as a heartbeat is due: each wake-up of a node that
rests costs more than its work. An election that is due before has a timer of its own."""
LATE_SECONDS: Final = 0.020
"""A tick that comes later than this reads first what its sockets hold (C19)."""
GROUP_TICK_MS_MAX: Final = 75
"""Groups that were not ticked for longer than this are told that the node did not run."""
_READS_MIN: Final = 2
_READS_MAX: Final = 4
_LATENESS_MS: Final = 1_000

journal = logging.getLogger("clustor.node")


class TickedNode(Protocol):
    """What a tick reaches of the node."""

    groups: dict[PartitionId, HostedGroup]
    services: list[Service]
    duties: DutiesPort | None
    watch: NodeWatch | None
    transport: Transport
    disk: Disk
    disk_room: DiskRoom
    loop_watch: LoopWatch

    @property
    def data_root(self) -> Path:
        """The node's own directory."""

    @property
    def read_room(self) -> Callable[[Path], tuple[int, int] | None]:
        """How the size of a disk and what is free of it are asked for."""

    def now_ms(self) -> int:
        """Return the loop's monotonic clock, the only one that replicas see."""

    def touch(self, group: HostedGroup) -> None:
        """Let the group give its output at the end of this turn."""

    def touch_news(self, group: HostedGroup) -> None:
        """Touch a group if what it was just given has left it anything to say."""

    def turn_soon(self) -> None:
        """Let the turn end soon: a service staged something."""


class Ticks:
    """The timer of one node, and when it went off last."""

    def __init__(self, node: TickedNode, loop: asyncio.AbstractEventLoop) -> None:
        self._node = node
        self._loop = loop
        self._ticking: asyncio.TimerHandle | None = None
        self._ticked = self._tick_due = time.monotonic()
        self._groups_ticked_ms = [0, 0]  # of those that follow, and of those that lead
        self._rereading = False
        self._lateness_due_ms = 0
        self._electing: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Let time pass from now on."""
        self._ticked = self._tick_due = time.monotonic()
        self._groups_ticked_ms = [self._node.now_ms()] * 2
        self.tick()

    def stop(self) -> None:
        """Let no time pass any more."""
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        if self._electing is not None:
            self._electing.cancel()
            self._electing = None

    def tick(self) -> None:
        began_ns = time.monotonic_ns()
        self._ticking = self._loop.call_later(TICK_SECONDS, self.tick)
        now = began_ns / 1e9
        late = max(0.0, now - self._tick_due)
        self._node.loop_watch.ticked(late * 1000, (now - self._ticked) * 1000)
        self._ticked, self._tick_due = now, now + TICK_SECONDS
        now_ms = self._node.now_ms()
        self._watch_disk(now_ms)
        if late > LATE_SECONDS:
            self._tick_groups(leading=True)  # their heartbeats are late as it is
            self._read_first()
        else:
            self._tick_groups(leading=True)
            if not self._rereading:
                self._tick_groups(leading=False)
        for service in self._node.services:
            contained.run("service tick", type(service).__name__, service.on_tick)
        self._look_around(now_ms)
        self._node.turn_soon()  # whatever a tick staged without a word leaves now
        self._node.loop_watch.ran("tick", began_ns)

    def _look_around(self, now_ms: int) -> None:
        """Let those look who look some times a second, and need no tick of their own."""
        if self._node.duties is not None:
            contained.run("duties", "", partial(self._node.duties.on_tick, now_ms))
        if self._node.watch is not None:
            contained.run("telemetry", "", partial(self._node.watch.on_tick, now_ms))

    def _read_first(self) -> None:
        """Let a late tick of those who follow wait until the sockets were read: a leader that
        spoke in time must not be judged by when we listen (C19).
        """
        if not self._rereading:
            self._rereading = True
            self._loop.call_soon(self._read_on, _READS_MAX, self._node.transport.bytes_received)

    def _read_on(self, reads_left: int, seen: int) -> None:
        """Go on as long as peers say more; each turn of the loop reads every socket once."""
        received = self._node.transport.bytes_received
        enough = received == seen and reads_left <= _READS_MAX - _READS_MIN
        if reads_left and not enough:
            self._loop.call_soon(self._read_on, reads_left - 1, received)
            return
        self._rereading = False
        self._tick_groups(leading=False)
        self._node.turn_soon()

    def _tick_groups(self, *, leading: bool) -> None:
        """Tick all that lead, or all others, at once: their heartbeats share a frame."""
        now_ms = self._node.now_ms()
        gap_ms = now_ms - self._groups_ticked_ms[leading]
        self._groups_ticked_ms[leading] = now_ms
        expected_ms = int(TICK_SECONDS * 1000)
        missed_ms = gap_ms - expected_ms if gap_ms > GROUP_TICK_MS_MAX else 0
        age_ms = self._node.disk.age_ns() // 1_000_000
        for group in self._node.groups.values():
            if group.paused or group.replica.leads is not leading:
                continue
            try:
                self._tick_group(group, now_ms, missed_ms, age_ms)
            except Exception as error:  # noqa: BLE001  # its word rests on its admission, too
                group.replica.fence(error)
        if not leading:
            self._await_election(now_ms)
        if now_ms >= self._lateness_due_ms:
            self._lateness_due_ms = now_ms + _LATENESS_MS
            lateness_ms = self._node.loop_watch.lateness_ms()
            for group in self._node.groups.values():
                group.replica.lateness(lateness_ms)

    def _await_election(self, now_ms: int) -> None:
        """Come back for an election that is due before the next tick: a lost leader is replaced
        by whoever drew the shortest time, and ticks must not make all draws alike.
        """
        if self._electing is not None:
            return
        dues = [
            group.replica.group.election.deadline_ms
            for group in self._node.groups.values()
            if not group.paused and not group.replica.leads
        ]
        wait_ms = min(dues, default=now_ms) - now_ms
        if 0 < wait_ms < int(TICK_SECONDS * 1000):
            self._electing = self._loop.call_later(wait_ms / 1000, self._elect)

    def _elect(self) -> None:
        self._electing = None
        self._read_first()

    def _tick_group(
        self, group: HostedGroup, now_ms: int, missed_ms: int, device_age_ms: int
    ) -> None:
        replica = group.replica
        was_behind = replica.is_behind  # a tick applies some of it, which the service must see
        replica.tick(now_ms, missed_ms=missed_ms, device_age_ms=device_age_ms)
        news = group.admission.tick(now_ms)
        if news is not None:
            journal.warning("group %d: %s", group.partition_id, news)
        if was_behind:
            self._node.touch(group)
        else:
            self._node.touch_news(group)

    def _watch_disk(self, now_ms: int) -> None:
        """Ask the disk what is free, and tell every group before one of them needs more."""
        room = self._node.disk_room
        if not room.is_due(now_ms):
            return
        found = self._node.read_room(self._node.data_root)
        before, level = room.level, room.take(None if found is None else found[1])
        if level is not before:
            journal.warning("the disk: %s, %s bytes are free", level, room.free_bytes)
        for group in self._node.groups.values():
            group.admission.use_disk(level)
