"""One group on one replica as a whole: Raft, its log on disk, the machine, its snapshots.

The replica is a machine itself: inputs change it, `take` says what must happen outside. It
decides nothing that the group decides. Its own part is the order: a receipt reaches the group
when the whole plan is durable, a reply leaves when the group allows it and the machine has it.
"""

from __future__ import annotations

from functools import partial
from typing import Self

from clustor.log.log import Log
from clustor.log.steps import FileName, Storage, plan_replace
from clustor.log.types import LogId, LogIndex, PartitionId
from clustor.raft.control_plane import ControlPlaneUpdate
from clustor.raft.group import Group
from clustor.raft.hard_state import MembershipAck
from clustor.raft.leadership import ProposalAccepted
from clustor.raft.leadership import ProposalRefused as GroupRefused
from clustor.raft.membership import Membership
from clustor.raft.messages import Message
from clustor.raft.output import (
    RoleChange,
)
from clustor.raft.reads import ReadKind, ReadRequest
from clustor.raft.reconfiguration import MembershipRequest
from clustor.raft.transition import Transition
from clustor.raft.types import (
    ReadId,
    ReplicaId,
    ReplicaIdentity,
    Role,
    RoutingEpoch,
)
from clustor.replica.activation import Activation, encode_activation
from clustor.replica.applying import Applying
from clustor.replica.disk_queue import DiskQueue
from clustor.replica.documents import plan_identity
from clustor.replica.emitting import Shelf
from clustor.replica.fetching import Fetching
from clustor.replica.machine import StateMachine
from clustor.replica.opening import Opened, prepare_new, prepare_open, prepare_rejoin
from clustor.replica.proposals import Proposals
from clustor.replica.read_gate import ReadGate
from clustor.replica.reading import DiskReader
from clustor.replica.settings import ReplicaSettings
from clustor.replica.snapshots import ReplicaSnapshots
from clustor.replica.streams import ReplicaStreams
from clustor.replica.transfer import Transfer
from clustor.replica.turn import ReplicaTurn
from clustor.replica.types import (
    DiskToken,
    DiskWork,
    Home,
    NotLeader,
    ReadToken,
    ReplicaOutput,
    RequestId,
)
from clustor.replica.writing import Writing
from clustor.snapshot.catalog import Catalog
from clustor.streams.errors import UnknownStream
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
        self.group = Group.start(
            opened.identity,
            settings.profile,
            settings.draw,
            now_ms=now_ms,
            hard_state=opened.hard,
            log=opened.view,
            applied_index=opened.view.base_index,
        )
        self.failed: str | None = None
        self.is_damaged = False  # why it failed: bytes are not what was written
        self.fault = ""  # why it failed: an error of our own, in a driver that contains those
        self.ready = False
        """Whether the first plan is durable and no disk has failed since."""
        self._disk = DiskQueue()
        self._reader = DiskReader()
        self.streams: ReplicaStreams | None = None
        """The streams of a machine that has some."""
        if opened.streams is not None:
            self.streams = ReplicaStreams(
                opened.streams.store, settings.stream_policies, partial(self.damaged, "a stream")
            )
        self._proposals = Proposals(settings.profile.payload_bytes_max, settings.waiting_bytes_max)
        self._read_gate = ReadGate()
        self.applying = Applying(
            settings,
            self.group,
            opened.machine,
            streams=self.streams,
            proposals=self._proposals,
            applied_index=opened.view.base_index,
        )
        self.snapshots = ReplicaSnapshots(
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
            self.applying.installed,
        )
        self._writing = Writing(settings, self.group, self.log, self._disk)
        self._turn = self._new_turn()
        self._probe_due_ms = 0
        self._role: RoleChange | None = None
        self._failure_told = False
        self._writes_identity = opened.writes_identity
        self._disk.submit(opened.plan, self._mended)

    def _new_turn(self) -> ReplicaTurn:
        settings = self.settings
        return ReplicaTurn(
            self.group,
            settings.batch_bytes_max,
            self._disk,
            self._reader,
            self._writing,
            Fetching(settings.keys, self.group, self.log, self._reader, self.log_damaged),
            self.applying,
            self._proposals,
            self._read_gate,
            self.snapshots,
            self.streams,
        )

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
    def machine(self) -> StateMachine:
        return self.applying.machine

    @property
    def applied_index(self) -> LogIndex:
        return self.applying.applied_index

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
            self.snapshots.tick(now_ms, self.machine)
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
        if core.device_stalled and not self._disk.outstanding and core.now_ms >= self._probe_due_ms:
            self._probe_due_ms = core.now_ms + core.profile.heartbeat_ms
            self._disk.submit(plan_replace(PROBE_FILE, b"probe"), lambda: None)

    def receive(self, message: Message) -> None:
        """Take a group's message from a peer whose identity the transport has proven."""
        if self.ready:
            self.group.receive(message)

    def receive_transfer(self, sender: ReplicaId, message: Transfer) -> None:
        """Take a message of the snapshot stream, from a peer whose identity is proven."""
        if self.ready:
            self.snapshots.receive(sender, message)

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

    def transfer(self, target: ReplicaId) -> GroupRefused | None:
        """Hand the leadership over; None says that it began."""
        return self.group.transfer(target)

    def emit_snapshot(self) -> None:
        """Emit a snapshot of the applied state: an operator asks, or the keys were rotated.

        New segments and snapshots use the newest epoch of `keys` by themselves; an old epoch
        can be retired when a snapshot under the new one covers what was written under it.
        """
        self.snapshots.emit()

    def seal_segment(self) -> None:
        """Close the open segment, so that it can be archived; the next append opens another."""
        if self.ready:
            self._disk.submit(self.log.plan_seal(), lambda: None)

    @property
    def catalog(self) -> Catalog:
        """The authorised snapshots."""
        return self.snapshots.catalog

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
        durable = self.group.durable_indices if self.leads else dict[ReplicaId, int]
        return self.streams.view(partition, from_index, bytes_max, durable)

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
        self.stop_for_good(f"the disk failed at plan {token} of the streams: {error}")

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
        self.stop_for_good(f"the disk failed at plan {token}: {error}")

    def disk_read(self, token: ReadToken, found: object) -> None:
        """Take what a job read."""
        if self.failed is None:
            self._reader.finish(token, found)

    def disk_read_failed(self, token: ReadToken, error: Exception) -> None:
        """Take the error that a job ended with."""
        if self.failed is None:
            self._reader.fail(token, error)

    def log_damaged(self, detail: str) -> None:
        """Stop for good: `open` will refuse, and `rejoin` is the way on."""
        self.damaged("the log", detail)

    def damaged(self, what: str, detail: str) -> None:
        """Stop for good: bytes of the log, a snapshot or a stream are not what was written."""
        self.is_damaged = self.is_damaged or self.failed is None
        self.stop_for_good(f"{what} is damaged: {detail}")

    def stop_for_good(self, reason: str) -> None:
        """Stop, and say why; the first reason stands. Only `open` may start it again."""
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
        return self._turn.has_work

    def take(self, *, plan_later: bool = False) -> ReplicaOutput:
        """Return all that must happen now, once; equal inputs give equal outputs.

        With `plan_later` the plan of an append may be missing: `take_disk` gives it, before the
        next input. To encode and to seal takes time, in which the peers can have the messages.
        """
        output = ReplicaOutput()
        assert not self._turn.unplanned, "take_disk comes before the next output"
        if self.ready:
            self._turn.run(output, plan_later=plan_later)
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
        if self.ready:
            self._turn.plan_rest()
        self._turn.unplanned.clear()
        return self._disk.take()

    def catch_up(self, *, bytes_max: int | None = None) -> bool:
        """Apply what a follower has put off; say whether there was something.

        A driver calls this when the disk has its work and the peers their messages, so that no
        ack waits for the machine. With `bytes_max` it applies about so much, and `is_behind` says
        whether something is left.
        """
        return self.ready and self.applying.catch_up(bytes_max)

    @property
    def is_behind(self) -> bool:
        """Whether it has put off to apply something."""
        return self.applying.is_behind and self.ready
