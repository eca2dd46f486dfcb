"""Reads on their way: asked, granted at an index, and served when the machine has applied it."""

from __future__ import annotations

from collections.abc import Sequence

from clustor.log.types import LogIndex
from clustor.raft.output import ReadAnswer
from clustor.raft.reads import ReadGranted, ReadRefusal
from clustor.raft.types import ReplicaId
from clustor.replica.types import ReadDenied, ReadOutcome, ReadReady, RequestId


class ReadGate:
    """The open reads of one replica. Outcomes gather until they are taken."""

    def __init__(self) -> None:
        self._asked: dict[RequestId, None] = {}
        self._granted: list[tuple[LogIndex, RequestId]] = []
        self._outcomes: list[ReadOutcome] = []

    @property
    def waits(self) -> bool:
        """Whether a read was granted, or an answer waits to be taken."""
        return bool(self._granted) or bool(self._outcomes)

    def ask(self, request_id: RequestId) -> None:
        self._asked[request_id] = None

    def answered(self, answers: Sequence[ReadAnswer], leader_id: ReplicaId | None) -> None:
        """Take the group's answers: a grant waits for the machine, a refusal is final."""
        for answer in answers:
            request_id = RequestId(answer.read_id)
            self._asked.pop(request_id, None)
            if isinstance(answer, ReadGranted):
                self._granted.append((answer.index, request_id))
            else:
                denied = ReadDenied(request_id, answer.refusal, answer.failed_clause, leader_id)
                self._outcomes.append(denied)

    def serve(self, applied_index: LogIndex) -> None:
        """Let those read whose index the machine has applied."""
        if not self._granted:
            return
        waiting: list[tuple[LogIndex, RequestId]] = []
        for index, request_id in self._granted:
            if index <= applied_index:
                self._outcomes.append(ReadReady(request_id, applied_index))
            else:
                waiting.append((index, request_id))
        self._granted = waiting

    def deny(self, request_id: RequestId, leader_id: ReplicaId | None) -> None:
        self._outcomes.append(ReadDenied(request_id, ReadRefusal.NOT_LEADER, leader_id=leader_id))

    def deny_all(self) -> None:
        """Deny what is open: this replica has stopped."""
        for request_id in [*self._asked, *(request_id for _, request_id in self._granted)]:
            self.deny(request_id, None)
        self._asked.clear()
        self._granted.clear()

    def take(self) -> list[ReadOutcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes
