"""Who sees to it that the control plane holds what the files of its cluster describe."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from clustor.control import Answer, Command, DraftReading, Refused
from clustor.runtime.control.records import Plan
from clustor.runtime.errors import ControlUnavailable

AGAIN_SECONDS: Final = 0.5
ROUNDS_MAX: Final = 16  # of one plan; each waits for what the one before it recorded

journal = logging.getLogger("clustor.control")


class Steward:
    """Carries out plans. `catch_up` lets this replica apply everything that its term began with."""

    def __init__(
        self,
        leads: Callable[[], bool],
        state: Callable[[], DraftReading],
        catch_up: Callable[[], Awaitable[object]],
        call: Callable[[Command], Awaitable[Answer]],
    ) -> None:
        self._leads = leads
        self._state = state
        self._catch_up = catch_up
        self._call = call
        self._plans: list[Plan] = []
        self._due = asyncio.Event()

    def add(self, plan: Plan) -> None:
        """Carry out one more plan, behind the others."""
        self._plans.append(plan)
        self._due.set()

    def look(self) -> None:
        """Look at the plans again: something that they rest on has changed."""
        self._due.set()

    async def run(self) -> None:
        """Call what is missing, whenever there is a reason to look and this node leads."""
        while True:
            await self._due.wait()
            self._due.clear()
            while self._leads() and not await self._carried_out():
                await asyncio.sleep(AGAIN_SECONDS)

    async def _carried_out(self) -> bool:
        """Carry out every plan; False: the control plane was gone, and it must be tried again."""
        try:
            await self._catch_up()
            for plan in list(self._plans):
                await self._carry_out(plan)
        except ControlUnavailable:
            return False
        return True

    async def _carry_out(self, plan: Plan) -> None:
        """Call until nothing is missing; what is refused is not asked for before the next look."""
        for _ in range(ROUNDS_MAX):
            commands = list(plan(self._state()))
            answers = [await self._call(command) for command in commands]
            refused = [each for each in answers if isinstance(each, Refused)]
            if len(refused) == len(commands):
                break
        else:
            journal.warning("a plan of the control plane's records never ends")
            return
        for each in refused:
            journal.warning("the control plane refused a record: %s, %s", each.code, each.reason)
