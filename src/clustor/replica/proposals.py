"""Commands on their way: waiting, in the log, applied, and at last answered.

A reply leaves only when its entry was applied here *and* the group said that its proposal may
be acknowledged. Requests are kept in the batches in which they travel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from clustor.log.types import Entry, LogIndex, Term
from clustor.raft.leadership import ProposalAccepted
from clustor.raft.output import Acked
from clustor.raft.types import ReplicaId
from clustor.replica.batch import COMMAND_OVERHEAD_BYTES, commands_that_fit, encode_batch
from clustor.replica.types import Applied, NotLeader, Outcome, RequestId, RequestsRefused, Unknown

_NOTHING_ACKED = Acked(Term(0), LogIndex(0))


@dataclass(slots=True)
class _Open:
    """One entry of this leader whose requests are not answered yet."""

    term: Term
    index: LogIndex
    request_ids: list[RequestId]
    replies: list[bytes] | None = None  # set when it was applied


class Proposals:
    """The requests of one replica. Outcomes gather in `outcomes` until they are taken."""

    def __init__(self, payload_bytes_max: int, waiting_bytes_max: int) -> None:
        self._payload_bytes_max = payload_bytes_max
        self._waiting_bytes_max = waiting_bytes_max
        self.waiting: list[RequestId] = []
        """The requests whose commands wait for the next entry."""
        self._commands: list[bytes] = []
        self.waiting_bytes = 0
        self._is_full = False
        """One was refused: a smaller one must not overtake it before the next batch."""
        self._open: deque[_Open] = deque()
        self._acked = _NOTHING_ACKED
        self._open_requests = 0
        self.outcomes: list[Outcome] = []

    @property
    def unanswered(self) -> int:
        """How many requests wait, are in the log, or are applied and not yet answered."""
        return len(self.waiting) + self._open_requests

    def add(self, request_id: RequestId, command: bytes) -> None:
        """Let a command wait for the next batch."""
        size = len(command) + COMMAND_OVERHEAD_BYTES
        if size >= self._payload_bytes_max:
            self.outcomes.append(RequestsRefused([request_id], "TooLarge"))
        elif self._is_full or self.waiting_bytes + size > self._waiting_bytes_max:
            self._is_full = True
            self.outcomes.append(RequestsRefused([request_id], "Overloaded"))
        else:
            self.waiting_bytes += size
            self.waiting.append(request_id)
            self._commands.append(command)

    def take_waiting(self, bytes_max: int) -> tuple[list[list[RequestId]], list[bytes]]:
        """Make payloads of what waits: one, or as many as the size of an entry demands.

        What is beyond `bytes_max` waits for the next batch: to write, send and apply one of many
        megabytes would hold up everything else that long. One command is always taken.
        """
        ids, commands, self._is_full = self.waiting, self._commands, False
        if not ids:
            return [], []
        share = max(1, commands_that_fit(commands, bytes_max))
        self.waiting, self._commands = ids[share:], commands[share:]
        ids, commands = ids[:share], commands[:share]
        self.waiting_bytes = sum(map(len, self._commands))
        self.waiting_bytes += COMMAND_OVERHEAD_BYTES * len(self._commands)
        batches: list[list[RequestId]] = []
        payloads: list[bytes] = []
        while (fit := commands_that_fit(commands, self._payload_bytes_max)) < len(commands):
            batches.append(ids[:fit])
            payloads.append(encode_batch(commands[:fit]))
            ids, commands = ids[fit:], commands[fit:]
        return [*batches, ids], [*payloads, encode_batch(commands)]

    def accepted(self, accepted: ProposalAccepted, batches: Sequence[list[RequestId]]) -> None:
        """Take note of where the batches stand in the log."""
        for offset, request_ids in enumerate(batches):
            index = LogIndex(accepted.first_index + offset)
            self._open.append(_Open(accepted.term, index, request_ids))
            self._open_requests += len(request_ids)

    def applied(self, entry: Entry, replies: list[bytes]) -> None:
        """Keep the replies of an entry if it is one of ours."""
        for waiting in self._open:
            if waiting.index >= entry.index:
                if (waiting.index, waiting.term) == (entry.index, entry.term):
                    waiting.replies = replies
                return

    def acked(self, acked: Acked) -> None:
        self._acked = acked

    def release(self) -> None:
        """Answer what is applied and may be acknowledged, in the order of the log."""
        acked = self._acked
        while self._open:
            first = self._open[0]
            if first.replies is None or first.term != acked.term or first.index > acked.through:
                return
            self._open.popleft()
            self._open_requests -= len(first.request_ids)
            self.outcomes.append(Applied(first.index, first.request_ids, first.replies))

    def lose(self, term: Term | None, leader_id: ReplicaId | None) -> None:
        """Give up what is not of `term` (None: everything): nobody here will learn its end."""
        lost = [waiting for waiting in self._open if waiting.term != term]
        if lost:
            self._open = deque(waiting for waiting in self._open if waiting.term == term)
            request_ids = [request for waiting in lost for request in waiting.request_ids]
            self._open_requests -= len(request_ids)
            self.outcomes.append(Unknown(request_ids))
        if term is None and self.waiting:
            self.outcomes.append(NotLeader(self.waiting, leader_id))
            self.waiting, self._commands, self.waiting_bytes = [], [], 0

    def lose_open(self) -> None:
        """Give up everything that is in the log and not answered: nobody is told its end."""
        if self._open:
            request_ids = [request for waiting in self._open for request in waiting.request_ids]
            self._open.clear()
            self._open_requests -= len(request_ids)
            self.outcomes.append(Unknown(request_ids))

    def take(self) -> list[Outcome]:
        outcomes, self.outcomes = self.outcomes, []
        return outcomes
