"""Membership changes in the four phases of clustor §9.9, driven by the leader.

Preflight (the control plane's verdict is checked), catch-up (joiners are learners), joint
consensus, finalize; and rollback from each. The log carries the goal of a change, so a leader
that takes over goes on where the log stands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from clustor.log.types import Entry, EntryKind, LogIndex
from clustor.raft.core import Core
from clustor.raft.errors import MembershipRefused
from clustor.raft.membership import (
    Change,
    Membership,
    MembershipEntry,
    decode_membership,
    encode_membership,
    enter_joint,
    leave_joint,
)
from clustor.raft.output import NoteKind
from clustor.raft.profiles import MembershipNumbers
from clustor.raft.types import ReplicaId, RoutingEpoch


class ReconfigurationPhase(StrEnum):
    IDLE = "Idle"
    CATCH_UP = "CatchUp"
    JOINT = "Joint"
    FINALIZE = "Finalize"
    ROLLBACK = "Rollback"


@dataclass(frozen=True, slots=True)
class Preflight:
    """The control plane's verdict on a placement, before anything is changed."""

    utilization_after: float
    survivable: bool
    placement_digest: bytes
    override_ref: str = ""


@dataclass(frozen=True, slots=True)
class MembershipRequest:
    changes: tuple[Change, ...]
    routing_epoch: RoutingEpoch
    preflight: Preflight


@dataclass(slots=True)
class SystemEntry:
    """A system entry that the leader must append next."""

    kind: EntryKind
    payload: bytes


