"""A stand-in for the control plane: proofs, routing epochs, and the operator who mends groups.

It is a port of the replicas, and a fake: one voice that never lies, but can be silent.
"""

from __future__ import annotations

from random import Random

from clustor.raft.control_plane import ControlPlaneUpdate, VerifiedProof
from clustor.raft.errors import MembershipRefused
from clustor.raft.hard_state import MembershipAck
from clustor.raft.membership import Change, ChangeKind
from clustor.raft.reconfiguration import MembershipRequest, Preflight
from clustor.raft.types import DurabilityTuple, ReplicaId, RoutingEpoch
from clustor.replica import ReplicaOutput
from clustor.sim.driver import ReplicaDriver, World
from clustor.sim.scenario import MS
from clustor.sim.timeline import Microseconds

_REFRESH = 100 * MS
_OPERATE = 150 * MS
_GOOD = Preflight(utilization_after=0.1, survivable=True, placement_digest=b"placement")


class FakeControlPlane:
    """What one group hears of the control plane, and what it does to the group's members."""

    def __init__(self, cluster: World, group: int, voters: set[ReplicaId], rng: Random) -> None:
        self._cluster = cluster
        self._group = group
        self._rng = rng
        self._proof: DurabilityTuple | None = None
        self._proof_at = Microseconds(0)
        self._ack: MembershipAck | None = None
        self.down_until = Microseconds(0)
        self.routing_epoch = RoutingEpoch(0)
        self.wanted = voters  # who should vote
        self.needs_reset: set[ReplicaId] = set()  # lost their data, and must lose their vote
        cluster.later(1, self._refresh)
        cluster.later(_OPERATE, self._operate)

    @property
    def is_down(self) -> bool:
        return self._cluster.timeline.now < self.down_until

    # Proofs and acknowledgements.

    def on_output(self, seat: ReplicaDriver, output: ReplicaOutput) -> None:
        proven, members = output.publish_proof, output.record_membership
        if proven is None and members is None:
            return

        def arrive() -> None:
            if self.is_down:
                return
            if proven is not None and (self._proof is None or proven.rank() > self._proof.rank()):
                self._proof, self._proof_at = proven, self._cluster.timeline.now
            if members is not None:
                self._ack = members
            self._tell(seat)

        self._cluster.later(self._rng.randint(1 * MS, 20 * MS), arrive)

    def _tell(self, seat: ReplicaDriver) -> None:
        if seat.replica is None:
            return
        proof = None
        if self._proof is not None:
            age_ms = (self._cluster.timeline.now - self._proof_at) // MS
            proof = VerifiedProof(self._proof, age_ms)
        seat.replica.control_plane(ControlPlaneUpdate(proof=proof))
        if self._ack is not None:
            seat.replica.membership_acknowledged(self._ack)
        seat.turn()

    def _refresh(self) -> None:
        if not self.is_down:
            for node in self._cluster.nodes.values():
                self._tell(node.seats[self._group])
        self._cluster.later(_REFRESH, self._refresh)

    # The operator.

    def settled(self, leader: ReplicaDriver) -> bool:
        """Say whether the group has the members that it should have."""
        config = leader.running.group.core.config
        return (
            not self.needs_reset
            and config.voters == self.wanted
            and not config.outgoing
            and not config.learners
        )

    def _operate(self) -> None:
        self._cluster.later(_OPERATE, self._operate)
        leader = self._cluster.leader(self._group)
        if self.is_down or leader is None:
            return
        changes = self._next_changes(leader)
        if not changes:
            return
        self.routing_epoch = RoutingEpoch(self.routing_epoch + 1)
        request = MembershipRequest(changes, self.routing_epoch, _GOOD)
        try:
            leader.running.change_membership(request)
        except MembershipRefused:
            return
        self._cluster.count("membership_changes_begun")
        leader.turn()

    def _next_changes(self, leader: ReplicaDriver) -> tuple[Change, ...]:
        core = leader.running.group.core
        config = core.config
        if config.outgoing or core.config_index > core.commit_index:
            return ()
        for replica_id in sorted(self.needs_reset):
            if replica_id in config.members:
                return (Change(ChangeKind.REMOVE, replica_id),)
            self.needs_reset.discard(replica_id)  # by a committed change: it may join anew
        missing = sorted(self.wanted - config.voters)
        if missing:
            return (Change(ChangeKind.ADD_VOTER, missing[0]),)
        surplus = sorted((config.voters | config.learners) - self.wanted)
        return (Change(ChangeKind.REMOVE, surplus[0]),) if surplus else ()
