"""How a replica that lost its data comes back: what it may conclude from its peers, and when.

A damaged replica may have voted in any term and acknowledged any entry before it was fenced. So
it starts empty and without a vote (`Replica.rejoin`), the group removes it, and takes it in again
as a new member, with everything that is committed. The routing epoch it rejoins with decides
which removal counts: one that began *after* the loss. An epoch that is too low would let an older
removal end the time without a vote, so it is asked for after the replica was fenced, and believed
only from a leader that a majority of its voters follows, with no change under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from clustor.log.types import LogIndex, Term
from clustor.raft.types import ReplicaId, RoutingEpoch


@dataclass(frozen=True, slots=True)
class VoteStanding:
    """What a healthy replica says of its group and of itself."""

    term: Term
    leads: bool
    settled: bool  # no change of members is under way, and its newest one is committed
    proven: bool  # as a leader: an entry of its own term is durable on a quorum
    routing_epoch: RoutingEpoch
    commit_index: LogIndex
    voters: frozenset[ReplicaId]
    others: frozenset[ReplicaId]  # members without a vote


class RepairPhase(StrEnum):
    """How far a repair is. It is durable before what it says is begun."""

    QUARANTINED = "Quarantined"  # nothing is known to be whole; peers are asked
    REJOINING = "Rejoining"  # empty, without a vote; the damaged files are set aside
    REMOVING = "Removing"  # the group is asked to remove it
    REMOVED = "Removed"  # it is no member: the group is asked to take it in
    REPAIRED = "Repaired"  # a voter that holds all that was committed; told to the control plane


class ReadmissionStep(StrEnum):
    """What comes next."""

    WAIT = "Wait"
    REMOVE = "Remove"
    ADD = "Add"
    DONE = "Done"
    GONE = "Gone"  # somebody else removed it: it has no place in the group any more


def believed_leader(
    standings: Mapping[ReplicaId, VoteStanding],
) -> tuple[ReplicaId, VoteStanding] | None:
    """Return the leader that a majority of its own voters follows, as far as these tell."""
    leading = [(each.term, number) for number, each in standings.items() if each.leads]
    if not leading:
        return None
    term, number = max(leading)
    leader = standings[number]
    if any(each.term > term for each in standings.values()):
        return None
    heard = sum(1 for voter in leader.voters if voter in standings)
    return (number, leader) if 2 * heard > len(leader.voters) else None


def plan_rejoin_epoch(
    standings: Mapping[ReplicaId, VoteStanding], me: ReplicaId
) -> RoutingEpoch | None:
    """Return the epoch to rejoin with, or None while nothing can be concluded.

    Every standing must have been asked for after this replica was fenced. A leader of the
    highest term among a majority, which has committed in that term and has no change under way,
    holds every change that this replica can have taken part in.
    """
    found = believed_leader({number: each for number, each in standings.items() if number != me})
    if found is None or not (found[1].settled and found[1].proven):
        return None
    return found[1].routing_epoch


def plan_readmission(
    leader: VoteStanding, me: ReplicaId, phase: RepairPhase, *, rejoining: bool, durable: LogIndex
) -> ReadmissionStep:
    """Say what a replica that has rejoined must ask for, by the word of a believed leader."""
    if not leader.settled:
        return ReadmissionStep.WAIT
    asked = phase in (RepairPhase.REMOVING, RepairPhase.REMOVED)
    if me not in leader.voters and me not in leader.others:
        return ReadmissionStep.ADD if asked else ReadmissionStep.GONE
    whole = durable >= leader.commit_index
    if me in leader.others:
        # After a removal this is the way back to a vote; before it there was none to lose.
        return ReadmissionStep.DONE if whole and not asked else ReadmissionStep.WAIT
    if not rejoining:  # it left and came back since: only that ends a rejoin
        return ReadmissionStep.DONE if whole else ReadmissionStep.WAIT
    return ReadmissionStep.WAIT if phase is RepairPhase.REMOVED else ReadmissionStep.REMOVE