class Reconfiguration:
    """The leader's plan for one change at a time. All of it can be read back from the log."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.phase = ReconfigurationPhase.IDLE
        self._origin = Membership()  # the members before the change; a rollback's goal
        self._goal: Membership | None = None
        self._routing_epoch = RoutingEpoch(0)
        self._placement_digest = b""
        self._since_ms = 0
        self._structural_since_ms: int | None = None
        self._joint_committed: LogIndex | None = None
        self._noop_due_ms = 0
        self.survivable = True

    @property
    def goal(self) -> Membership | None:
        """The members that the change under way leads to; None: nothing is under way."""
        return None if self.phase is ReconfigurationPhase.IDLE else self._goal

    @property
    def _numbers(self) -> MembershipNumbers:
        return self._core.profile.membership

    # Phase 1.

    def begin(self, request: MembershipRequest) -> SystemEntry:
        """Check the preflight and return the first entry of the change, or refuse it."""
        core = self._core
        goal = self.rehearse(request)
        self._origin, self._goal = core.config, goal
        self._routing_epoch = request.routing_epoch
        self._placement_digest = request.preflight.placement_digest
        self.survivable = True
        joining = self._goal.members - core.config.members
        if not joining:
            return self._enter_joint()
        learning = replace(
            core.config,
            learners=core.config.learners | (joining - self._goal.observers),
            observers=core.config.observers | (joining & self._goal.observers),
        )
        self._enter(ReconfigurationPhase.CATCH_UP)
        return self._change(learning)

    def rehearse(self, request: MembershipRequest) -> Membership:
        """Return the members that a change would lead to, or refuse it; nothing begins."""
        core = self._core
        if self.phase is not ReconfigurationPhase.IDLE or core.config_index > core.commit_index:
            raise MembershipRefused("another change is under way", phase=self.phase)
        if core.wal_committed_index < core.term_start:
            raise MembershipRefused("this term has committed nothing yet", term=core.hard.term)
        self._check_preflight(request.preflight)
        if request.routing_epoch <= core.hard.routing_epoch:
            raise MembershipRefused("an old routing epoch", routing_epoch=request.routing_epoch)
        goal = leave_joint(enter_joint(core.config, request.changes))
        if goal == core.config:
            raise MembershipRefused("nothing would change")
        return goal

    def _check_preflight(self, preflight: Preflight) -> None:
        if preflight.override_ref:
            return
        if preflight.utilization_after > self._numbers.utilization_max:
            raise MembershipRefused("too full", utilization=preflight.utilization_after)
        if not preflight.survivable:
            raise MembershipRefused("the group would not survive a loss")

    # Phases 2 to 4.

    def on_tick(self) -> SystemEntry | None:
        """Move the change on by at most one entry."""
        core = self._core
        if self.phase is ReconfigurationPhase.IDLE or core.config_index > core.commit_index:
            return None
        match self.phase:
            case ReconfigurationPhase.CATCH_UP:
                return self._catch_up()
            case ReconfigurationPhase.JOINT:
                return self._joint()
            case _:
                return None

    def _catch_up(self) -> SystemEntry | None:
        core = self._core
        assert self._goal is not None
        behind = tuple(sorted(member for member in self._joining() if not self._caught_up(member)))
        if not behind:
            return self._enter_joint()
        late = core.now_ms - self._since_ms >= self._numbers.catchup_timeout_ms
        if late or not self.survivable:
            reason = "catch-up timed out" if late else "survivability failed"
            return self._roll_back(reason, behind)
        return None

    def _joining(self) -> frozenset[ReplicaId]:
        """Name the voters that the change brings.

        Only they are waited for, and only their lag takes a change back: one that was a voter
        before and is down would else forbid that another takes its place, until it is back.
        Whether enough voters are there is what the joint commits themselves prove.
        """
        assert self._goal is not None
        return self._goal.voters - self._origin.voters

    def _caught_up(self, member: ReplicaId) -> bool:
        """Either guard is enough, unless policy wants both."""
        core = self._core
        progress = core.progress.get(member)
        if member == core.id:
            return True
        if progress is None or progress.match_index == 0:
            return False  # nothing came back from it: an empty log is not a short lag
        log, match = core.log, progress.match_index
        lag_bytes = log.bytes_through(core.commit_index) - log.bytes_through(match)
        within = match >= log.base_index and lag_bytes <= self._numbers.catchup_slack_bytes
        near = match >= log.last_index - self._numbers.catchup_index_slack
        return (within and near) if self._numbers.catchup_needs_both else (within or near)

    def _enter_joint(self) -> SystemEntry:
        core = self._core
        goal = self._goal
        assert goal is not None
        self._enter(ReconfigurationPhase.JOINT)
        old = core.config
        joint = Membership(
            voters=goal.voters,
            outgoing=old.voters,
            learners=goal.learners - old.voters,
            learners_next=goal.learners & old.voters,
            observers=goal.observers,
            auto_leave=True,
        )
        return self._change(joint)

    def _joint(self) -> SystemEntry | None:
        """Wait for the window of commits under both quorums, and for lag to be gone."""
        core = self._core
        if self._joint_committed is None:
            self._joint_committed = core.commit_index
        structural = self._structural()
        if structural or not self.survivable:
            return self._maybe_roll_back(structural)
        self._structural_since_ms = None
        if core.wal_committed_index - self._joint_committed >= self._numbers.finalize_window:
            self._enter(ReconfigurationPhase.FINALIZE)
            return self._change(leave_joint(core.config))
        if core.now_ms >= self._noop_due_ms and core.log.last_index == core.commit_index:
            # An idle group would never fill the window: it is filled with nothing.
            self._noop_due_ms = core.now_ms + core.profile.heartbeat_ms
            return SystemEntry(EntryKind.NO_OP, b"")
        return None

    def _structural(self) -> tuple[ReplicaId, ...]:
        """Name the joining voters that lag beyond either bound of §9.9's finalize clause."""
        core, numbers = self._core, self._numbers
        late = []
        for member in sorted(self._joining() - {core.id}):
            progress = core.progress[member]
            lag = core.log.bytes_through(core.commit_index) - core.log.bytes_through(
                progress.match_index
            )
            since = progress.behind_since_ms
            lasted = since is not None and core.now_ms - since >= numbers.lag_duration_max_ms
            if lag >= numbers.lag_bytes_max or lasted:
                late.append(member)
        return tuple(late)

    def _maybe_roll_back(self, structural: tuple[ReplicaId, ...]) -> SystemEntry | None:
        core = self._core
        if self._structural_since_ms is None:
            self._structural_since_ms = core.now_ms
        lasted_ms = core.now_ms - self._structural_since_ms
        if not self.survivable:
            return self._roll_back("survivability failed", structural)
        if lasted_ms > self._numbers.rollback_grace_ms:
            return self._roll_back("structural lag", structural)
        return None

    def _roll_back(self, reason: str, failing: tuple[ReplicaId, ...]) -> SystemEntry:
        """Return the entry that goes back; it holds once the quorum in force committed it."""
        goal = self._goal
        assert goal is not None
        self._enter(ReconfigurationPhase.ROLLBACK)
        entry = MembershipEntry(
            before=self._origin,
            after=self._origin,
            goal=None,
            routing_epoch=self._routing_epoch,
            placement_digest=self._placement_digest,
            reason=reason,
            failing=failing or tuple(sorted(goal.members - self._origin.members)),
        )
        return SystemEntry(EntryKind.MEMBERSHIP_ROLLBACK, encode_membership(entry))

    # What the log commits.

    def on_committed(self, entry: Entry) -> None:
        """Take a committed membership entry into the hard state; every replica does this."""
        core = self._core
        if entry.index <= core.hard.membership_index:
            return
        decoded = decode_membership(entry.payload)
        core.set_hard(
            membership=decoded.after,
            membership_index=entry.index,
            routing_epoch=decoded.routing_epoch,
        )
        core.readmit(decoded.routing_epoch)
        core.read_configuration()
        if not core.leads:
            return
        if entry.kind is EntryKind.MEMBERSHIP_ROLLBACK:
            self._enter(ReconfigurationPhase.IDLE)
            core.note(NoteKind.MEMBERSHIP_ROLLED_BACK, index=entry.index, reason=decoded.reason)
        elif decoded.goal is not None and decoded.after == decoded.goal:
            self._enter(ReconfigurationPhase.IDLE)
            core.note(NoteKind.MEMBERSHIP_FINALIZED, index=entry.index, members=str(core.config))

    def lead(self) -> None:
        """Read from the log where a change stands, and go on with it."""
        core = self._core
        self._enter(ReconfigurationPhase.IDLE)
        self.survivable = True
        newest = self._newest_entry()
        if newest is None:
            self._resume_compacted()
            return
        entry, decoded = newest
        self._origin, self._goal = decoded.before, decoded.goal
        self._routing_epoch = decoded.routing_epoch
        self._placement_digest = decoded.placement_digest
        if entry.kind is EntryKind.MEMBERSHIP_ROLLBACK:
            self._enter(ReconfigurationPhase.ROLLBACK)
        elif core.config.is_joint:
            self._enter(ReconfigurationPhase.JOINT)
        elif decoded.goal is not None and decoded.after != decoded.goal:
            self._enter(ReconfigurationPhase.CATCH_UP)
        elif entry.index > core.commit_index:
            self._enter(ReconfigurationPhase.FINALIZE)

    def _resume_compacted(self) -> None:
        """Finish a joint phase whose entry a snapshot has taken: its members say where it goes."""
        config = self._core.config
        if config.is_joint:
            self._goal = leave_joint(config)
            self._origin = Membership(
                voters=config.outgoing,
                learners=config.learners - config.outgoing,
                observers=config.observers,
            )
            self._routing_epoch = self._core.hard.routing_epoch
            self._enter(ReconfigurationPhase.JOINT)

    def _newest_entry(self) -> tuple[Entry, MembershipEntry] | None:
        core = self._core
        for entry in reversed(core.log.system):
            if entry.kind in (EntryKind.MEMBERSHIP_CHANGE, EntryKind.MEMBERSHIP_ROLLBACK):
                decoded = decode_membership(entry.payload)
                settled = entry.index <= core.commit_index and (
                    entry.kind is EntryKind.MEMBERSHIP_ROLLBACK or decoded.after == decoded.goal
                )
                return None if settled else (entry, decoded)
        return None

    def _enter(self, phase: ReconfigurationPhase) -> None:
        if phase is not self.phase:
            self._core.note(NoteKind.MEMBERSHIP_PHASE, phase=phase)
        self.phase = phase
        self._since_ms = self._core.now_ms
        self._structural_since_ms = None
        self._joint_committed = None
        if phase is ReconfigurationPhase.IDLE:
            self._goal = None

    def _change(self, after: Membership) -> SystemEntry:
        entry = MembershipEntry(
            before=self._origin,
            after=after,
            goal=self._goal,
            routing_epoch=self._routing_epoch,
            placement_digest=self._placement_digest,
        )
        return SystemEntry(EntryKind.MEMBERSHIP_CHANGE, encode_membership(entry))
