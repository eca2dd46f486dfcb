"""Proofs on their way: one batch at a time; the control plane does not feed itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from clustor.control import Done, ProofPublisher, ProofVerdict
from clustor.control.objects import canonical
from clustor.log.types import (
    DurabilityModeEpoch,
    IoWriterMode,
    LogIndex,
    PartitionId,
    SegmentSeq,
    Term,
)
from clustor.raft.profiles import ControlPlaneNumbers
from clustor.raft.types import DurabilityTuple
from clustor.runtime.control.client import Questions
from clustor.runtime.control.proofs import SELF_PERIOD_MS, OwnProofs, Proofs
from clustor.runtime.control.wire import Answered, AnswerStatus, Question, Wished
from clustor.runtime.pki.identity import NodeId


def proven(term: int, index: int) -> DurabilityTuple:
    return DurabilityTuple(
        Term(term),
        LogIndex(index),
        SegmentSeq(1),
        IoWriterMode.FIXED_URING,
        DurabilityModeEpoch(0),
    )


def test_the_own_proof_is_published_per_term_and_then_rarely() -> None:
    own = OwnProofs()
    assert own.lets(proven(1, 5), latched=False, now_ms=0)
    let = [
        ms
        for ms in range(0, SELF_PERIOD_MS, 1_000)
        if own.lets(proven(1, 6), latched=False, now_ms=ms)
    ]
    assert let == []
    assert not own.lets(proven(1, 6), latched=False, now_ms=SELF_PERIOD_MS)  # its own trace
    assert own.lets(proven(1, 7), latched=False, now_ms=SELF_PERIOD_MS)
    assert own.lets(proven(2, 8), latched=False, now_ms=SELF_PERIOD_MS + 1)
    assert not own.lets(proven(2, 9), latched=False, now_ms=SELF_PERIOD_MS + 2)
    assert own.lets(proven(2, 9), latched=True, now_ms=SELF_PERIOD_MS + 3)


class Lab:
    """A node's proofs, and a leader that answers with these verdicts."""

    def __init__(self) -> None:
        self.ms = 0
        self.verdicts: dict[str, str] | None = {}
        self.batches: list[Wished] = []
        self.tasks: set[asyncio.Future[None]] = set()
        self.questions = Questions(lambda: NodeId(1), self._send)
        publisher = ProofPublisher(1, "life", ControlPlaneNumbers())
        self.proofs = Proofs(publisher, self.questions, self._spawn, lambda: self.ms)

    def _spawn(self, work: Awaitable[None]) -> None:
        self.tasks.add(asyncio.ensure_future(work))

    def _send(self, peer: NodeId, question: Question) -> None:
        assert isinstance(question, Wished)
        self.batches.append(question)
        if self.verdicts is None:
            return
        others = self.verdicts
        result = {"published": len(question.wishes) - len(others), "others": others}
        answer = Answered(question.number, AnswerStatus.ANSWERED, canonical(Done(1, result)))
        asyncio.get_running_loop().call_soon(self.questions.answered, peer, answer)

    async def turn(self) -> None:
        self.proofs.on_tick()
        await asyncio.gather(*self.tasks)
        self.tasks.clear()


async def test_wishes_of_all_groups_leave_in_one_batch() -> None:
    lab = Lab()
    for partition in (1, 2, 3):
        lab.proofs.wish(PartitionId(partition), proven(1, partition))
    await lab.turn()
    assert [[wish[0] for wish in batch.wishes] for batch in lab.batches] == [[1, 2, 3]]
    assert (lab.proofs.published, lab.proofs.failed) == (3, 0)
    await lab.turn()
    assert len(lab.batches) == 1


async def test_what_does_not_stand_is_shown_until_it_does() -> None:
    lab = Lab()
    lab.verdicts = {"2": ProofVerdict.NOT_A_VOTER.value}
    for partition in (1, 2):
        lab.proofs.wish(PartitionId(partition), proven(1, 9))
    await lab.turn()
    assert lab.proofs.last_refused == {2: ProofVerdict.NOT_A_VOTER}
    lab.verdicts = {}
    lab.proofs.wish(PartitionId(2), proven(1, 9))
    await lab.turn()
    assert lab.proofs.last_refused == {}


async def test_a_newer_wish_leaves_after_the_batch_under_way() -> None:
    lab = Lab()
    lab.proofs.wish(PartitionId(1), proven(1, 1))
    lab.proofs.on_tick()
    lab.proofs.wish(PartitionId(1), proven(1, 2))
    lab.proofs.on_tick()
    await lab.turn()
    await lab.turn()
    assert [batch.wishes[0][2] for batch in lab.batches] == [1, 2]


async def test_a_group_that_is_led_elsewhere_is_not_published() -> None:
    lab = Lab()
    lab.proofs.wish(PartitionId(1), proven(1, 1))
    lab.proofs.forget(PartitionId(1))
    await lab.turn()
    assert lab.batches == []
