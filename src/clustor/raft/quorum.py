"""What a majority has, and what a majority says; joint configurations ask two of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

from clustor.raft.types import ReplicaId

UNBOUNDED = (1 << 64) - 1
"""What an empty majority has reached: everything, so that it never holds the other one back."""


class VoteResult(StrEnum):
    PENDING = "VotePending"
    LOST = "VoteLost"
    WON = "VoteWon"


def reached_by_majority(voters: Collection[ReplicaId], reached: Callable[[ReplicaId], int]) -> int:
    """Return the highest index that more than half of `voters` have reached."""
    if not voters:
        return UNBOUNDED
    ascending = sorted(map(reached, voters))
    return ascending[(len(ascending) - 1) // 2]


def reached_by_joint(
    incoming: Collection[ReplicaId],
    outgoing: Collection[ReplicaId],
    reached: Callable[[ReplicaId], int],
) -> int:
    """Return what both majorities have reached; an empty `outgoing` is no second majority."""
    index = reached_by_majority(incoming, reached)
    if outgoing:
        index = min(index, reached_by_majority(outgoing, reached))
    return index


def majority_vote(voters: Collection[ReplicaId], votes: Mapping[ReplicaId, bool]) -> VoteResult:
    """Say what `voters` decided so far; an empty majority has always won."""
    if not voters:
        return VoteResult.WON
    needed = len(voters) // 2 + 1
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    missing = sum(1 for voter in voters if voter not in votes)
    if granted >= needed:
        return VoteResult.WON
    return VoteResult.PENDING if granted + missing >= needed else VoteResult.LOST


def joint_vote(
    incoming: Collection[ReplicaId],
    outgoing: Collection[ReplicaId],
    votes: Mapping[ReplicaId, bool],
) -> VoteResult:
    """Say what both majorities decided: either one can lose it, both must win it."""
    results = (majority_vote(incoming, votes), majority_vote(outgoing, votes))
    if VoteResult.LOST in results:
        return VoteResult.LOST
    return VoteResult.PENDING if VoteResult.PENDING in results else VoteResult.WON
