"""What a leader does beside replicating: proposals, transfers, and knowing when to stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from clustor.log.group_fsync import GroupFsyncClause
from clustor.log.types import DurabilityMode, Entry, EntryKind, LogIndex, Term
from clustor.raft.access import AccessGate
from clustor.raft.control_plane import CacheState
from clustor.raft.core import Core
from clustor.raft.durability import EVERYTHING, Durability
from clustor.raft.election import Election
from clustor.raft.fallback import GatedOperation
from clustor.raft.group_fsync import (
    GroupFsyncBudget,
    GroupFsyncState,
    can_enable_group_fsync,
    failed_clause,
)
from clustor.raft.hard_state import MembershipAck
from clustor.raft.idempotency import IdempotencyTable
from clustor.raft.membership import MemberKind, Membership, membership_digest
from clustor.raft.messages import TimeoutNow
from clustor.raft.output import NoteKind
from clustor.raft.progress import adopt_members
from clustor.raft.quorum import VoteResult
from clustor.raft.reconfiguration import Reconfiguration, ReconfigurationPhase, SystemEntry
from clustor.raft.replication import Replication
from clustor.raft.transition import Transition, encode_transition
from clustor.raft.types import ReplicaId, Role


class ProposalRefusal(StrEnum):
    NOT_LEADER = "NotLeader"
    TRANSFERRING = "Transferring"
    OVERLOADED = "Overloaded"
    TOO_LARGE = "TooLarge"
    MEMBERSHIP_UNACKNOWLEDGED = "MembershipUnacknowledged"
    MODE_CONFLICT = "ModeConflict"
    STRICT_FALLBACK = "ModeConflict(strict_fallback)"
    GROUP_FSYNC_QUARANTINE = "GroupFsyncQuarantine"
    JOINT_CONFIGURATION = "JointConfiguration"
    FENCED = "Fenced"  # by an operator, before another region is promoted
    NOT_A_VOTER = "NotAVoter"
    TOO_YOUNG = "MinLeaderTerm"


@dataclass(slots=True)
class ProposalAccepted:
    """The entries are in the leader's log; `Output.acked` tells when they are safe.

    New entries stand at `first_index` … `last_index` (none if `last_index < first_index`).
    `repeated` maps the position of a payload whose idempotency key was known to its index.
    """

    term: Term
    first_index: LogIndex
    last_index: LogIndex
    repeated: dict[int, LogIndex] | None = None


@dataclass(slots=True)
class ProposalRefused:
    reason: ProposalRefusal
    leader_id: ReplicaId | None = None


class Leadership:
    def __init__(
        self,
        core: Core,
        durability: Durability,
        replication: Replication,
        *,
        election: Election,
        access: AccessGate,
        keys: IdempotencyTable,
    ) -> None:
        self._core = core
        self._durability = durability
        self._replication = replication
        self._election = election
        self._access = access
        self._keys = keys
        self.reconfiguration = Reconfiguration(core)
        self.group_fsync = GroupFsyncBudget(core.profile.group_fsync)
        self.incident_flags: set[str] = set()
        self.group_fsync_allowed = True
        """Whether the gate of Group-Fsync is open; whoever drives the group says so."""
        self.fenced = ""
        """The fence under which nothing is taken or acknowledged; empty: there is none."""
        self._transfer_to: ReplicaId | None = None
        self._transfer_until_ms = 0
        self._record_due_ms = 0
        self.device_violations = 0
        self._acknowledged: Membership | None = None  # members known to be recorded
        self._step_down_due: str | None = None  # a reason that waits for min_leader_term_ms

    # Beginning and ending.

    def begin(self) -> None:
        """Lead the term that was won: tell everyone, and close the terms before it."""
        core = self._core
        self._election.won = False
        core.become(Role.LEADER, core.id, "elected")
        core.leader_since_ms = core.now_ms
        core.term_start = LogIndex(core.log.last_index + 1)
        core.progress.clear()
        self.adopt_members()
        self._transfer_to = self._step_down_due = None
        self._durability.lead()
        self._replication.lead()
        self._keys.lead(self._unapplied())
        self.reconfiguration.lead()
        self._access.fallback.leader_seen()
        self.append(SystemEntry(EntryKind.NO_OP, b""))
        self._access.decide()

    def _unapplied(self) -> list[Entry]:
        log = self._core.log
        first = max(self._core.handed_index + 1, log.cache_first)
        return log.slice(first, log.last_index, EVERYTHING)

    def adopt_members(self) -> None:
        core = self._core
        # Below the base there is nothing to probe with: a follower that has it needs no snapshot.
        probe_from = max(core.log.last_index, LogIndex(core.log.base_index + 1))
        adopt_members(core.progress, core.config, probe_from, core.now_ms)

    def step_down(self, reason: str) -> None:
        """Give up leading now, and let others have a term before campaigning again."""
        core = self._core
        core.become_follower(core.hard.term, None, reason)
        self._election.hold_off()

    def step_down_when_ripe(self, reason: str) -> None:
        """Give up leading, but not before the term has lasted `min_leader_term_ms`."""
        if self._step_down_due is None:
            self._step_down_due = reason

    # Proposals.

    def propose(self, payloads: Sequence[bytes]) -> ProposalAccepted | ProposalRefused:
        core = self._core
        refusal = self._refusal(payloads)
        if refusal is not None:
            return ProposalRefused(refusal, core.leader_id)
        if self._keys.in_use:
            return self._propose_keyed(payloads)
        return self._append_payloads(payloads)

    def refusal(self) -> ProposalRefusal | None:
        """Say why a small write would be refused now; None: it would be taken."""
        return self._refusal(())

    def _refusal(self, payloads: Sequence[bytes]) -> ProposalRefusal | None:
        core = self._core
        if not core.leads:
            return ProposalRefusal.NOT_LEADER
        if self._transfer_to is not None:
            return ProposalRefusal.TRANSFERRING
        if self.fenced:
            return ProposalRefusal.FENCED
        log = core.log
        uncommitted = log.bytes_total - log.bytes_through(core.commit_index)
        if uncommitted > core.profile.replication.uncommitted_bytes_max:
            return ProposalRefusal.OVERLOADED
        if not self.membership_acknowledged():
            return ProposalRefusal.MEMBERSHIP_UNACKNOWLEDGED
        if payloads and max(map(len, payloads)) > core.profile.payload_bytes_max:
            return ProposalRefusal.TOO_LARGE
        return None

    def membership_acknowledged(self) -> bool:
        """Say whether the control plane's word on the members in force is persisted (§9.9)."""
        hard = self._core.hard
        if (
            self._acknowledged is hard.membership
            or self.reconfiguration.phase is not ReconfigurationPhase.IDLE
        ):
            return True  # in mid-change the members before it were acknowledged
        ack = hard.membership_ack
        if ack is None or ack.membership_digest != membership_digest(hard.membership):
            return False
        self._acknowledged = hard.membership
        return True

    def membership_to_record(self) -> MembershipAck | None:
        """Return what the control plane must confirm before clients are served, once a period."""
        core = self._core
        if self.membership_acknowledged() or core.now_ms < self._record_due_ms:
            return None
        self._record_due_ms = core.now_ms + core.profile.control_plane.proof_publish_period_ms
        hard = core.hard
        digest = membership_digest(hard.membership)
        return MembershipAck(hard.routing_epoch, digest, hard.durability_mode_epoch)

    def _append_payloads(self, payloads: Sequence[bytes]) -> ProposalAccepted:
        core = self._core
        first = LogIndex(core.log.last_index + 1)
        entries = core.log.append_payloads(core.hard.term, payloads)
        if entries:
            self._durability.appended(first)
            if self._access.fallback.asserted:
                self._access.fallback.pending_entries += len(entries)
        return ProposalAccepted(core.hard.term, first, core.log.last_index)

    def _propose_keyed(self, payloads: Sequence[bytes]) -> ProposalAccepted:
        """Append what is new; give a repeated key the index of its first time."""
        repeated: dict[int, LogIndex] = {}
        fresh: list[bytes] = []
        next_index = LogIndex(self._core.log.last_index + 1)
        for position, payload in enumerate(payloads):
            key, known = self._keys.lookup(payload)
            if known is not None:
                repeated[position] = known
                continue
            if key:
                self._keys.proposed(key, next_index)
            fresh.append(payload)
            next_index = LogIndex(next_index + 1)
        accepted = self._append_payloads(fresh)
        accepted.repeated = repeated or None
        return accepted

    def append(self, proposal: SystemEntry) -> LogIndex:
        """Append one entry of the leader's own, and obey it if it changes the members."""
        core = self._core
        index = LogIndex(core.log.last_index + 1)
        core.log.append([Entry(core.hard.term, index, proposal.payload, proposal.kind)])
        self._durability.appended(index)
        if proposal.kind is not EntryKind.NO_OP:
            core.read_configuration()
            self.adopt_members()
            core.progress_moved = True
        return index

    # Durability modes.

    def propose_transition(self, transition: Transition) -> ProposalAccepted | ProposalRefused:
        """Append a DurabilityTransition; its epoch was issued by the control plane."""
        core = self._core
        if not core.leads:
            return ProposalRefused(ProposalRefusal.NOT_LEADER, core.leader_id)
        if transition.durability_mode_epoch <= core.log_epoch:
            return ProposalRefused(ProposalRefusal.MODE_CONFLICT)
        if transition.to_mode is DurabilityMode.GROUP_FSYNC:
            refusal = self._group_fsync_refusal()
            if refusal is not None:
                return ProposalRefused(refusal)
        payload = encode_transition(transition)
        index = self.append(SystemEntry(EntryKind.DURABILITY_TRANSITION, payload))
        return ProposalAccepted(core.hard.term, index, index)

    def propose_activation(self, payload: bytes) -> ProposalAccepted | ProposalRefused:
        """Append a DefineActivate; the payload is the machine's to read."""
        core = self._core
        if not core.leads:
            return ProposalRefused(ProposalRefusal.NOT_LEADER, core.leader_id)
        index = self.append(SystemEntry(EntryKind.DEFINE_ACTIVATE, payload))
        return ProposalAccepted(core.hard.term, index, index)

    def _group_fsync_refusal(self) -> ProposalRefusal | None:
        if self._access.fallback.refuse(GatedOperation.GROUP_FSYNC):
            return ProposalRefusal.STRICT_FALLBACK
        if self.group_fsync_clause() is GroupFsyncClause.NONE:
            return None
        return ProposalRefusal.GROUP_FSYNC_QUARANTINE

    def group_fsync_clause(self) -> GroupFsyncClause:
        """Name what forbids this leader to enable Group-Fsync now; asking changes nothing."""
        profile = self._core.profile
        if not profile.allows_group_fsync:
            return GroupFsyncClause.PROFILE
        if not self.group_fsync_allowed:
            return GroupFsyncClause.FEATURE_GATE
        return failed_clause(self.group_fsync_state(), profile.group_fsync)

    def group_fsync_state(self) -> GroupFsyncState:
        core = self._core
        modes = [
            core.io_writer_mode if voter == core.id else core.progress[voter].io_writer_mode
            for voter in core.config.all_voters
        ]
        return GroupFsyncState(
            self._access.fallback.asserted,
            self._access.cache,
            core.now_ms,
            self.group_fsync.downgrade_backoff_deadline_ms,
            modes,
            self.device_violations,
            self.incident_flags,
        )

    def group_fsync_batch(self, batch_bytes: int, batch_ms: int) -> None:
        """Take the measure of one Group-Fsync batch; overruns in a row put it off for a while."""
        numbers = self._core.profile.group_fsync
        if batch_bytes > numbers.batch_bytes_max or batch_ms > numbers.batch_ms_max:
            self.group_fsync.overran(self._core.now_ms)
        else:
            self.group_fsync.kept()

    def must_write_strict(self) -> bool:
        """Say whether this leader clamps its own disk to Strict, whatever the log's mode is.

        A mode that runs may go on while the cache is only Cached (§6.3); everything else that
        forbids to enable Group-Fsync also forbids to go on with it.
        """
        if self._access.fallback.asserted:
            return True
        if self._core.hard.durability_mode is DurabilityMode.STRICT:
            return False
        if not self.group_fsync_allowed:
            return True
        state = self.group_fsync_state()
        state.cache_state = CacheState.FRESH
        return not can_enable_group_fsync(state, self._core.profile.group_fsync)

    # Transfers.

    def transfer(self, target: ReplicaId) -> ProposalRefused | None:
        """Hand the leadership to `target`: it gets all entries, then is told to campaign."""
        core = self._core
        refusal = self.transfer_refusal(target)
        if refusal is not None:
            not_leader = refusal is ProposalRefusal.NOT_LEADER
            return ProposalRefused(refusal, core.leader_id if not_leader else None)
        self._transfer_to = target
        self._transfer_until_ms = core.now_ms + core.profile.election_timeout_ms[1]
        self.try_transfer()
        return None

    def transfer_refusal(self, target: ReplicaId) -> ProposalRefusal | None:
        """Say why a transfer would be refused; asking changes nothing."""
        core = self._core
        if not core.leads:
            return ProposalRefusal.NOT_LEADER
        if core.config.is_joint or self.reconfiguration.phase is ReconfigurationPhase.ROLLBACK:
            return ProposalRefusal.JOINT_CONFIGURATION
        if target == core.id or core.config.kind_of(target) is not MemberKind.VOTER:
            return ProposalRefusal.NOT_A_VOTER
        if core.now_ms - core.leader_since_ms < core.profile.min_leader_term_ms:
            return ProposalRefusal.TOO_YOUNG
        return None

    def try_transfer(self) -> None:
        """Send TimeoutNow once the target holds everything, durably."""
        core = self._core
        if self._transfer_to is None:
            return
        progress = core.progress.get(self._transfer_to)
        if progress is not None and progress.match_index == core.log.last_index:
            core.send(self._transfer_to, TimeoutNow(core.hard.term, core.id))

    # Every tick.

    def on_tick(self) -> None:
        core = self._core
        if not self._quorum_is_there():
            self.step_down("no quorum answers")
            return
        if self._access.fallback.must_demote(core.now_ms):
            self._access.fallback.bar(self._access.control.proof, core.now_ms)
            core.note(NoteKind.STRICT_FALLBACK_DEMOTED)
            self.step_down("strict fallback lasted too long")
            return
        self._watch_device()
        ripe = core.now_ms - core.leader_since_ms >= core.profile.min_leader_term_ms
        if self._step_down_due is not None and ripe:
            self.step_down(self._step_down_due)
            return
        self._watch_transfer()
        for progress in core.progress.values():
            progress.watch_lag(core.commit_index, core.now_ms)
        proposal = self.reconfiguration.on_tick()
        if proposal is not None:
            self.append(proposal)

    def did_not_run(self, missed_ms: int) -> None:
        """Leave out a time in which this node did nothing: answers may wait for it (C19)."""
        core = self._core
        for progress in core.progress.values():
            progress.last_contact_ms = min(core.now_ms, progress.last_contact_ms + missed_ms)

    def _quorum_is_there(self) -> bool:
        return self._core.config.vote(self.heard()) is VoteResult.WON

    def heard(self) -> dict[ReplicaId, bool]:
        """Say of each voter whether it answered within an election timeout."""
        core = self._core
        since_ms = core.now_ms - self._election.range.bounds(high_rtt=False)[1]
        return {
            member: member == core.id or core.progress[member].last_contact_ms >= since_ms
            for member in core.config.all_voters
        }

    def _watch_device(self) -> None:
        core = self._core
        if core.config.all_voters == {core.id}:
            return  # nobody else can lead: to go would help no write, and end every connection
        stuck = self._durability.stuck_ms() >= core.profile.election_timeout_ms[0]
        if self._step_down_due is None and (core.device_stalled or stuck):
            core.note(NoteKind.DEVICE_STALLED, outstanding=stuck)
            self.step_down_when_ripe("the disk is stalled")

    def _watch_transfer(self) -> None:
        if self._transfer_to is not None and self._core.now_ms >= self._transfer_until_ms:
            self._core.note(NoteKind.TRANSFER_ABORTED, target=self._transfer_to)
            self._transfer_to = None
        self.try_transfer()

    def on_committed(self) -> None:
        """Stop leading a group that this replica is no longer a voter of."""
        core = self._core
        if core.config_index <= core.commit_index and not core.is_voter:
            self.step_down("removed from the voters")
