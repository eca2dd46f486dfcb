"""Questions of people that another node can answer: asked over the link, answered once.

A node holds a replica of every partition, but only its leader knows who is connected, and only a
replica itself can say what its own disk has. Nothing here changes anything, so a question whose
answer was lost is just asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

from clustor.control.command_gates import CommandGate
from clustor.runtime.containment import contained
from quantum.mesh import link

QUESTIONS_OPEN_MAX: Final = 256
"""What may wait for answers, and what may be in work for other nodes: each."""
ANSWER_SECONDS_MAX: Final = 8.0

Answerer: TypeAlias = Callable[[bytes], Awaitable[bytes]]


class QuestionLinks(Protocol):
    """What questions need of their node."""

    def say(self, node: int, said: link.Said, size: int) -> None: ...
    def reaches(self, node: int) -> bool: ...
    def knows(self, node: int, gate: CommandGate) -> bool: ...


class NodeQuestions:
    """What is asked of other nodes, and what they ask here."""

    def __init__(self, links: QuestionLinks) -> None:
        self._links = links
        self._number = 0
        self._open: dict[int, tuple[int, asyncio.Future[bytes | None]]] = {}
        self.answerers: dict[str, Answerer] = {}
        """Who answers each kind of question here."""
        self._answering: set[asyncio.Task[None]] = set()

    async def ask(self, node: int, kind: str, question: bytes) -> bytes | None:
        """Ask another node; None: it cannot be asked, does not know, or did not answer in time."""
        links = self._links
        if len(self._open) >= QUESTIONS_OPEN_MAX or not links.reaches(node):
            return None
        if not links.knows(node, CommandGate.QUESTIONS):
            return None
        self._number += 1
        number = self._number
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._open[number] = (node, answered)
        links.say(node, link.NodeAsked(number, kind, question), len(question) + 64)
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await answered
        except TimeoutError:
            return None
        finally:
            del self._open[number]

    def on_said(self, peer: int, said: link.NodeAsked | link.NodeAnswered) -> None:
        """Answer a question, or tell who waits for an answer."""
        if isinstance(said, link.NodeAnswered):
            node, answered = self._open.get(said.number, (0, None))
            if answered is not None and node == peer and not answered.done():
                answered.set_result(said.answer)
            return
        answerer = self.answerers.get(said.kind)
        if answerer is None or len(self._answering) >= QUESTIONS_OPEN_MAX:
            self._links.say(peer, link.NodeAnswered(said.number, None), 64)
            return
        task = asyncio.get_running_loop().create_task(self._answer(peer, said, answerer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, peer: int, said: link.NodeAsked, answerer: Answerer) -> None:
        answer: bytes | None = None
        try:
            answer = await answerer(said.question)
        except Exception as error:  # noqa: BLE001  # a peer's question must not end this node
            contained.caught("node question", said.kind, error)
        self._links.say(peer, link.NodeAnswered(said.number, answer), 64 + len(answer or b""))

    def link_anew(self, peer: int) -> None:
        """Something between this node and a peer was lost: nobody answers any more."""
        for node, answered in list(self._open.values()):
            if node == peer and not answered.done():
                answered.set_result(None)
