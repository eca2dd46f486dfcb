"""One Raft group on one replica: inputs change state, `take` says what must happen outside.

A peer cannot make an input raise: a stale or senseless message is ignored or answered. What
raises is `GroupMisuse` (the driver's fault) and AssertionError (ours).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from clustor.log.types import DurabilityMode, Entry, EntryKind, LogIndex
from clustor.raft.access import AccessGate
from clustor.raft.control_plane import ControlPlaneUpdate
from clustor.raft.core import Core
from clustor.raft.device import DeviceLatency
from clustor.raft.durability import Durability
from clustor.raft.election import Election
from clustor.raft.errors import GroupMisuse, MembershipRefused
from clustor.raft.fallback import GatedOperation, StrictFallback
from clustor.raft.following import Following
from clustor.raft.hard_state import HardState, MembershipAck, recovered_hard_state
from clustor.raft.hold import HardStateHold
from clustor.raft.idempotency import IdempotencyTable, KeyOf
from clustor.raft.leadership import Leadership, ProposalAccepted, ProposalRefused
from clustor.raft.membership import Membership
from clustor.raft.memory_log import MemoryLog
from clustor.raft.messages import Message
from clustor.raft.outbox import GroupOutbox
from clustor.raft.output import (
    EntriesFetch,
    FetchPurpose,
    NoteKind,
    Output,
    SnapshotInstall,
)
from clustor.raft.profiles import Profile
from clustor.raft.reads import (
    FailedClause,
    ReadKind,
    ReadRefusal,
    ReadRefused,
    ReadRequest,
    read_gate_predicate,
)
from clustor.raft.reception import Reception
from clustor.raft.reconfiguration import MembershipRequest
from clustor.raft.repair import Repair
from clustor.raft.replication import Replication
from clustor.raft.snapshots import SnapshotRequests
from clustor.raft.transition import Transition, decode_transition
from clustor.raft.types import (
    NO_INDEX,
    CommitVisibility,
    Draw,
    HardStateStored,
    LogStored,
    ReadId,
    Receipt,
    ReplicaId,
    ReplicaIdentity,
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
        self.access = AccessGate(core, self.durability, self.replication, self.fallback)
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
        self.snapshots = SnapshotRequests(core)
        self.reception = Reception(
            core,
            self.election,
            self.following,
            replication=self.replication,
            leadership=self.leadership,
            repair=self.repair,
        )
        self.device = DeviceLatency(profile.device)
        self.hold = HardStateHold(core)
        self._settled_commit = core.hard.membership_index
        self._outbox = GroupOutbox(
            core,
            access=self.access,
            durability=self.durability,
            following=self.following,
            hold=self.hold,
            keys=self.keys,
            leadership=self.leadership,
            repair=self.repair,
            replication=self.replication,
            snapshots=self.snapshots,
        )
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
        bootstrap: Membership | None = None,
        rejoin_epoch: RoutingEpoch | None = None,
        key_of: KeyOf | None = None,
    ) -> Group:
        """Start a replica from what its disk holds.

        Refuses (DataLost) a disk that lacks what the identity or the hard state says was there.
        `rejoin_epoch` starts such a replica all the same: empty, without a vote, until the group
        has made it a non-voter by a change of a later routing epoch.
        """
        log = log or MemoryLog()
        hard = recovered_hard_state(
            identity, hard_state, log, bootstrap=bootstrap, rejoin_epoch=rejoin_epoch
        )
        core = Core(identity, profile, hard=hard, log=log, draw=draw, now_ms=now_ms)
        core.commit_index = max(core.commit_index, applied_index)
        core.handed_index = core.applied_index = max(core.handed_index, applied_index)
        core.sm_durable_index = core.applied_index
        core.matched_index = core.commit_index
        return cls(core, key_of)

    # Inputs.

    def tick(self, now_ms: int, *, missed_ms: int = 0) -> None:
        """Let time pass. The group has no other clock.

        Ticks are at most 50 ms apart, and the first input after a pause of the process: what
        rests on time (leases, capabilities) is judged by the newest tick. `missed_ms` of the time
        since the last one this node did not run: nobody's silence is judged by it (C19).
        """
        core = self.core
        if now_ms < core.now_ms:
            raise GroupMisuse("time went backwards", now_ms=now_ms, was_ms=core.now_ms)
        core.now_ms = now_ms
        if missed_ms > 0:
            self.election.did_not_run(missed_ms)
            self.leadership.did_not_run(missed_ms)
        self.access.decide()
        if core.leads:
            self.leadership.on_tick()
        if core.leads:
            self.replication.on_tick()
        self.snapshots.on_tick()
        self.election.on_tick()
        self.repair.on_tick()
        core.reads_moved = True
        self._settle()

    def receive(self, message: Message) -> None:
        """Take a message from a peer whose identity the transport has proven."""
        if message.sender != self.core.id and self.reception.admit(message):
            self.reception.dispatch(message)
            self._settle()

    def propose(self, payloads: Sequence[bytes]) -> ProposalAccepted | ProposalRefused:
        """Append a batch of payloads, each an entry; `Output.acked` says when they are safe."""
        return self.leadership.propose(payloads)

    def propose_transition(self, transition: Transition) -> ProposalAccepted | ProposalRefused:
        """Append a change of the durability mode, with the epoch the control plane issued."""
        return self.leadership.propose_transition(transition)

    def allow_group_fsync(self, *, allowed: bool) -> None:
        """Open or close the gate of Group-Fsync (§14.2); it is open where nobody has gates."""
        self.leadership.group_fsync_allowed = allowed

    def propose_activation(self, payload: bytes) -> ProposalAccepted | ProposalRefused:
        """Append a DefineActivate entry: the machine changes its rules there."""
        return self.leadership.propose_activation(payload)

    def change_membership(self, request: MembershipRequest) -> LogIndex:
        """Begin a change of members, or raise MembershipRefused."""
        if not self.core.leads:
            raise MembershipRefused("not the leader", leader_id=self.core.leader_id)
        index = self.leadership.append(self.leadership.reconfiguration.begin(request))
        self._settle()
        return index

    def rehearse_membership(self, request: MembershipRequest) -> Membership:
        """Return what a change would lead to, or raise MembershipRefused; nothing begins."""
        if not self.core.leads:
            raise MembershipRefused("not the leader", leader_id=self.core.leader_id)
        return self.leadership.reconfiguration.rehearse(request)

    def survivability_failed(self) -> None:
        """Take the control plane's word that the change in flight must be rolled back."""
        self.leadership.reconfiguration.survivable = False

    def transfer(self, target: ReplicaId) -> ProposalRefused | None:
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
                if self.hold.stored(receipt):
                    self.election.hard_state_stored()
            case _:
                assert_never(receipt)
        self._settle()

    def applied(self, index: LogIndex, sm_durable_index: LogIndex | None = None) -> None:
        """Take the state machine's word on how far it has applied, and durably so."""
        core = self.core
        if index > core.handed_index:
            raise GroupMisuse("applied what was not handed out", index=index)
        core.applied_index = max(core.applied_index, index)  # a snapshot may have overtaken it
        core.sm_durable_index = max(core.sm_durable_index, sm_durable_index or LogIndex(0))
        core.log.evict_through(min(index, core.local_wal_durable_index))

    def read(self, request: ReadRequest) -> None:
        """Ask to read; the answer comes with an output."""
        linearizable = request.kind not in (ReadKind.SNAPSHOT_ONLY, ReadKind.QUORUM)
        if self.core.leads and linearizable and not self.leadership.membership_acknowledged():
            refusal = ReadRefusal.MEMBERSHIP_UNACKNOWLEDGED
            self.access.answers.append(ReadRefused(request.read_id, refusal))
            return
        self.access.read(request)
        self.core.reads_moved = True

    def standing_clause(self) -> FailedClause:
        """Name the clause that forbids reads now, also those that go through the log (C8)."""
        return self.access.standing()

    def read_gate_clause(self) -> FailedClause:
        """Evaluate §10.3's reference predicate, for `read_gate.failed_clause`."""
        return read_gate_predicate(self.access.gate_state())

    def is_gated(self, operation: GatedOperation) -> bool:
        """Say whether strict fallback forbids the operation, and count it if so (§9.1)."""
        return self.fallback.refuse(operation)

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
        if ack != known and (known is None or ack.routing_epoch >= known.routing_epoch):
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
        grouped = self.core.hard.durability_mode is DurabilityMode.GROUP_FSYNC
        healthy = grouped and not self._outbox.writes_strict()
        if wants_more and not (self.core.profile.allows_pre_durable and healthy):
            return False
        self.access.configured_visibility = visibility
        return True

    def durable_indices(self) -> dict[ReplicaId, int]:
        """Say how far each voter's log is durable; nothing where another leads."""
        core = self.core
        if not core.leads:
            return {}
        found: dict[ReplicaId, int] = {
            voter: core.progress[voter].durable_index
            for voter in core.config.voters
            if voter in core.progress
        }
        if core.id in core.config.voters:
            found[core.id] = core.local_wal_durable_index
        return found

    def fsync_sample(self, latency_ms: float) -> None:
        """Take the latency of one sync or probe of the device."""
        core = self.core
        if self.device.sample(latency_ms, core.now_ms):
            core.device_stalled = self.device.stalled
            stalled = NoteKind.DEVICE_STALLED if self.device.stalled else NoteKind.DEVICE_RECOVERED
            core.note(stalled, latency_ms=latency_ms)
        self.leadership.device_violations = self.device.violations

    def lateness(self, measured_ms: int) -> None:
        """Take how late this node is itself: the 99th percentile of ticks and appends (C19)."""
        widened = self.election.range.is_widened
        self.election.range.measured(measured_ms, self.core.now_ms)
        if self.election.range.is_widened != widened:
            low, high = self.election.range.bounds(high_rtt=False)
            self.core.note(
                NoteKind.ELECTIONS_WIDENED, measured_ms=measured_ms, low_ms=low, high_ms=high
            )

    def device_age(self, age_ms: int) -> None:
        """Take for how long the device has had its oldest write; no queue of ours counts (C20).

        Who never says so has no better measure than the age of the oldest batch.
        """
        self.durability.device_age_ms = age_ms

    def group_fsync_batch(self, batch_bytes: int, batch_ms: int) -> None:
        """Take the size and the age of a batch that Group-Fsync has synced."""
        self.leadership.group_fsync_batch(batch_bytes, batch_ms)

    def clock_alarm(self, *, raised: bool) -> None:
        """Take the clock guard's alarm: leases end, and a leader steps down (§10.2)."""
        self.access.clock_guard_alarm = self.core.clock_alarm = raised
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
        if ok and install.base_index > self.core.handed_index:
            self.keys.restore(idempotency)
        self.following.installed(install, ok=ok)
        self._settled_commit = max(self._settled_commit, self.core.log.base_index)
        self.snapshots.installed()
        self._settle()

    def snapshot_emitted(self, base_index: LogIndex, *, compacts: bool = True) -> None:
        """Take in that an authorised snapshot covers `base_index`; compaction follows it.

        One that was emitted by time alone does not compact: while the log is short, a replica
        that was away for a while catches up from entries, which cost less than a whole state.
        """
        self.snapshots.emitted(base_index, compacts=compacts)

    def request_snapshot(self) -> None:
        """Ask for a snapshot because the lag became structural (clustor §10.6)."""
        self.snapshots.request()

    # Output.

    def has_output(self) -> bool:
        """Say whether `take` has anything to give now; it is asked after every message.

        What time alone brings (a proof or a record of members that is due again) is not counted:
        it leaves with the next heartbeat, or with the answer to one.
        """
        return self._outbox.has_output()

    def take(self) -> Output:
        """Return all that must happen now, once; equal inputs give equal outputs."""
        return self._outbox.take()

    # Receipts, and what follows from them.

    def _log_stored(self, receipt: LogStored) -> None:
        core = self.core
        if self.durability.stored(receipt) and core.leader_id is not None and not core.leads:
            self.following.acknowledge(core.leader_id, news_only=True)

    def _settle(self) -> None:
        """Draw the conclusions of an input, in order: elections, watermarks, members.

        Reads are answered when the driver takes the output: once a turn, not once a message.
        """
        core = self.core
        if self.election.won:
            self._begin_term()
        if core.leads and core.progress_moved:
            core.progress_moved = False
            self._advance()
        if min(core.commit_index, core.local_wal_durable_index) > self._settled_commit:
            self._commit_system_entries()
        if self._config_seen is not core.config and self._config_seen != core.config:
            self._config_seen = core.config
            if core.leads:
                self.leadership.adopt_members()
        core.check()

    def _begin_term(self) -> None:
        self._outbox.begin_term()
        self.access.answers += self.access.queue.refuse_all(ReadRefusal.NOT_LEADER)
        self.access.answers += self.access.quorum_queue.refuse_all(ReadRefusal.NOT_LEADER)
        self.snapshots.lead()
        self.leadership.begin()

    def _advance(self) -> None:
        if self.durability.advance():
            self.core.reads_moved = True
        self.leadership.try_transfer()

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
