"""One turn of a replica: what waits becomes an entry, and what its group wants becomes plans.

The order is the group's: what must be durable is planned before what rests on it is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clustor.raft.group import Group
from clustor.raft.leadership import ProposalAccepted, ProposalRefusal
from clustor.raft.output import LogAppend, Output, PersistHardState
from clustor.raft.types import HardStateStored, Role
from clustor.replica.applying import Applying
from clustor.replica.disk_queue import DiskQueue
from clustor.replica.documents import plan_hard_state
from clustor.replica.fetching import Fetching
from clustor.replica.proposals import Proposals
from clustor.replica.read_gate import ReadGate
from clustor.replica.reading import DiskReader
from clustor.replica.snapshots import ReplicaSnapshots
from clustor.replica.streams import ReplicaStreams
from clustor.replica.types import NotLeader, ReplicaOutput, RequestsRefused
from clustor.replica.writing import Writing


@dataclass(slots=True)
class ReplicaTurn:
    """The parts of a replica that a turn goes through; the replica itself owns them."""

    group: Group
    batch_bytes_max: int
    disk: DiskQueue
    reader: DiskReader
    writing: Writing
    fetching: Fetching
    applying: Applying
    proposals: Proposals
    read_gate: ReadGate
    snapshots: ReplicaSnapshots
    streams: ReplicaStreams | None
    unplanned: list[LogAppend] = field(default_factory=list)
    """Appends of the last turn whose plans were left for later."""

    @property
    def has_work(self) -> bool:
        return (
            (bool(self.proposals.waiting) and not self.writing.is_busy)
            or self.group.has_output()
            or bool(self.proposals.outcomes)
            or bool(self.disk.fresh)
            or bool(self.reader.fresh)
            or self.read_gate.waits
            or self.writing.waits
            or self.snapshots.has_work
            or (self.streams is not None and self.streams.has_work)
        )

    def run(self, output: ReplicaOutput, *, plan_later: bool) -> None:
        """Fill in what must happen now; with `plan_later`, appends may wait for `plan_rest`."""
        self._propose_waiting()
        output.more = bool(self.proposals.waiting) and not self.writing.is_busy
        found = self.group.take()
        if plan_later and not self.writing.may_delay and _only_appends(found):
            self.unplanned, found.appends = found.appends, []
        self._carry(found, output)
        output.delay = self.writing.write_due()
        self.snapshots.advance(self.applying.machine, self.applying.applied_index)
        output.transfers, self.snapshots.transfers = self.snapshots.transfers, []
        if self.streams is not None:
            self.streams.advance()
            output.stream_disk = self.streams.disk.take()
            output.stream_news = self.streams.take_news()

    def plan_rest(self) -> None:
        """Plan the appends that were left for later."""
        batches, self.unplanned = self.unplanned, []
        for batch in batches:
            self.writing.append(batch)

    def _propose_waiting(self) -> None:
        """Make one entry of all that waits, unless the disk has enough to do already."""
        if not self.proposals.waiting or self.writing.is_busy:
            return
        batches, payloads = self.proposals.take_waiting(self.batch_bytes_max)
        answer = self.group.propose(payloads)
        if isinstance(answer, ProposalAccepted):
            self.proposals.accepted(answer, batches)
            return
        request_ids = [request for batch in batches for request in batch]
        if answer.reason is ProposalRefusal.NOT_LEADER:
            self.proposals.outcomes.append(NotLeader(request_ids, answer.leader_id))
        else:
            self.proposals.outcomes.append(RequestsRefused(request_ids, answer.reason))

    def _carry(self, found: Output, output: ReplicaOutput) -> None:
        """Turn what the group wants into what the driver does, in the group's order."""
        if found.hard_state is not None or found.install is not None:
            self.writing.write_waiting()  # what waits comes before them in the group's order
        if found.hard_state is not None:
            self._persist(found.hard_state)
        for batch in found.appends:
            self.writing.append(batch)
        if found.install is not None:
            self.snapshots.install(found.install)
        output.messages = found.messages
        output.snapshot_sends = found.snapshot_sends
        for fetch in found.fetches:
            self.fetching.begin(fetch)
        core = self.group.core
        if found.apply:
            self.applying.add(found.apply)
        if core.leads:
            self.applying.catch_up()
        if found.acked is not None:
            self.proposals.acked(found.acked)
        self.proposals.release()
        if found.role is not None:
            term = found.role.term if found.role.role is Role.LEADER else None
            self.proposals.lose(term, found.role.leader_id)
        if found.reads:
            self.read_gate.answered(found.reads, core.leader_id)
        self.read_gate.serve(self.applying.applied_index)
        if found.emit_snapshot is not None:
            self.snapshots.emit()
        if found.compact_through is not None:
            self.snapshots.compact(found.compact_through)
        output.publish_proof = found.publish_proof
        output.record_membership = found.record_membership
        output.role = found.role
        output.notes = found.notes

    def _persist(self, persist: PersistHardState) -> None:
        receipt = HardStateStored(persist.seq)
        self.disk.submit(plan_hard_state(persist.state), lambda: self.group.stored(receipt))


def _only_appends(found: Output) -> bool:
    """Say whether an output has appends, and nothing that must be planned in order with them."""
    return (
        bool(found.appends)
        and found.hard_state is None
        and found.install is None
        and found.emit_snapshot is None
        and found.compact_through is None
    )
