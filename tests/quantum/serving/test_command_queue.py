"""Commands on their way into a log: whatever is refused or put off, they enter it in order."""

from __future__ import annotations

import random
from functools import partial
from typing import Any, cast

import pytest

from clustor.replica import RequestId
from clustor.runtime.group import HostedGroup
from quantum.partition.backpressure import WatermarkLevel
from quantum.partition.command_queue import CommandQueue


class DrawnGroup:
    """A group that lets in, puts off, refuses and applies as it is drawn (a fake at the port)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.admission = self
        self.replica = self
        self.is_calm = False
        self.proposed: list[RequestId] = []
        self.commands: dict[RequestId, bytes] = {}
        self.log: list[RequestId] = []

    def admit(self, _size_bytes: int) -> bool:
        return self.is_calm or self._rng.random() < 0.6

    def propose(self, request: RequestId, command: bytes) -> None:
        self.proposed.append(request)
        self.commands[request] = command

    def turn(self, queue: CommandQueue) -> None:
        """Take all that was proposed, or hand the leadership over and refuse it."""
        taken, self.proposed = self.proposed, []
        if not self.is_calm and self._rng.random() < 0.4:
            queue.stall_again(taken)
        else:
            self.log += taken


@pytest.mark.parametrize("seed", range(30))
def test_commands_enter_the_log_in_order_and_each_is_completed_by_its_own_reply(seed: int) -> None:
    rng = random.Random(seed)
    group = DrawnGroup(rng)
    queue = CommandQueue(cast("HostedGroup", group), WatermarkLevel(1 << 20, lambda call: call()))
    told: list[tuple[int, bytes | None]] = []
    applied = 0

    def tell(number: int, reply: bytes | None) -> None:
        told.append((number, reply))

    def apply_all() -> int:
        for request in group.log[applied:]:
            completion = queue.applied(request)
            assert completion is not None
            completion(group.commands[request])
        return len(group.log)

    for number in range(60):
        command = str(number).encode()
        queue.submit(command, partial(tell, number), asks=rng.random() < 0.7)
        if rng.random() < 0.3:
            group.turn(queue)
        if rng.random() < 0.3:
            queue.submit_stalled()
        if rng.random() < 0.3:
            applied = apply_all()
    group.is_calm = True
    while queue.stalled or group.proposed:
        queue.submit_stalled()
        group.turn(queue)
    apply_all()
    assert told == [(number, str(number).encode()) for number in range(60)]
    assert queue.backlog.amount == 0


def test_who_waits_for_a_command_that_failed_is_told_that_nobody_knows() -> None:
    group = DrawnGroup(random.Random(1))
    group.is_calm = True
    queue = CommandQueue(cast("HostedGroup", group), WatermarkLevel(1 << 20, lambda call: call()))
    told: list[Any] = []
    queue.submit(b"first", told.append)
    queue.submit(b"second", told.append)
    queue.failed(group.proposed)
    assert told == [None, None] and queue.backlog.amount == 0
    assert queue.applied(group.proposed[0]) is None, "each is told once"
