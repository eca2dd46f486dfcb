"""What must hold whatever happens, judged from outside: from disks, messages and answers.

The judge keeps its own books. It learns what was handed to a disk and what became durable, what
each machine was given, which votes went out and what clients were told; it never asks a replica
whether a promise was kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from xxhash import xxh3_128_digest

from clustor.raft.membership import Membership
from clustor.raft.messages import VoteResponse
from clustor.raft.types import ReplicaId, Role
from clustor.replica.replica import Replica
from clustor.replica.types import Applied, NotLeader, ReplicaOutput, RequestsRefused
from clustor.sim.errors import PromiseBroken
from clustor.sim.log_terms import LogTerms


class JudgedReplica(Protocol):
    """What the judge looks at: a replica, its disk and its peers."""

    members_before: deque[Membership]
    lost_data: bool

    @property
    def replica_id(self) -> ReplicaId:
        """Who it is."""

    @property
    def running(self) -> Replica:
        """The replica of the process that runs now."""

    def peer(self, replica_id: ReplicaId) -> JudgedReplica:
        """Return another replica of the same group."""

    def held(self, term: int, index: int) -> bool:
        """Say whether this disk holds the entry, or did before it was lost."""


@dataclass(slots=True)
class _Step:
    """What the first replica to apply an index made of it."""

    commands: bytes  # their digest
    replies: bytes
    state: bytes
    previous: int


class GroupJudge:
    """The books of one group."""

    def __init__(self, group: int, *, knows_requests: bool = True) -> None:
        self.group = group
        self._knows_requests = knows_requests
        """Whether no two commands have the same bytes, and `on_request` is told of each."""
        self.leader_of_term: dict[int, ReplicaId] = {}
        self._votes: dict[tuple[ReplicaId, int], ReplicaId] = {}
        self._steps: dict[int, _Step] = {}
        self.acknowledged: dict[int, int] = {}  # index → term
        self.acknowledged_writes = 0
        self._request_of: dict[bytes, int] = {}
        self._applied_at: dict[int, int] = {}  # request → index
        self._refused: set[int] = set()
        self._known_applied: dict[int, int] = {}

    # What goes out.

    def on_output(self, seat: JudgedReplica, output: ReplicaOutput) -> None:
        role = output.role
        if role is not None and role.role is Role.LEADER:
            self._on_leader(seat, role.term)
        for to, message in output.messages:
            if isinstance(message, VoteResponse) and message.vote_granted:
                self._on_vote(seat, message.term, to)
        for outcome in output.replies:
            if isinstance(outcome, Applied):
                self._on_applied(seat, outcome)
            elif isinstance(outcome, NotLeader | RequestsRefused):
                self._on_refused(outcome.request_ids)

    def _on_leader(self, seat: JudgedReplica, term: int) -> None:
        other = self.leader_of_term.setdefault(term, seat.replica_id)
        if other != seat.replica_id:
            raise PromiseBroken(f"two leaders in term {term}: {other} and {seat.replica_id}")
        log = seat.running.group.core.log
        for index, acked_term in self.acknowledged.items():
            if index > log.base_index and log.term_at(index) != acked_term:
                raise PromiseBroken(
                    f"leader {seat.replica_id} of term {term} lacks acknowledged entry {index}"
                )

    def _on_vote(self, seat: JudgedReplica, term: int, to: ReplicaId) -> None:
        first = self._votes.setdefault((seat.replica_id, term), to)
        if first != to and not seat.lost_data:
            raise PromiseBroken(f"{seat.replica_id} voted for {first} and {to} in term {term}")

    def on_request(self, request: int, command: bytes) -> None:
        self._request_of[command] = request

    def _on_refused(self, requests: Iterable[int]) -> None:
        for request in requests:
            self._refused.add(request)
            if request in self._applied_at:
                raise PromiseBroken(f"request {request} was refused and applied")

    def _on_applied(self, seat: JudgedReplica, outcome: Applied) -> None:
        """The ACK contract: durable on a quorum of the members in force, at this very moment."""
        core = seat.running.group.core
        term = core.log.term_at(outcome.index)
        if term is None:
            term = core.hard.term
        # An entry may have been committed just before the members changed, and its reply waits
        # for the hard state that says so.
        configs = (core.config, *seat.members_before)
        if not any(self._is_durable(seat, config, term, outcome.index) for config in configs):
            holding = [v for v in core.config.all_voters if seat.peer(v).held(term, outcome.index)]
            raise PromiseBroken(
                f"acknowledged {outcome.index} of term {term}, "
                f"durable only on {sorted(holding)} of {core.config}"
            )
        step = self._steps.get(outcome.index)
        if step is None or step.replies != _digest(outcome.replies):
            raise PromiseBroken(f"replies of {outcome.index} are not what was applied there")
        self.acknowledged[outcome.index] = term
        self.acknowledged_writes += len(outcome.request_ids)

    def _is_durable(self, seat: JudgedReplica, config: Membership, term: int, index: int) -> bool:
        held = {voter: seat.peer(voter).held(term, index) for voter in config.all_voters}
        majorities = (config.voters, config.outgoing) if config.outgoing else (config.voters,)
        return all(2 * sum(held[v] for v in voters) > len(voters) for voters in majorities)

    # What machines were given.

    def on_apply(
        self,
        index: int,
        previous: int,
        commands: Sequence[bytes],
        replies: list[bytes],
        state: bytes,
    ) -> None:
        """Every machine sees the same commands at the same index after the same predecessor."""
        step = _Step(_digest(commands), _digest(replies), state, previous)
        known = self._steps.setdefault(index, step)
        if known != step:
            different = [
                name
                for name in ("commands", "replies", "state", "previous")
                if getattr(known, name) != getattr(step, name)
            ]
            raise PromiseBroken(f"two machines differ at index {index}: {', '.join(different)}")
        for command in commands if self._knows_requests else ():
            request = self._request_of.get(command)
            if request is None:
                raise PromiseBroken(f"a command that nobody asked for at index {index}")
            if self._applied_at.setdefault(request, index) != index:
                raise PromiseBroken(f"request {request} was applied twice")
            if request in self._refused:
                raise PromiseBroken(f"request {request} was refused and applied")

    def on_restore(self, index: int, state: bytes) -> None:
        """A restored machine is what every other one was at its index."""
        known = self._steps.get(index)
        if index and (known is None or known.state != state):
            raise PromiseBroken(f"a snapshot at {index} is not the state of that index")

    def state_at(self, index: int) -> bytes | None:
        step = self._steps.get(index)
        return None if step is None else step.state

    def check_acknowledged(self, view: LogTerms, replica_id: ReplicaId) -> None:
        """At the end every member holds all that was acknowledged."""
        for index, term in self.acknowledged.items():
            if not view.holds(term, index):
                raise PromiseBroken(f"{replica_id} lacks acknowledged entry {index} of {term}")

    def check_matching(
        self, logs: Sequence[tuple[ReplicaId, dict[int, tuple[int, bytes]]]]
    ) -> None:
        """Log matching: equal term at an index means equal entries up to it."""
        for position, (one, first) in enumerate(logs):
            for other, second in logs[position + 1 :]:
                common = sorted(set(first) & set(second), reverse=True)
                agreed = next((i for i in common if first[i][0] == second[i][0]), 0)
                for index in common:
                    if index <= agreed and first[index] != second[index]:
                        raise PromiseBroken(
                            f"logs of {one} and {other} agree at {agreed}, differ at {index}"
                        )


def _digest(parts: Sequence[bytes]) -> bytes:
    return xxh3_128_digest(b"".join(len(part).to_bytes(4, "little") + part for part in parts))
