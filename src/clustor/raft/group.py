"""One Raft group on one replica: inputs change state, `take` says what must happen outside.

A peer cannot make an input raise: a stale or senseless message is ignored or answered. What
raises is `GroupMisuse` (the driver's fault) and AssertionError (ours).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from clustor.log.types import DurabilityModeEpoch, Entry, EntryKind, LogIndex
from clustor.raft.access import Access
from clustor.raft.compaction import CompactionState, compaction_floor
from clustor.raft.control_plane import ControlPlaneUpdate
from clustor.raft.core import Core
from clustor.raft.device import DeviceLatency
from clustor.raft.durability import EVERYTHING, Durability
from clustor.raft.election import Election
from clustor.raft.errors import DataLost, GroupMisuse, MembershipRefused
from clustor.raft.fallback import StrictFallback
from clustor.raft.following import Following
from clustor.raft.hard_state import HardState, MembershipAck
from clustor.raft.idempotency import IdempotencyTable, KeyOf
from clustor.raft.leadership import Accepted, Leadership, Refused
from clustor.raft.membership import Configuration, MemberKind, membership_digest
from clustor.raft.memory_log import MemoryLog
from clustor.raft.messages import (
    AppendEntries,
    AppendResponse,
    DurabilityAck,
    InstallSnapshot,
    Message,
    ModeConflict,
    Outbound,
    PreVoteRequest,
    PreVoteResponse,
    RepairEntries,
    RepairRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from clustor.raft.output import (
    Acked,
    EntriesFetch,
    FetchPurpose,
    NoteKind,
    Output,
    PersistHardState,
    SnapshotEmit,
    SnapshotInstall,
    SnapshotReason,
)
from clustor.raft.profiles import Profile
from clustor.raft.reads import ReadRequest
from clustor.raft.reconfiguration import MembershipRequest
from clustor.raft.repair import Repair
from clustor.raft.replication import Replication
from clustor.raft.transition import Transition, decode_transition
from clustor.raft.types import (
    NO_INDEX,
    CommitVisibility,
    Draw,
    HardStateSeq,
    HardStateStored,
    LogStored,
    ReadId,
    Receipt,
    ReplicaId,
    ReplicaIdentity,
    Role,
    RoutingEpoch,
)


class Group:
    """The machine. `core` is its state, for telemetry and tests to read, not to write."""

    def __init__(self, core: Core, key_of: KeyOf | None) -> None:
        self.core = core
        profile = core.profile
        self.fallback = StrictFallback(profile.fallback, core.draw)
        self.durability = Durability(core)
        self.election = Election(core, self.fallback)
        self.replication = Replication(core)
        self.following = Following(core, self.durability)
        self.access = Access(core, self.durability, self.replication, self.fallback)
        self.keys = IdempotencyTable(key_of, profile.idempotency_keys_max)
        self.leadership = Leadership(
            core,
            self.durability,
            self.replication,
            election=self.election,
            access=self.access,
            keys=self.keys,
        )
        self.repair = Repair(core)
        self.device = DeviceLatency(profile.device)
        self._hard_given = core.hard
        self._hard_seq = HardStateSeq(0)
        self._hard_stored_seq = HardStateSeq(0)
        self._held: list[Outbound] = []
        self._settled_commit = core.hard.membership_index
        self._acked = LogIndex(0)
        self._emit: SnapshotEmit | None = None
        self._emit_open = False
        self._config_seen = core.config
        self.access.decide()

    @classmethod
    def start(
        cls,
        identity: ReplicaIdentity,
        profile: Profile,
        draw: Draw,
        *,
        now_ms: int,
        hard_state: HardState | None = None,
        log: MemoryLog | None = None,
        applied_index: LogIndex = NO_INDEX,
        bootstrap: Configuration | None = None,
        rejoin_epoch: RoutingEpoch | None = None,
        key_of: KeyOf | None = None,
    ) -> Group:
        """Start a replica from what its disk holds.

        Refuses (DataLost) a disk that lacks what the identity or the hard state says was there.
        `rejoin_epoch` starts such a replica all the same: empty, without a vote, until the group
        has made it a non-voter by a change of a later routing epoch.
        """
        log = log or MemoryLog()
        hard = hard_state
        if rejoin_epoch is not None:
            hard = replace(hard or HardState(), rejoin_epoch=rejoin_epoch)
        elif identity.holds_data and hard is None:
            raise DataLost("the disk is empty where data was", replica_id=identity.replica_id)
        elif hard is not None and hard.membership_index > log.last_index:
            raise DataLost(
                "the log ends before a committed entry",
                committed=hard.membership_index,
                last_index=log.last_index,
            )
        if hard is None:
            config = bootstrap or Configuration()
            digest = membership_digest(config)
            ack = MembershipAck(RoutingEpoch(0), digest, DurabilityModeEpoch(0))
            hard = HardState(membership=config, membership_ack=ack)
        core = Core(identity, profile, hard=hard, log=log, draw=draw, now_ms=now_ms)
        core.commit_index = max(core.commit_index, applied_index)
        core.handed_index = core.applied_index = max(core.handed_index, applied_index)
        core.sm_durable_index = core.applied_index
        core.matched_index = core.commit_index
        return cls(core, key_of)

    # Inputs.

    def tick(self, now_ms: int) -> None:
        """Let time pass. The group has no other clock; 10 ms apart is fine, 50 ms the most."""
        core = self.core
        if now_ms < core.now_ms:
            raise GroupMisuse("time went backwards", now_ms=now_ms, was_ms=core.now_ms)
        core.now_ms = now_ms
        self.access.decide()
        if core.leads:
            self.leadership.on_tick()
        if core.leads:
            self.replication.on_tick()
        self._watch_snapshots()
        self.election.on_tick()
        self.repair.on_tick()
        core.reads_moved = True
        self._settle()

    def receive(self, message: Message) -> None:
        """Take a message from a peer whose identity the transport has proven."""
        if message.sender != self.core.id and self._admit(message):
            self._dispatch(message)
            self._settle()

    def propose(self, payloads: Sequence[bytes]) -> Accepted | Refused:
        """Append a batch of payloads, each an entry; `Output.acked` says when they are safe."""
        return self.leadership.propose(payloads)

    def propose_transition(self, transition: Transition) -> Accepted | Refused:
        """Append a change of the durability mode, with the epoch the control plane issued."""
        return self.leadership.propose_transition(transition)

    def change_membership(self, request: MembershipRequest) -> LogIndex:
        """Begin a change of members, or raise MembershipRefused."""
        if not self.core.leads:
            raise MembershipRefused("not the leader", leader_id=self.core.leader_id)
        index = self.leadership.append(self.leadership.reconfiguration.begin(request))
        self._settle()
        return index

    def survivability_failed(self) -> None:
        """Take the control plane's word that the change in flight must be rolled back."""
        self.leadership.reconfiguration.survivable = False

    def transfer(self, target: ReplicaId) -> Refused | None:
        """Hand the leadership over; None says that it began."""
        return self.leadership.transfer(target)

    def step_down(self, reason: str) -> None:
        """Give up leading once the term is old enough (structural lag, an operator)."""
        if self.core.leads:
            self.leadership.step_down_when_ripe(reason)

    def stored(self, receipt: Receipt) -> None:
        """Take a receipt of the disk: only now may what rests on it leave."""
        match receipt:
            case LogStored():
                self._log_stored(receipt)
            case HardStateStored():
                self._hard_state_stored(receipt)
            case _:
                assert_never(receipt)
        self._settle()

    def applied(self, index: LogIndex, sm_durable_index: LogIndex | None = None) -> None:
        """Take the state machine's word on how far it has applied, and durably so."""
        core = self.core
        if not core.applied_index <= index <= core.handed_index:
            raise GroupMisuse("applied what was not handed out", index=index)
        core.applied_index = index
        core.sm_durable_index = max(core.sm_durable_index, sm_durable_index or LogIndex(0))
        core.log.evict_through(min(index, core.local_wal_durable_index))

    def read(self, request: ReadRequest) -> None:
        """Ask to read; the answer comes with an output."""
        self.access.read(request)

    def read_finished(self, read_id: ReadId) -> None:
        """Say that a follower's snapshot-only read has been served."""
        self.access.finished(read_id)

    def control_plane(self, update: ControlPlaneUpdate) -> None:
        """Take what the control plane said."""
        self.access.on_control_plane(update)
        self.access.decide()
        self.core.reads_moved = True
        self._settle()

    def membership_acknowledged(self, ack: MembershipAck) -> None:
        """Take the control plane's record of a membership; it becomes part of the hard state."""
        known = self.core.hard.membership_ack
        if known is None or ack.routing_epoch >= known.routing_epoch:
            self.core.set_hard(membership_ack=ack)

    def proof_conflict_reconciled(self) -> None:
        """Take an operator's word that the control plane's proofs agree again."""
        self.access.control.reconcile()
        self.access.decide()

    def renew_fallback(self) -> None:
        """Take a verified Break-Glass override: the demotion timer starts anew."""
        self.fallback.renew(self.core.now_ms)

    def set_commit_visibility(self, visibility: CommitVisibility) -> bool:
        """Set the visibility; CommitAllowsPreDurable only where §10.3.1 allows it."""
        wants_more = visibility is CommitVisibility.COMMIT_ALLOWS_PRE_DURABLE
        if wants_more and not self.core.profile.allows_pre_durable:
            return False
        self.access.configured_visibility = visibility
        return True

    def fsync_sample(self, latency_ms: float) -> None:
        """Take the latency of one sync or probe of the device."""
        core = self.core
        if self.device.sample(latency_ms, core.now_ms):
            core.device_stalled = self.device.stalled
            stalled = NoteKind.DEVICE_STALLED if self.device.stalled else NoteKind.DEVICE_RECOVERED
            core.note(stalled, latency_ms=latency_ms)
        self.leadership.device_violations = self.device.violations

    def clock_alarm(self, *, raised: bool) -> None:
        """Take the clock guard's alarm: leases end, and a leader steps down (§10.2)."""
        self.access.clock_guard_alarm = raised
        if raised and self.core.leads:
            self.core.note(NoteKind.CLOCK_GUARD_ALARM)
            self.leadership.step_down("clock guard alarm")
            self._settle()

    def log_damaged(self, first: LogIndex, last: LogIndex) -> None:
        """Take in that the log cannot read these proven entries; peers are asked for them."""
        self.repair.damaged(first, last)
        if self.core.leads:
            self.leadership.step_down("the log is damaged")
        elif self.core.leader_id is not None:
            self.following.acknowledge(self.core.leader_id)
        self._settle()

    def log_repaired(self, last: LogIndex) -> None:
        """Take the log's word that a RepairWrite is durable through `last`."""
        self.repair.repaired(last)
        if self.core.leader_id is not None and not self.core.leads:
            self.following.acknowledge(self.core.leader_id)
        self._settle()

    def fetched(self, fetch: EntriesFetch, entries: list[Entry]) -> None:
        """Take entries that were read from disk on request."""
        if fetch.purpose is FetchPurpose.REPAIR:
            self.repair.send_entries(fetch.replica_id, entries)
        else:
            self.replication.fetched(fetch.replica_id, entries)

    def snapshot_installed(
        self, install: SnapshotInstall, *, ok: bool, idempotency: bytes = b""
    ) -> None:
        """Take the end of an installation: the snapshot is durable, or it failed."""
        if self.core.installing != install.base_index:
            raise GroupMisuse("no such installation", base_index=install.base_index)
        if ok:
            self.keys.restore(idempotency)
        self.following.installed(install, ok=ok)
        self._settled_commit = max(self._settled_commit, self.core.log.base_index)
        self._settle()

    def snapshot_emitted(self, base_index: LogIndex) -> None:
        """Take in that an authorised snapshot covers `base_index`, and compact behind it."""
        self._emit_open = False
        floor = self.compaction_floor(base_index)
        if floor > self.core.log.base_index:
            self.core.log.compact_through(floor)
            self.core.heal_through(floor)

    def compaction_floor(self, snapshot_base_index: LogIndex) -> LogIndex:
        """Return how far the log may be deleted, given an authorised snapshot (C5)."""
        core = self.core
        learning = [p for p in core.progress.values() if p.kind is not MemberKind.VOTER]
        learners = min((p.match_index for p in learning), default=NO_INDEX)
        return compaction_floor(
            CompactionState(
                min(snapshot_base_index, core.applied_index),
                learners,
                core.quorum_applied_index,
                core.quorum_sm_durable_index,
            )
        )

    # Output.

    def take(self) -> Output:
        """Return all that must happen now, once; equal inputs give equal outputs."""
        core = self.core
        if core.leads:
            self.replication.fill()
        output = Output(
            hard_state=self._take_hard_state(),
            appends=self.durability.take_appends(strict=self.fallback.asserted),
            messages=self._take_messages(),
            apply=self._take_apply(),
        )
        if core.leads:
            self._take_leader(output)
        self._take_rest(output)
        return output

    def _take_hard_state(self) -> PersistHardState | None:
        if self.core.hard == self._hard_given:
            return None
        self._hard_given = self.core.hard
        self._hard_seq = HardStateSeq(self._hard_seq + 1)
        return PersistHardState(self._hard_seq, self.core.hard)

    def _take_messages(self) -> list[Outbound]:
        """Release what may leave: nothing but pre-votes while a hard state is not durable."""
        core = self.core
        messages, core.outbox = core.outbox, []
        if self._hard_seq == self._hard_stored_seq:
            if self._held:
                messages, self._held = self._held + messages, []
            return messages
        free = (PreVoteRequest, PreVoteResponse)
        self._held += [outbound for outbound in messages if not isinstance(outbound[1], free)]
        return [outbound for outbound in messages if isinstance(outbound[1], free)]

    def _take_apply(self) -> list[Entry]:
        core = self.core
        limit = self._apply_limit()
        if limit <= core.handed_index:
            return []
        entries = core.log.slice(core.handed_index + 1, limit, EVERYTHING)
        core.handed_index = limit
        self.keys.applied(entries)
        return entries

    def _apply_limit(self) -> LogIndex:
        """Apply what is committed and durable: on a quorum for a leader, here for a follower."""
        core = self.core
        if not core.leads:
            limit = min(core.commit_index, core.local_wal_durable_index)
        elif self.access.visibility is CommitVisibility.DURABLE_ONLY:
            limit = core.wal_committed_index
        else:
            limit = core.commit_index
        if core.damaged is not None and core.damaged[0] > core.handed_index:
            limit = min(limit, LogIndex(core.damaged[0] - 1))
        return limit

    def _take_leader(self, output: Output) -> None:
        core = self.core
        if core.wal_committed_index > self._acked:
            self._acked = core.wal_committed_index
            output.wal_committed_index = core.wal_committed_index
            output.acked = Acked(core.hard.term, core.wal_committed_index)
        output.publish_proof = self.access.proof_to_publish()
        output.record_membership = self.leadership.membership_to_record()
        if self.replication.fetches:
            output.fetches, self.replication.fetches = self.replication.fetches, []
        if self.replication.snapshot_sends:
            output.snapshot_sends = self.replication.snapshot_sends
            self.replication.snapshot_sends = []

    def _take_rest(self, output: Output) -> None:
        core = self.core
        if self.access.answers:
            output.reads, self.access.answers = self.access.answers, []
        if core.notes:
            output.notes, core.notes = core.notes, []
        if self.repair.fetches:
            output.fetches = output.fetches + self.repair.fetches
            self.repair.fetches = []
        output.role, core.role_change = core.role_change, None
        output.install, self.following.install = self.following.install, None
        output.repair, self.repair.write = self.repair.write, None
        output.emit_snapshot, self._emit = self._emit, None

    # Terms.

    def _admit(self, message: Message) -> bool:
        """Apply Raft's rule of terms; return whether the message is to be handled."""
        term = self.core.hard.term
        if isinstance(message, PreVoteRequest | RepairRequest | RepairEntries):
            return True
        if message.term > term:
            return self._admit_newer(message)
        if message.term == term:
            return True
        return self._answer_older(message)

    def _admit_newer(self, message: Message) -> bool:
        core = self.core
        if isinstance(message, PreVoteResponse) and message.vote_granted:
            return True  # the term that was asked for, not the sender's
        if isinstance(message, VoteRequest) and self.election.is_disruptive(message):
            return False
        leads = isinstance(message, AppendEntries | InstallSnapshot)
        core.become_follower(message.term, message.sender if leads else None, "a newer term")
        return True

    def _answer_older(self, message: Message) -> bool:
        """Tell an old leader or candidate what term it is; let go of the rest."""
        core = self.core
        if isinstance(message, VoteRequest):
            core.send(message.sender, VoteResponse(core.hard.term, core.id, vote_granted=False))
        elif isinstance(message, AppendEntries):
            self.following.refuse_older(message)
        elif isinstance(message, InstallSnapshot):
            core.send(
                message.sender,
                SnapshotResponse(core.hard.term, core.id, message.base_index, ok=False),
            )
        elif isinstance(message, DurabilityAck) and core.leads:
            core.note(NoteKind.STALE_DURABILITY_ACK, sender=message.sender, term=message.term)
        return False

    def _dispatch(self, message: Message) -> None:
        match message:
            case DurabilityAck():
                if self.core.leads:
                    self.replication.on_ack(message)
            case AppendEntries():
                self._on_append(message)
            case AppendResponse():
                if self.core.leads:
                    self.replication.on_response(message)
            case PreVoteRequest():
                self.election.on_pre_vote_request(message)
            case PreVoteResponse():
                self.election.on_pre_vote_response(message)
            case VoteRequest():
                self.election.on_vote_request(message)
            case VoteResponse():
                self.election.on_vote_response(message)
            case InstallSnapshot():
                self._on_install(message)
            case SnapshotResponse():
                if self.core.leads:
                    self.replication.on_snapshot_response(message)
            case TimeoutNow():
                self.election.on_timeout_now(message)
            case ModeConflict():
                self._on_mode_conflict(message)
            case RepairRequest():
                self._on_repair_request(message)
            case RepairEntries():
                self.repair.on_entries(message)
            case _:
                assert_never(message)

    def _on_append(self, message: AppendEntries) -> None:
        if self._follow(message.sender, message.durability_mode_epoch):
            self.election.heard_leader(message)
            self.following.on_append(message)

    def _on_install(self, message: InstallSnapshot) -> None:
        if self._follow(message.sender, message.durability_mode_epoch):
            self.core.last_leader_ms = self.core.now_ms
            self.election.draw_deadline()
            self.following.on_install(message)

    def _follow(self, leader: ReplicaId, epoch: DurabilityModeEpoch) -> bool:
        """Follow the leader of this term, unless its epoch is older than one committed here."""
        core = self.core
        if core.leads:
            return False  # two leaders of one term cannot be; a forged one changes nothing
        if self.following.conflicts(leader, epoch):
            return False
        if core.role is not Role.FOLLOWER or core.leader_id != leader:
            core.become_follower(core.hard.term, leader, "a leader was heard")
        return True

    def _on_mode_conflict(self, message: ModeConflict) -> None:
        """Step down: a voter has committed a transition that this log does not hold."""
        core = self.core
        if message.durability_mode_epoch > core.log_epoch and core.role is not Role.FOLLOWER:
            core.note(
                NoteKind.DURABILITY_MODE_EPOCH_CONFLICT,
                sender=message.sender,
                theirs=message.durability_mode_epoch,
                ours=core.log_epoch,
            )
            self.leadership.step_down("an older durability mode epoch")

    def _on_repair_request(self, message: RepairRequest) -> None:
        core = self.core
        progress = core.progress.get(message.sender)
        if core.leads and progress is not None and message.first_index <= core.log.base_index:
            self.replication.offer_snapshot(message.sender, progress)
        else:
            self.repair.on_request(message)

    # Receipts, and what follows from them.

    def _log_stored(self, receipt: LogStored) -> None:
        core = self.core
        if self.durability.stored(receipt) and core.leader_id is not None and not core.leads:
            self.following.acknowledge(core.leader_id, news_only=True)

    def _hard_state_stored(self, receipt: HardStateStored) -> None:
        if receipt.seq > self._hard_seq:
            raise GroupMisuse("a receipt for a hard state that was never given", seq=receipt.seq)
        self._hard_stored_seq = max(self._hard_stored_seq, receipt.seq)
        if self._hard_stored_seq == self._hard_seq and self.core.hard == self._hard_given:
            self.election.hard_state_stored()

    def _settle(self) -> None:
        """Draw the conclusions of an input, in order: elections, watermarks, members, reads."""
        core = self.core
        if self.election.won:
            self._begin_term()
        if core.leads and core.progress_moved:
            core.progress_moved = False
            self._advance()
        if min(core.commit_index, core.local_wal_durable_index) > self._settled_commit:
            self._commit_system_entries()
        if core.leads:
            self._settle_leader()
        elif len(self.access.queue):
            self.access.advance()
        core.check()

    def _begin_term(self) -> None:
        self._acked = LogIndex(0)
        self._emit_open = False
        self.leadership.begin()

    def _advance(self) -> None:
        if self.durability.advance():
            self.core.reads_moved = True
        self.leadership.try_transfer()

    def _settle_leader(self) -> None:
        core = self.core
        if self._config_seen != core.config:
            self._config_seen = core.config
            self.leadership.adopt_members()
        if core.reads_moved:
            core.reads_moved = False
            self.access.advance()

    def _commit_system_entries(self) -> None:
        """Obey the system entries that became committed, and are durable here.

        What the hard state says is committed must be on this disk: a start without it is a loss.
        """
        core = self.core
        limit = min(core.commit_index, core.local_wal_durable_index)
        before, self._settled_commit = self._settled_commit, limit
        if not core.log.system or core.log.system[-1].index <= before:
            return
        for entry in list(core.log.system):
            if before < entry.index <= limit:
                self._commit_system_entry(entry)

    def _commit_system_entry(self, entry: Entry) -> None:
        core = self.core
        if entry.kind is EntryKind.DURABILITY_TRANSITION:
            transition = decode_transition(entry.payload)
            if transition.durability_mode_epoch > core.hard.durability_mode_epoch:
                core.set_hard(
                    durability_mode=transition.to_mode,
                    durability_mode_epoch=transition.durability_mode_epoch,
                )
                core.note(NoteKind.DURABILITY_MODE_CHANGED, to=transition.to_mode.name)
        elif entry.kind in (EntryKind.MEMBERSHIP_CHANGE, EntryKind.MEMBERSHIP_ROLLBACK):
            self.leadership.reconfiguration.on_committed(entry)
            if core.leads:
                self.leadership.adopt_members()
                self.leadership.on_committed()

    # Snapshots.

    def _watch_snapshots(self) -> None:
        """Ask for a snapshot when the log is long, or when a replica is far behind."""
        if self._emit_open:
            return
        core, numbers = self.core, self.core.profile.replication
        reason: SnapshotReason | None = None
        if core.log.bytes_total >= numbers.snapshot_log_bytes_target:
            reason = SnapshotReason.LOG_BYTES
        elif any(self.lag_bytes(member) >= numbers.snapshot_lag_bytes for member in core.progress):
            reason = SnapshotReason.FOLLOWER_LAG
        if reason is not None and core.applied_index > core.log.base_index:
            self._emit_open = True
            self._emit = SnapshotEmit(reason)

    def lag_bytes(self, member: ReplicaId) -> int:
        """Return how many committed bytes a replica lacks, as far as this leader knows."""
        core = self.core
        if member == core.id:
            return 0
        match = core.progress[member].match_index
        return core.log.bytes_through(core.commit_index) - core.log.bytes_through(match)
