"""What a replica must not forget: one value, durable before any message that rests on it."""

from __future__ import annotations

from dataclasses import dataclass

from clustor.log.types import DurabilityMode, DurabilityModeEpoch, LogIndex, Term
from clustor.raft.membership import NO_MEMBERS, Configuration
from clustor.raft.types import NO_EPOCH, NO_INDEX, NO_ROUTING, NO_TERM, ReplicaId, RoutingEpoch


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
    membership: Configuration = NO_MEMBERS
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
