"""Asking the leader: who is asked, what is asked again, and what the caller is told at last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from clustor.runtime.control.client import Questions
from clustor.runtime.control.wire import (
    Answered,
    AnswerStatus,
    Confirmed,
    NewestAsked,
    Question,
    Reply,
)
from clustor.runtime.errors import ControlUnavailable
from clustor.runtime.pki.identity import NodeId

Answer = Callable[[int, int], Reply | None]  # peer, number


class Peers:
    """Leaders that answer as the test says; every question is kept."""

    def __init__(self, leaders: list[int | None], answer: Answer) -> None:
        self._leaders = leaders
        self._answer = answer
        self.asked: list[tuple[int, int]] = []
        self.questions = Questions(self.leader, self.send)

    def leader(self) -> NodeId | None:
        leader = self._leaders[0] if len(self._leaders) == 1 else self._leaders.pop(0)
        return None if leader is None else NodeId(leader)

    def send(self, peer: NodeId, question: Question) -> None:
        self.asked.append((peer, question.number))
        reply = self._answer(peer, question.number)
        if reply is not None:
            asyncio.get_running_loop().call_soon(self.questions.answered, peer, reply)

    async def ask(self, seconds_max: float = 5.0) -> Reply:
        return await self.questions.ask(lambda number: NewestAsked(number, 0), seconds_max)


def done(number: int) -> Answered:
    return Answered(number, AnswerStatus.ANSWERED, b"{}")


async def test_a_leader_that_is_found_later_is_asked_then() -> None:
    peers = Peers([None, None, 2], lambda _peer, number: done(number))
    assert isinstance(await peers.ask(), Answered)
    assert [peer for peer, _ in peers.asked] == [2]


@pytest.mark.parametrize(
    "standing", [AnswerStatus.NOT_LEADER, AnswerStatus.UNSETTLED, AnswerStatus.BUSY]
)
async def test_whatever_is_no_answer_is_asked_again_under_a_new_number(
    standing: AnswerStatus,
) -> None:
    def answer(peer: int, number: int) -> Reply:
        return Answered(number, standing) if peer == 1 else Confirmed(number, 7, 0)

    peers = Peers([1, 1, 3], answer)
    assert isinstance(await peers.ask(), Confirmed)
    assert [peer for peer, _ in peers.asked] == [1, 1, 3]
    assert len({number for _, number in peers.asked}) == 3


async def test_a_lost_peer_is_not_waited_for() -> None:
    def answer(peer: int, number: int) -> Reply | None:
        if peer == 1:
            asyncio.get_running_loop().call_soon(peers.questions.lost, NodeId(1))
            return None
        return done(number)

    peers = Peers([1, 2], answer)
    async with asyncio.timeout(0.5):  # less than one attempt
        await peers.ask()


async def test_an_answer_of_somebody_else_is_not_believed() -> None:
    def answer(_peer: int, number: int) -> None:
        asyncio.get_running_loop().call_soon(peers.questions.answered, NodeId(9), done(number))

    peers = Peers([1], answer)
    with pytest.raises(ControlUnavailable):
        await peers.ask(0.05)


MAYBE = {
    "no leader": ([None], lambda _peer, _number: None, False),
    "not the leader": ([1], lambda _peer, number: Answered(number, AnswerStatus.NOT_LEADER), False),
    "busy": ([1], lambda _peer, number: Answered(number, AnswerStatus.BUSY), False),
    "leadership was lost": (
        [1],
        lambda _peer, number: Answered(number, AnswerStatus.UNSETTLED),
        True,
    ),
    "silence": ([1], lambda _peer, _number: None, True),
}


@pytest.mark.parametrize(("leaders", "answer", "maybe"), MAYBE.values(), ids=MAYBE.keys())
async def test_who_waited_in_vain_hears_whether_it_may_stand(
    leaders: list[int | None], answer: Answer, *, maybe: bool
) -> None:
    with pytest.raises(ControlUnavailable) as refused:
        await Peers(leaders, answer).ask(0.05)
    assert refused.value.maybe_applied is maybe


async def test_nothing_is_kept_of_questions_that_are_over() -> None:
    peers = Peers([1], lambda _peer, number: done(number))
    for _ in range(3):
        await peers.ask()
    peers.questions.answered(NodeId(1), done(1))  # again, late
    assert not peers.questions._open  # the bound of memory is the point
