"""What a replica must not forget: one value, durable before any message that rests on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from clustor.log.types import DurabilityMode, DurabilityModeEpoch, LogIndex, Term
from clustor.raft.errors import DataLost
from clustor.raft.membership import NO_MEMBERS, Membership, membership_digest
from clustor.raft.memory_log import MemoryLog
from clustor.raft.types import (
    NO_EPOCH,
    NO_INDEX,
    NO_ROUTING,
    NO_TERM,
    ReplicaId,
    ReplicaIdentity,
    RoutingEpoch,
)


@dataclass(frozen=True, slots=True)
class MembershipAck:
    """The control plane's word that it recorded a membership (clustor §9.9)."""

    routing_epoch: RoutingEpoch
    membership_digest: bytes
    durability_mode_epoch: DurabilityModeEpoch


@dataclass(frozen=True, slots=True)
class HardState:
    """Term, vote, committed membership and epochs.

    `membership` is the newest *committed* configuration, adopted at `membership_index`; newer
    ones are in the log. A log that ends before `durable_commit_index` has lost something.
    `durability_mode` and its epoch are those of the newest committed transition. `rejoin_epoch`
    is set where the disk was lost, to the control plane's routing epoch of that moment: this
    replica may have voted and acknowledged things that it no longer knows, so it does not vote
    until a change of a later epoch has made it a non-voter.
    """

    term: Term = NO_TERM
    voted_for: ReplicaId | None = None
    membership: Membership = NO_MEMBERS
    membership_index: LogIndex = NO_INDEX
    durable_commit_index: LogIndex = NO_INDEX  # committed, and on this disk, when it was written
    routing_epoch: RoutingEpoch = NO_ROUTING  # of the change that made this membership
    membership_ack: MembershipAck | None = None
    durability_mode: DurabilityMode = DurabilityMode.STRICT
    durability_mode_epoch: DurabilityModeEpoch = NO_EPOCH
    rejoin_epoch: RoutingEpoch | None = None

    @property
    def rejoining(self) -> bool:
        return self.rejoin_epoch is not None


def recovered_hard_state(
    identity: ReplicaIdentity,
    hard: HardState | None,
    log: MemoryLog,
    *,
    bootstrap: Membership | None,
    rejoin_epoch: RoutingEpoch | None,
) -> HardState:
    """Return the hard state to start with, or raise DataLost where the disk lacks something."""
    if rejoin_epoch is not None:
        hard = replace(hard or HardState(), rejoin_epoch=rejoin_epoch)
    elif hard is None and (identity.holds_data or log.last_index):
        raise DataLost("no hard state where data was", replica_id=identity.replica_id)
    if hard is None:
        config = bootstrap or NO_MEMBERS
        ack = MembershipAck(NO_ROUTING, membership_digest(config), NO_EPOCH)
        return HardState(membership=config, membership_ack=ack)
    if hard.durable_commit_index > log.last_index:
        raise DataLost(
            "the log ends before a committed entry",
            committed=hard.durable_commit_index,
            last_index=log.last_index,
        )
    if log.last_term > hard.term:
        raise DataLost(
            "the log is of a later term than the hard state",
            log_term=log.last_term,
            term=hard.term,
        )
    return hard
