"""Asking the control plane's leader from any node: found, asked again, and given up in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from clustor.runtime.control.wire import Answered, AnswerStatus, Confirmed, Question, Reply
from clustor.runtime.errors import ControlUnavailable
from clustor.runtime.pki.identity import NodeId

ATTEMPT_SECONDS_MAX: Final = 1.0  # then the leader is looked for anew
RETRY_SECONDS: Final = 0.02
OPEN_MAX: Final = 4_096

FindLeader = Callable[[], NodeId | None]
Send = Callable[[NodeId, Question], None]


class Questions:
    """The open questions of one node. Whoever repeats a call does it under its request id."""

    def __init__(self, find_leader: FindLeader, send: Send) -> None:
        self._find_leader = find_leader
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, tuple[NodeId, asyncio.Future[Reply | None]]] = {}
        self._next_number = 1

    async def ask(self, make: Callable[[int], Question], seconds_max: float) -> Reply:
        """Ask until the leader answers; raises ControlUnavailable after `seconds_max`."""
        if len(self._open) >= OPEN_MAX:
            raise ControlUnavailable("too many questions are open", limit=OPEN_MAX)
        deadline = self._loop.time() + seconds_max
        maybe_applied = False
        while (left := deadline - self._loop.time()) > 0:
            leader = self._find_leader()
            if leader is not None:
                reply = await self._attempt(leader, make, min(left, ATTEMPT_SECONDS_MAX))
                if isinstance(reply, Confirmed):
                    return reply
                if reply is not None and reply.standing is AnswerStatus.ANSWERED:
                    return reply
                maybe_applied |= reply is None or reply.standing is AnswerStatus.UNSETTLED
            await asyncio.sleep(min(RETRY_SECONDS, max(0.0, deadline - self._loop.time())))
        raise ControlUnavailable(
            "no leader of the control plane answered in time",
            maybe_applied=maybe_applied,
            leader=self._find_leader(),
            waited_ms=int(seconds_max * 1000),
        )

    async def _attempt(
        self, leader: NodeId, make: Callable[[int], Question], seconds_max: float
    ) -> Reply | None:
        """Ask once; None: nobody knows what became of it."""
        number, self._next_number = self._next_number, self._next_number + 1
        future: asyncio.Future[Reply | None] = self._loop.create_future()
        self._open[number] = (leader, future)
        try:
            self._send(leader, make(number))
            async with asyncio.timeout(seconds_max):
                return await future
        except TimeoutError:
            return None
        finally:
            del self._open[number]

    def answered(self, peer: NodeId, reply: Answered | Confirmed) -> None:
        """Take an answer; what nobody waits for, or another was asked, is dropped."""
        asked, future = self._open.get(reply.number, (None, None))
        if future is not None and asked == peer and not future.done():
            future.set_result(reply)

    def lost(self, peer: NodeId) -> None:
        """Let those that asked this peer ask again."""
        for asked, future in self._open.values():
            if asked == peer and not future.done():
                future.set_result(None)
