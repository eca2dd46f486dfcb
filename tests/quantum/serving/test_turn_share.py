"""What one tenant, and one of its connections, may have of a turn of the loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from quantum.partition.backpressure import PART_BYTES_MIN, TURN_BYTES_MAX, TurnShare


class Loop:
    """Calls that come behind the turn."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], None]] = deque()

    def soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def turn(self) -> None:
        for _ in range(len(self.calls)):
            self.calls.popleft()()


class Flood:
    """A connection with more than fits into a turn; takes its part when it may."""

    def __init__(self, share: TurnShare, name: str, log: list[str], left: int = 1 << 40) -> None:
        self._share, self._name, self._log, self._left = share, name, log, left
        self.held = 0

    def hold(self) -> None:
        assert self.held == 0
        self.held = 1

    def let_go(self) -> None:
        self.held -= 1
        self.pull()

    def pull(self) -> None:
        while self._left and not self.held:
            if self._share.is_used:
                self._share.hold(self)
                return
            part = min(self._left, self._share.part)
            self._left -= part
            self._log.append(self._name)
            self._share.bring(part)
            if part >= self._share.part and self._left:
                self._share.hold_behind(self)


def flooded(count: int) -> tuple[TurnShare, Loop, list[str], list[Flood]]:
    loop, log = Loop(), list[str]()
    share = TurnShare(loop.soon)
    return share, loop, log, [Flood(share, f"f{n}", log) for n in range(count)]


def test_who_had_its_part_waits_for_the_next_turn() -> None:
    share, loop, log, (flood,) = flooded(1)
    flood.pull()
    assert log == ["f0"] and share.holds(flood)
    loop.turn()
    assert log == ["f0", "f0"] and share.holds(flood)


def test_who_had_nothing_comes_before_who_had_a_part() -> None:
    share, loop, log, floods = flooded(1)
    small = Flood(share, "small", log, left=10)
    floods[0].pull()
    share.bring(1)
    small.pull()  # nothing is left of this turn
    assert log == ["f0"] and share.holds(small)
    loop.turn()
    assert log == ["f0", "small", "f0"] and not share.holds(small)


def test_many_take_turns_and_nobody_starves() -> None:
    """Five times as many as have room in a turn: each is served once before any is twice more."""
    count = 5 * (TURN_BYTES_MAX // PART_BYTES_MIN)
    share, loop, log, floods = flooded(count)
    for flood in floods:
        flood.pull()
    for _ in range(40):
        loop.turn()
    served = [log.count(f"f{n}") for n in range(count)]
    assert min(served) > 1
    assert max(served[1:]) - min(served[1:]) <= 2, served  # the first had a whole turn
    assert share.part == PART_BYTES_MIN


def test_one_that_is_alone_has_the_whole_turn() -> None:
    share, loop, _, (flood,) = flooded(1)
    flood.pull()
    loop.turn()
    assert share.part == TURN_BYTES_MAX
