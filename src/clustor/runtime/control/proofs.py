"""The proofs of one node's groups on their way to the control plane (ruling C7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from clustor.control import (
    Done,
    ProofBatch,
    ProofPublisher,
    ProofVerdict,
    decode_answer,
    verdicts_of,
)
from clustor.log.types import PartitionId, Term
from clustor.raft.types import DurabilityTuple
from clustor.runtime.control.client import Questions
from clustor.runtime.control.wire import Answered, Reply, wished
from clustor.runtime.errors import ControlUnavailable

SELF_PERIOD_MS: Final = 60_000
_ANSWER_SECONDS_MAX: Final = 1.0
_LOOK_TICKS: Final = 10  # for refreshes, which nobody wishes


class OwnProofs:
    """When the control plane's own group has its proof published.

    Each publication is an entry of that very group and moves its watermark: taken as it comes,
    the wish of every second would make an entry of every second, for nothing. One is let through
    for each term, while the group's latch is set, and once in a while; none for a mark that
    nothing but the last publication has moved, so that a control plane at rest writes nothing.
    """

    def __init__(self) -> None:
        self._term: Term | None = None
        self._due_ms = 0
        self._published = 0

    def lets(self, proven: DurabilityTuple, *, latched: bool, now_ms: int) -> bool:
        """Say whether this wish is passed on; it counts as passed on then."""
        moved = proven.index > self._published + 1
        if proven.term == self._term and not latched and (now_ms < self._due_ms or not moved):
            return False
        self._term, self._due_ms = proven.term, now_ms + SELF_PERIOD_MS
        self._published = proven.index
        return True


class Proofs:
    """Wishes in, batches out; one is under way at a time. `spawn` runs it beside the loop."""

    def __init__(
        self,
        publisher: ProofPublisher,
        questions: Questions,
        spawn: Callable[[Awaitable[None]], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._publisher = publisher
        self._questions = questions
        self._spawn = spawn
        self._now_ms = now_ms
        self._look = False
        self._ticks = 0
        self.published = 0
        self.failed = 0
        self.last_refused: dict[PartitionId, ProofVerdict] = {}

    def wish(self, partition_id: PartitionId, proven: DurabilityTuple) -> None:
        self._publisher.wish(partition_id, proven)
        self._look = True

    def forget(self, partition_id: PartitionId) -> None:
        self._publisher.forget(partition_id)
        self.last_refused.pop(partition_id, None)

    def on_tick(self) -> None:
        """Send the next batch, if there is one."""
        self._ticks += 1
        if not self._look and self._ticks % _LOOK_TICKS:
            return
        self._look = False
        batch = self._publisher.take(self._now_ms())
        if batch is not None:
            self._spawn(self._publish(batch))

    async def _publish(self, batch: ProofBatch) -> None:
        try:
            reply = await self._questions.ask(
                lambda number: wished(number, batch), _ANSWER_SECONDS_MAX
            )
        except ControlUnavailable:
            self.failed += 1
            self._publisher.failed(batch.request_id)
        else:
            self._on_reply(batch, reply)
        self._look = True

    def _on_reply(self, batch: ProofBatch, reply: Reply) -> None:
        answer = decode_answer(reply.body) if isinstance(reply, Answered) else None
        if not isinstance(answer, Done):
            self.failed += 1
            self._publisher.failed(batch.request_id)
            return
        verdicts = verdicts_of([each for each, _ in batch.wishes], answer.result)
        self._publisher.answered(batch.request_id, verdicts, self._now_ms())
        for partition_id, verdict in verdicts.items():
            if verdict in (ProofVerdict.PUBLISHED, ProofVerdict.REFRESHED):
                self.published += 1
                self.last_refused.pop(partition_id, None)
            else:
                self.last_refused[partition_id] = verdict
