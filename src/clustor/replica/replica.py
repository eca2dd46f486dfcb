"""One group on one replica as a whole: Raft, its log on disk, the machine, its snapshots.

The replica is a machine itself: inputs change it, `take` says what must happen outside. It
decides nothing that the group decides. Its own part is the order: a receipt reaches the group
when the whole plan is durable, a reply leaves when the group allows it and the machine has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, cast

from clustor.log.log import Log
from clustor.log.steps import FileName, Storage, plan_replace
from clustor.log.types import Entry, EntryKind, LogId, LogIndex, PartitionId
from clustor.raft.control_plane import ControlPlaneUpdate
from clustor.raft.group import Group
from clustor.raft.hard_state import MembershipAck
from clustor.raft.leadership import ProposalAccepted, ProposalRefusal
from clustor.raft.leadership import ProposalRefused as GroupRefused
from clustor.raft.membership import Membership
from clustor.raft.messages import Message
from clustor.raft.output import (
    LogAppend,
    Output,
    PersistHardState,
    RoleChange,
    SnapshotInstall,
)
from clustor.raft.reads import ReadKind, ReadRequest
from clustor.raft.reconfiguration import MembershipRequest
from clustor.raft.transition import Transition
from clustor.raft.types import (
    HardStateStored,
    ReadId,
    ReplicaId,
    ReplicaIdentity,
    Role,
    RoutingEpoch,
)
from clustor.replica.activation import Activation, apply_entry, commands_of, encode_activation
from clustor.replica.disk_queue import DiskQueue
from clustor.replica.documents import plan_hard_state, plan_identity
from clustor.replica.emission_clock import EmissionClock
from clustor.replica.emitting import Shelf
from clustor.replica.fetching import Fetching
from clustor.replica.machine import DefinableMachine, StateMachine, StreamMachine
from clustor.replica.opening import Opened, prepare_new, prepare_open, prepare_rejoin
from clustor.replica.proposals import Proposals
from clustor.replica.read_gate import ReadGate
from clustor.replica.reading import DiskReader
from clustor.replica.settings import ReplicaSettings
from clustor.replica.shadow import Shadow, copy_under
from clustor.replica.snapshots import EmissionClause, ReplicaSnapshots
from clustor.replica.streams import ReplicaStreams
from clustor.replica.transfer import Transfer
from clustor.replica.types import (
    DiskToken,
    DiskWork,
    Home,
    NotLeader,
    ReadToken,
    ReplicaOutput,
    RequestId,
    RequestsRefused,
)
from clustor.replica.writing import Writing
from clustor.snapshot.catalog import Catalog
from clustor.streams.errors import UnknownStream
from clustor.streams.master import choose_master
from clustor.streams.view import StreamView

PROBE_FILE = FileName("device.probe")


class Replica:
    """The driver of one group. `group` and `log` are for telemetry and tests to look at."""

    def __init__(self, settings: ReplicaSettings, opened: Opened, now_ms: int) -> None:
        self.settings = settings
        self.identity = opened.identity
        self.findings = opened.findings
        self.truncated_bytes = opened.truncated_bytes
        self.log: Log = opened.log
        self.machine: StateMachine = opened.machine
        self.applied_index: LogIndex = opened.view.base_index
        self.group = Group.start(
            opened.identity,
            settings.profile,
            settings.draw,
            now_ms=now_ms,
            hard_state=opened.hard,
            log=opened.view,
            applied_index=opened.view.base_index,
        )
        self.apply_seconds: list[float] = []
        """How long each batch took to apply, for who has given a clock, and empties this."""
        self.shadow: Shadow | None = None
        """A definition on trial: it is fed with all that is applied here."""
        self.failed: str | None = None
        self.is_damaged = False  # why it failed: bytes are not what was written
        self.fault = ""  # why it failed: an error of our own, in a driver that contains those
        self.ready = False
        """Whether the first plan is durable and no disk has failed since."""
        self._disk = DiskQueue()
        self._reader = DiskReader()
        self.streams: ReplicaStreams | None = None
        """The streams of a machine that has some."""
        if (made := opened.streams) is not None:
            self.streams = ReplicaStreams(made.store, settings.stream_policies, self.stream_damaged)
        self._snapshots = ReplicaSnapshots(
            Shelf(
                settings,
                opened.identity.partition_id,
                opened.catalog,
                self._disk,
                self._reader,
                self.streams,
            ),
            self.group,
            self.log,
            self._installed,
        )
        self._fetching = Fetching(
            settings.keys, self.group, self.log, self._reader, self.log_damaged
        )
        self._writing = Writing(settings, self.group, self.log, self._disk)
        self._unplanned: list[LogAppend] = []
        self._unapplied: list[Entry] = []  # a follower's: nobody waits for them
        self._probe_due_ms = 0
        self._proposals = Proposals(settings.profile.payload_bytes_max, settings.waiting_bytes_max)
        self._read_gate = ReadGate()
        self._role: RoleChange | None = None
        self._failure_told = False
        self._writes_identity = opened.writes_identity
        self._disk.submit(opened.plan, self._mended)

    # Beginnings. Each returns a replica whose first output is what must be durable first; until
    # that is done it neither speaks nor listens.

    @classmethod
    def create(
        cls,
        settings: ReplicaSettings,
        partition: Storage,
        node: Storage,
        *,
        replica_id: ReplicaId,
        partition_id: PartitionId,
        log_id: LogId,
        bootstrap: Membership | None,
        now_ms: int,
    ) -> Self:
        """Make a new replica: a member of the `bootstrap` configuration, or one that is to join.

        `log_id` is 16 random bytes, drawn for this call. Raises ReplicaExists, ReplicaDamaged.
        """
        identity = ReplicaIdentity(replica_id, partition_id, log_id, holds_data=True)
        return cls(settings, prepare_new(settings, identity, partition, node, bootstrap), now_ms)

    @classmethod
    def open(
        cls, settings: ReplicaSettings, partition: Storage, node: Storage, *, now_ms: int
    ) -> Self:
        """Open the replica that was here, after a stop or a crash.

        Raises NoReplica, DataLost, ReplicaDamaged: nothing was changed then, and `rejoin` is
        the way on. KeyUnavailable and UnsupportedFormat say nothing about the data.
        """
        return cls(settings, prepare_open(settings, partition, node), now_ms)

    @classmethod
    def rejoin(
        cls,
        settings: ReplicaSettings,
        partition: Storage,
        node: Storage,
        *,
        log_id: LogId,
        rejoin_epoch: RoutingEpoch,
        now_ms: int,
    ) -> Self:
        """Start empty where data was lost or damaged; what is left is set aside, not deleted.

        The replica has no vote until the group made it a non-voter by a change of a routing
        epoch above `rejoin_epoch`, the control plane's newest now. `log_id` is drawn anew.
        """
        opened = prepare_rejoin(settings, partition, node, log_id=log_id, rejoin_epoch=rejoin_epoch)
        return cls(settings, opened, now_ms)

    def _mended(self) -> None:
        """Write the identity after the data: it says that there is some."""
        if self._writes_identity:
            self._writes_identity = False
            self._disk.submit(plan_identity(self.identity), self._mended, home=Home.NODE)
        else:
            self.ready = self.failed is None

    @property
    def leads(self) -> bool:
        return self.ready and self.group.core.leads

    @property
    def leader_id(self) -> ReplicaId | None:
        return self.group.core.leader_id

    def backlog(self) -> tuple[int, int]:
        """Return how many requests are under way here, and how many bytes they take."""
        core, proposals = self.group.core, self._proposals
        safe = core.log.bytes_through(max(core.wal_committed_index, self.applied_index))
        waiting = proposals.waiting_bytes + core.log.bytes_total - safe
        if self.streams is not None:
            waiting += self.streams.overdue_bytes  # who writes faster than the files must wait
        return proposals.unanswered, waiting

    # Inputs.

    def tick(self, now_ms: int, *, missed_ms: int = 0, device_age_ms: int | None = None) -> None:
        """Let time pass; every 10 ms is fine, 50 ms the most.

        `missed_ms` is how long of it the driver did not run, and had read nothing; `device_age_ms`
        for how long the disk has had what it has not done yet. Only the driver can know either.
        """
        if self.ready:
            self.catch_up(bytes_max=self.settings.batch_bytes_max)
            if device_age_ms is not None:
                self.group.device_age(device_age_ms)
            self.group.tick(now_ms, missed_ms=missed_ms)
            self._snapshots.tick(now_ms, self.machine)
            if self.streams is not None:
                self.streams.tick(now_ms)
            self._probe_device()

    def lateness(self, measured_ms: int) -> None:
        """Take how late the driver is, by the 99th percentile of its ticks and appends (C19)."""
        if self.ready:
            self.group.lateness(measured_ms)

    def _probe_device(self) -> None:
        """Sync something while the device counts as stalled: nothing else may ever be written."""
        core = self.group.core
        if core.device_stalled and not len(self._disk) and core.now_ms >= self._probe_due_ms:
            self._probe_due_ms = core.now_ms + core.profile.heartbeat_ms
            self._disk.submit(plan_replace(PROBE_FILE, b"probe"), lambda: None)

    def receive(self, message: Message) -> None:
        """Take a group's message from a peer whose identity the transport has proven."""
        if self.ready:
            self.group.receive(message)

    def receive_transfer(self, sender: ReplicaId, message: Transfer) -> None:
        """Take a message of the snapshot stream, from a peer whose identity is proven."""
        if self.ready:
            self._snapshots.receive(sender, message)

    def propose(self, request_id: RequestId, command: bytes) -> None:
        """Let a command wait for the next entry; its outcome comes with an output."""
        core = self.group.core
        if core.leads and self.ready:
            self._proposals.add(request_id, command)
        else:
            self._proposals.outcomes.append(NotLeader([request_id], self.leader_id))

    def read(
        self, request_id: RequestId, deadline_ms: int, kind: ReadKind = ReadKind.READ_INDEX
    ) -> None:
        """Ask to read what is newest; an answer comes with an output, at the deadline at last.

        `SNAPSHOT_ONLY` asks for no more than what is applied here, and is answered at once. Who
        has served one says so by `read_finished`.
        """
        if not self.ready:
            self._read_gate.deny(request_id, self.leader_id)
            return
        self._read_gate.ask(request_id)
        self.group.read(ReadRequest(ReadId(request_id), kind, deadline_ms))

    def read_finished(self, request_id: RequestId) -> None:
        """Say that a read was served: it cannot be revoked any more."""
        self.group.read_finished(ReadId(request_id))

    def control_plane(self, update: ControlPlaneUpdate) -> None:
        """Take what the control plane said."""
        if self.ready:
            self.group.control_plane(update)

    def proof_conflict_reconciled(self) -> None:
        """Take the control plane's word that an operator has cleared a conflict of proofs."""
        if self.ready:
            self.group.proof_conflict_reconciled()

    def set_fence(self, fence: str) -> None:
        """Take or lift a DR fence (quantumqtt §17): while it stands nothing is acknowledged.

        What is in the log and not answered yet may become durable, and nobody is told so.
        """
        leadership = self.group.leadership
        if fence and not leadership.fenced:
            self._proposals.lose_open()
        leadership.fenced = fence

    def membership_acknowledged(self, ack: MembershipAck) -> None:
        """Take the control plane's record of a membership."""
        if self.ready:
            self.group.membership_acknowledged(ack)

    def change_membership(self, request: MembershipRequest) -> LogIndex:
        """Begin a change of members, or raise MembershipRefused."""
        return self.group.change_membership(request)

    def propose_transition(self, transition: Transition) -> ProposalAccepted | GroupRefused:
        """Append a change of the durability mode, with the epoch the control plane issued.

        The ledger is fenced at its entry. In Group-Fsync small batches wait for each other, a few
        milliseconds at the most; see `write_delayed`.
        """
        return self.group.propose_transition(transition)

    # Definitions.

    def propose_activation(self, activation: Activation) -> ProposalAccepted | GroupRefused:
        """Append the entry at which a definition comes into force on every replica."""
        return self.group.propose_activation(encode_activation(activation))

    def begin_shadow(
        self, definition: bytes
    ) -> Callable[[], tuple[DefinableMachine | None, int, int]] | None:
        """Put a definition on trial, and return the job that copies the state for it.

        What the job returns goes to `Shadow.copied` of the shadow that stands here now. None:
        this machine has no definition.
        """
        if not self.ready or not isinstance(self.machine, DefinableMachine):
            return None
        self.shadow = Shadow(definition, self.applied_index)
        return copy_under(self.settings.new_machine, self.machine.snapshot(), definition)

    def transfer(self, target: ReplicaId) -> GroupRefused | None:
        """Hand the leadership over; None says that it began."""
        return self.group.transfer(target)

    def emit_snapshot(self) -> None:
        """Emit a snapshot of the applied state: an operator asks, or the keys were rotated.

        New segments and snapshots use the newest epoch of `keys` by themselves; an old epoch
        can be retired when a snapshot under the new one covers what was written under it.
        """
        self._snapshots.emit()

    def seal_segment(self) -> None:
        """Close the open segment, so that it can be archived; the next append opens another."""
        if self.ready:
            self._disk.submit(self.log.plan_seal(), lambda: None)

    def hold_log(self, through: LogIndex | None) -> None:
        """Keep every entry above `through`, whatever a snapshot covers; None lets go of it.

        Who asks must let go some day: until then the log grows, and no newer snapshot is emitted.
        """
        self.group.snapshots.hold_through = through

    def allow_deltas(self, *, allowed: bool) -> None:
        """Open or close the gate of incremental snapshots; it is shut at first."""
        self._snapshots.deltas_allowed = allowed

    @property
    def emission_clock(self) -> EmissionClock | None:
        """When time makes a snapshot due, and how its chain stands; None: it never does."""
        return self._snapshots.clock

    @property
    def catalog(self) -> Catalog:
        """The authorised snapshots."""
        return self._snapshots.catalog

    def stream_view(
        self, partition: int, from_index: int, bytes_max: int | None = None
    ) -> StreamView:
        """Take a view of a stream's partition, for a `StreamFileReader` in any thread.

        It reaches over all that was applied here: that is committed, and never taken back; less
        where the partition's own policy asks for more members than a majority. Raises
        UnknownStream, and StreamOutOfRange with the start and the next index there are.
        """
        if self.streams is None:
            raise UnknownStream("this group has no streams", partition=partition)
        return self.streams.view(partition, from_index, bytes_max, self._durable_indices)

    def _durable_indices(self) -> dict[ReplicaId, int]:
        """Say how far each voter's log is durable; nothing where another leads."""
        core = self.group.core
        if not self.leads:
            return {}
        mine = self.identity.replica_id
        return {
            voter: core.local_wal_durable_index
            if voter == mine
            else core.progress[voter].durable_index
            for voter in core.config.voters
            if voter == mine or voter in core.progress
        }

    def stream_master(self, partition: int) -> ReplicaId | None:
        """Return the partition's master among the voters, by its policy. Raises UnknownStream."""
        if self.streams is None:
            raise UnknownStream("this group has no streams", partition=partition)
        files = self.streams.store.files(partition)
        voters = self.group.core.config.voters
        return choose_master(files.definition.master_policy(), files.partition, voters)

    def take_stream_news(self) -> set[int]:
        """Return the partitions of streams that changed since this or `take` was last asked."""
        return set() if self.streams is None else self.streams.take_news()

    def install_progress(self) -> tuple[int, int]:
        """Return how many chunks an installation lacks, and how many it has; 0 where none runs."""
        return self._snapshots.install_progress()

    def emission_clause(self) -> EmissionClause | None:
        """Name what keeps a snapshot from being emitted now; the emission asks the same."""
        return self._snapshots.emission_clause(self.applied_index)

    # The disk's word.

    def disk_done(self, token: DiskToken, sync_ms: float = 0.0) -> None:
        """Take the receipt of a whole plan; `sync_ms` is what its slowest sync took."""
        if self.failed is None:
            self._disk.finish(token)
            self.group.fsync_sample(sync_ms)

    def stream_disk_done(self, token: DiskToken) -> None:
        """Take the receipt of a whole plan of the streams' lane."""
        if self.failed is None:
            assert self.streams is not None
            self.streams.disk.finish(token)

    def stream_disk_failed(self, token: DiskToken, error: Exception) -> None:
        """Stop for good, as for a plan of the log: what the files hold is not known any more."""
        self._fail(f"the disk failed at plan {token} of the streams: {error}")

    def write_delayed(self, number: int, waited_ms: float) -> None:
        """Take the end of an output's `delay`: what waited is written now.

        A batch that waited longer than it may is an overrun; a few in a row put Group-Fsync off.
        """
        if self.ready:
            self._writing.write_delayed(number, waited_ms)

    def disk_failed(self, token: DiskToken, error: Exception) -> None:
        """Stop for good: a step failed, and what is on disk is not known any more.

        Whatever this replica acknowledged before stands. Nothing leaves it from now on; only
        `open`, which reads the disk, may start it again.
        """
        self._fail(f"the disk failed at plan {token}: {error}")

    def disk_read(self, token: ReadToken, found: object) -> None:
        """Take what a job read."""
        if self.failed is None:
            self._reader.finish(token, found)

    def disk_read_failed(self, token: ReadToken, error: Exception) -> None:
        """Take the error that a job ended with."""
        if self.failed is None:
            self._reader.fail(token, error)

    def log_damaged(self, detail: str) -> None:
        """Stop for good: a scrub found bytes that are not what was written.

        `open` will refuse, and `rejoin` is the way on.
        """
        self._damaged(f"the log is damaged: {detail}")

    def snapshot_damaged(self, detail: str) -> None:
        """Stop for good: a start would not find the snapshot that the log begins behind."""
        self._damaged(f"a snapshot is damaged: {detail}")

    def stream_damaged(self, detail: str) -> None:
        """Stop for good: bytes of a stream are not what was written; peers have them."""
        self._damaged(f"a stream is damaged: {detail}")

    def _damaged(self, reason: str) -> None:
        self.is_damaged = self.is_damaged or self.failed is None
        self._fail(reason)

    def stop_for_good(self, reason: str) -> None:
        """Stop because the driver cannot answer for this replica any more, and say why."""
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if self.failed is not None:
            return
        was_leading = self.leads
        self.failed = reason
        self.ready = False
        self.log.fence(reason)
        self._disk.abandon()
        self._writing.abandon()
        self._reader.abandon()
        if self.streams is not None:
            self.streams.fail(reason)
        self._proposals.lose(None, None)
        self._read_gate.deny_all()
        if was_leading:
            self._role = RoleChange(Role.FOLLOWER, self.group.core.hard.term, None, reason)

    # Output.

    @property
    def has_news(self) -> bool:
        """Whether `take` would bring anything that an input of a peer, a plan or a tick has caused.

        A driver may leave a replica alone that has none. It need not ask after other inputs.
        """
        if not self.ready:
            return self.failed is None or not self._failure_told
        return (
            (self._proposals.waiting > 0 and not self._writing.is_busy)
            or self.group.has_output()
            or bool(self._proposals.outcomes)
            or self._disk.has_fresh
            or self._reader.has_fresh
            or self._read_gate.waits
            or self._writing.waits
            or self._snapshots.has_work
            or (self.streams is not None and self.streams.has_work)
        )

    def take(self, *, plan_later: bool = False) -> ReplicaOutput:
        """Return all that must happen now, once; equal inputs give equal outputs.

        With `plan_later` the plan of an append may be missing: `take_disk` gives it, before the
        next input. To encode and to seal takes time, in which the peers can have the messages.
        """
        output = ReplicaOutput()
        assert not self._unplanned, "take_disk comes before the next output"
        if self.ready:
            self._propose_waiting()
            output.more = self._proposals.waiting > 0 and not self._writing.is_busy
            found = self.group.take()
            if plan_later and not self._writing.may_delay and _only_appends(found):
                self._unplanned, found.appends = found.appends, []
            self._carry(found, output)
            output.delay = self._writing.write_due()
            self._snapshots.advance(self.machine, self.applied_index)
            output.transfers, self._snapshots.transfers = self._snapshots.transfers, []
            if self.streams is not None:
                self.streams.advance()
                output.stream_disk = self.streams.disk.take()
                output.stream_news = self.streams.take_news()
        output.disk = self._disk.take()
        output.disk_reads = self._reader.take()
        output.replies = self._proposals.take()
        output.reads = self._read_gate.take()
        if self.failed is not None and not self._failure_told:
            self._failure_told = True
            output.failed, output.role = self.failed, self._role
        return output

    def take_disk(self) -> list[DiskWork]:
        """Return the plans that `take` has left for later."""
        batches, self._unplanned = self._unplanned, []
        if self.ready:
            for batch in batches:
                self._writing.append(batch)
        return self._disk.take()

    def catch_up(self, *, bytes_max: int | None = None) -> bool:
        """Apply what a follower has put off; say whether there was something.

        A driver calls this when the disk has its work and the peers their messages, so that no
        ack waits for the machine. With `bytes_max` it applies about so much, and `is_behind` says
        whether something is left.
        """
        entries, self._unapplied = self._unapplied, []
        if not entries or not self.ready:
            return False
        if bytes_max is not None:
            share = _entries_within(entries, bytes_max)
            entries, self._unapplied = entries[:share], entries[share:]
        self._apply(entries)
        return True

    @property
    def is_behind(self) -> bool:
        """Whether it has put off to apply something."""
        return bool(self._unapplied) and self.ready

    def _propose_waiting(self) -> None:
        """Make one entry of all that waits, unless the disk has enough to do already."""
        if not self._proposals.waiting or self._writing.is_busy:
            return
        batches, payloads = self._proposals.take_waiting(self.settings.batch_bytes_max)
        answer = self.group.propose(payloads)
        if isinstance(answer, ProposalAccepted):
            self._proposals.accepted(answer, batches)
            return
        request_ids = [request for batch in batches for request in batch]
        if answer.reason is ProposalRefusal.NOT_LEADER:
            self._proposals.outcomes.append(NotLeader(request_ids, answer.leader_id))
        else:
            self._proposals.outcomes.append(RequestsRefused(request_ids, answer.reason))

    def _carry(self, found: Output, output: ReplicaOutput) -> None:
        """Turn what the group wants into what the driver does, in the group's order."""
        if found.hard_state is not None or found.install is not None:
            self._writing.write_waiting()  # what waits comes before them in the group's order
        if found.hard_state is not None:
            self._persist(found.hard_state)
        for batch in found.appends:
            self._writing.append(batch)
        if found.install is not None:
            self._snapshots.install(found.install)
        output.messages = found.messages
        output.snapshot_sends = found.snapshot_sends
        for fetch in found.fetches:
            self._fetching.begin(fetch)
        if found.apply:
            self._unapplied += found.apply
        if self._unapplied and self.group.core.leads:
            self.catch_up()
        if found.acked is not None:
            self._proposals.acked(found.acked)
        self._proposals.release()
        if found.role is not None:
            self._role_changed(found.role)
        if found.reads:
            self._read_gate.answered(found.reads, self.leader_id)
        self._read_gate.serve(self.applied_index)
        if found.emit_snapshot is not None:
            self._snapshots.emit()
        if found.compact_through is not None:
            self._snapshots.compact(found.compact_through)
        output.publish_proof = found.publish_proof
        output.record_membership = found.record_membership
        output.role = found.role
        output.notes = found.notes

    def _persist(self, persist: PersistHardState) -> None:
        receipt = HardStateStored(persist.seq)
        self._disk.submit(plan_hard_state(persist.state), lambda: self.group.stored(receipt))

    def _apply(self, entries: list[Entry]) -> None:
        clock = self.settings.measuring_clock
        began = clock() if clock is not None else 0.0
        self._apply_entries(entries)
        if clock is not None:
            self.apply_seconds.append(clock() - began)

    def _apply_entries(self, entries: list[Entry]) -> None:
        for entry in entries:
            replies = apply_entry(self.machine, entry)
            if self.streams is not None:
                machine = cast("StreamMachine", self.machine)  # to ask costs more than to apply
                self.streams.feed(entry.index, machine.take_stream_changes())
            if entry.kind is EntryKind.DATA:
                self._proposals.applied(entry, replies)
                if self.shadow is not None:
                    self.shadow.offer(entry.index, commands_of(entry), replies)
            elif entry.kind is EntryKind.DEFINE_ACTIVATE:
                self.shadow = None  # it was a trial against the rules before
        self.applied_index = entries[-1].index
        # The state is as durable as the log and the snapshot that it is rebuilt from.
        self.group.applied(self.applied_index, self.applied_index)

    def _installed(self, install: SnapshotInstall, machine: StateMachine) -> None:
        """Take the restored machine into use: the log stands on its snapshot now."""
        self.catch_up()
        if install.base_index > self.applied_index:
            self.machine = machine
            self.applied_index = install.base_index
            if self.streams is not None:
                self.streams.installed(machine, install.base_index)
            self.shadow = None  # it has not seen what the snapshot brought

    def _role_changed(self, change: RoleChange) -> None:
        term = change.term if change.role is Role.LEADER else None
        self._proposals.lose(term, change.leader_id)


def _entries_within(entries: list[Entry], bytes_max: int) -> int:
    """Return how many of the first entries have so many bytes together; one at least."""
    total = 0
    for number, entry in enumerate(entries):
        total += len(entry.payload)
        if total > bytes_max:
            return max(1, number)
    return len(entries)


def _only_appends(found: Output) -> bool:
    """Say whether an output has appends, and nothing that must be planned in order with them."""
    return (
        bool(found.appends)
        and found.hard_state is None
        and found.install is None
        and found.emit_snapshot is None
        and found.compact_through is None
    )
