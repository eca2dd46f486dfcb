"""The replica's one queue of disk work, and what happens when each piece of it is durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from clustor.log.steps import Plan
from clustor.replica.errors import ReplicaMisuse
from clustor.replica.types import DiskToken, DiskWork, Home

Done: TypeAlias = Callable[[], None]


class DiskQueue:
    """Plans go out in order and come back in order: a receipt is for the oldest one."""

    def __init__(self) -> None:
        self._next_token = 1
        self.fresh: list[DiskWork] = []
        """Plans that wait to be handed out."""
        self.outstanding: deque[tuple[DiskToken, Done]] = deque()
        """Plans that were handed out, or wait for that, and are not over."""

    def submit(self, plan: Plan, done: Done, home: Home = Home.PARTITION) -> None:
        """Hand out a plan; `done` is called when the whole of it is durable.

        A plan without steps is not handed out: it is done when all before it is.
        """
        if not plan:
            self._after_all(done)
            return
        token = DiskToken(self._next_token)
        self._next_token += 1
        self.fresh.append(DiskWork(token, plan, home))
        self.outstanding.append((token, done))

    def _after_all(self, done: Done) -> None:
        if not self.outstanding:
            done()
            return
        token, before = self.outstanding[-1]

        def both() -> None:
            before()
            done()

        self.outstanding[-1] = (token, both)

    def finish(self, token: DiskToken) -> None:
        """Take note that the oldest plan is done."""
        if not self.outstanding or self.outstanding[0][0] != token:
            raise ReplicaMisuse("plans are finished in their order", token=token)
        self.outstanding.popleft()[1]()

    def take(self) -> list[DiskWork]:
        fresh, self.fresh = self.fresh, []
        return fresh

    def abandon(self) -> None:
        """Forget all of it: the disk failed, and nothing more may be concluded."""
        self.fresh.clear()
        self.outstanding.clear()
