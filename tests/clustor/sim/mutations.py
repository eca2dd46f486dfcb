"""Bugs planted on purpose, each small enough to be written by mistake.

A mutation replaces one function of the production code. The simulator has to notice it within
`seeds`; where chance rarely meets it, a story does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from clustor.kv.events import EventHistory
from clustor.kv.types import KvRecord, Revision
from clustor.log.ledger_writer import LedgerWriter
from clustor.log.steps import Plan, Sync, WriteFile
from clustor.log.types import LogIndex
from clustor.raft.core import Core
from clustor.raft.durability import Durability
from clustor.raft.hard_state import HardState
from clustor.raft.hold import HardStateHold
from clustor.raft.membership import Membership
from clustor.raft.messages import Outbound
from clustor.raft.outbox import GroupOutbox
from clustor.raft.output import Acked, LogAppend, Output, PersistHardState
from clustor.raft.quorum import UNBOUNDED
from clustor.raft.reads import FailedClause
from clustor.raft.types import HardStateStored
from clustor.replica import opening, read_hard_state
from clustor.replica.disk_queue import DiskQueue
from clustor.replica.installing import Installing
from clustor.replica.proposals import Proposals
from clustor.replica.replica import Replica
from clustor.replica.snapshots import ReplicaSnapshots
from clustor.replica.turn import ReplicaTurn
from clustor.replica.types import DiskToken, NotLeader
from clustor.replica.writing import Writing
from tests.clustor.sim import stories

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutation:
    """One planted bug: what it is, how to plant it, and which seeds are enough to see it."""

    name: str
    plant: Callable[[Patch], None]
    seeds: range = range(30)
    story: Callable[[], None] | None = None


def _vote_not_persisted(patch: Patch) -> None:
    """A hard state of a term that is known already is taken for durable at once."""
    original = ReplicaTurn._persist
    written: dict[int, int] = {}

    def persist(self: ReplicaTurn, found: PersistHardState) -> None:
        if written.get(id(self)) == found.state.term:
            self.disk.submit((), lambda: self.group.stored(HardStateStored(found.seq)))
            return
        written[id(self)] = found.state.term
        original(self, found)

    patch.setattr(ReplicaTurn, "_persist", persist)


def _messages_do_not_wait(patch: Patch) -> None:
    """Votes leave before the hard state that they rest on is durable."""

    def take(self: HardStateHold) -> list[Outbound]:
        messages, self._core.outbox = self._core.outbox, []
        return messages

    patch.setattr(HardStateHold, "take_messages", take)


def _old_term_commits(patch: Patch) -> None:
    """A leader counts replicas of an entry of an older term (Raft's figure 8)."""

    def advance(self: Durability) -> bool:
        core = self._core
        before = (core.commit_index, core.wal_committed_index)
        matched, attested = self.reports()
        committed = LogIndex(core.config.reached(matched.__getitem__))
        core.commit_index = max(core.commit_index, committed)
        durable = core.config.reached(attested.__getitem__)
        durable = min(durable, core.local_wal_durable_index, core.commit_index)
        if durable > core.wal_committed_index:
            core.wal_committed_index = LogIndex(durable)
            self._find_quorum_tuple()
        return before != (core.commit_index, core.wal_committed_index)

    patch.setattr(Durability, "advance", advance)


def _majority_is_half(patch: Patch) -> None:
    """The quorum's index is one place too high in the sorted list."""

    def reached(self: Membership, of: Callable[[Any], int]) -> int:
        ascending = sorted(of(voter) for voter in self.voters)
        return ascending[len(ascending) // 2 + 1] if len(ascending) > 2 else ascending[-1]

    patch.setattr(Membership, "reached", reached)


def _joint_forgets_the_old(patch: Patch) -> None:
    """In a joint configuration only the new members are counted."""

    def reached(self: Membership, of: Callable[[Any], int]) -> int:
        ascending = sorted(of(voter) for voter in self.voters)
        return ascending[(len(ascending) - 1) // 2] if ascending else UNBOUNDED

    patch.setattr(Membership, "reached", reached)


def _leader_alone_is_enough(patch: Patch) -> None:
    """What is on the leader's own disk is applied and acknowledged."""
    original = GroupOutbox._take_leader

    def take(self: GroupOutbox, output: Output) -> None:
        original(self, output)
        output.acked = Acked(self.core.hard.term, self.core.local_wal_durable_index)

    def limit(self: GroupOutbox) -> LogIndex:
        core = self.core
        if core.leads:
            return core.local_wal_durable_index
        return min(core.commit_index, core.local_wal_durable_index)

    patch.setattr(GroupOutbox, "_take_leader", take)
    patch.setattr(GroupOutbox, "_apply_limit", limit)


def _replies_do_not_wait(patch: Patch) -> None:
    """A reply leaves as soon as its batch is on the leader's disk: before it is acknowledged."""
    original = Replica.disk_done

    def disk_done(self: Replica, token: DiskToken, sync_ms: float = 0.0) -> None:
        original(self, token, sync_ms)
        durable = self.group.core.local_wal_durable_index
        for waiting in self._proposals._open:
            if waiting.replies is None and waiting.index <= durable:
                waiting.replies = [b""] * len(waiting.request_ids)
        self._proposals.acked(Acked(self.group.core.hard.term, durable))

    patch.setattr(Replica, "disk_done", disk_done)


def _apply_before_durable(patch: Patch) -> None:
    """Entries are applied when the log has them, committed or not."""
    patch.setattr(GroupOutbox, "_apply_limit", lambda self: self.core.log.last_index)


def _without_syncs_of(files: str) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        original = DiskQueue.submit

        def submit(self: DiskQueue, plan: Plan, *rest: Any, **more: Any) -> None:
            kept = tuple(
                step for step in plan if not (isinstance(step, Sync) and files in step.file)
            )
            original(self, kept, *rest, **more)

        patch.setattr(DiskQueue, "submit", submit)

    return plant


def _receipt_before_the_disk(patch: Patch) -> None:
    """A batch's receipt is given when its plan is handed out."""
    original = Writing._write

    def write(self: Writing, batch: LogAppend, also: Callable[[], None]) -> None:
        original(self, batch, also)
        token, done = self._disk.outstanding[-1]
        self._disk.outstanding[-1] = (token, lambda: None)
        done()

    patch.setattr(Writing, "_write", write)


def _short_logs_may_lead(patch: Patch) -> None:
    """A voter does not look at the candidate's log."""
    patch.setattr(Core, "is_up_to_date", lambda self, term, index: True)


def _start_forgets_the_last_entry(patch: Patch) -> None:
    """A start drops the last entry of the log: it was committed, more often than not."""
    original = opening._entries_above

    def entries(settings: Any, partition: Any, log: Any, base_index: Any) -> Any:
        held = original(settings, partition, log, base_index)
        if len(held) > 1:
            log.plan_truncate(held[-1].index)
            held.pop()
        return held

    patch.setattr(opening, "_entries_above", entries)
    patch.setattr(opening, "read_hard_state", _forgetful(read_hard_state))


def _forgetful(read: Callable[[Any], HardState | None]) -> Callable[[Any], HardState | None]:
    def forget(storage: Any) -> HardState | None:
        hard = read(storage)
        return None if hard is None else replace(hard, durable_commit_index=LogIndex(0))

    return forget


def _install_without_authorisation(patch: Patch) -> None:
    """A snapshot is put into use, and the log cut, before any record authorises it."""
    patch.setattr(Installing, "_written", Installing._authorized)


def _compaction_runs_ahead(patch: Patch) -> None:
    """The log is compacted through what was applied, not through what a snapshot covers."""
    original = ReplicaSnapshots.advance

    def advance(self: ReplicaSnapshots, machine: Any, applied_index: LogIndex) -> None:
        original(self, machine, applied_index)
        applied = min(applied_index, self._log.durable_index)
        self._shelf.disk.submit(self._log.plan_compact(LogIndex(applied + 1)), lambda: None)

    patch.setattr(ReplicaSnapshots, "advance", advance)


def _deltas_leave_out_deletions(patch: Patch) -> None:
    """What was deleted since the snapshot before comes back with a chain that is restored."""
    original = EventHistory.after

    def after(self: EventHistory, revision: Revision) -> list[KvRecord] | None:
        events = original(self, revision)
        return None if events is None else [each for each in events if not each.is_delete]

    patch.setattr(EventHistory, "after", after)


def _reads_ask_nobody(patch: Patch) -> None:
    """A leader answers reads without asking a quorum whether it still leads."""

    def clause(waiting: Any, view: Any, **_: bool) -> FailedClause:
        if waiting.index is None or view.wal_committed_index < waiting.index:
            return FailedClause.INDEX_INEQUALITY
        return FailedClause.NONE

    patch.setattr("clustor.raft.reads._open_clause", clause)


def _stale_proof_accepted(patch: Patch) -> None:
    """Any proof will do, of whatever term and whoever's ledger."""
    patch.setattr(Durability, "proven", lambda self, proof: proof)


def _lost_means_refused(patch: Patch) -> None:
    """A leader that lost its term says that its open requests did not happen."""

    def lose(self: Proposals, term: Any, leader_id: Any) -> None:
        lost = [waiting for waiting in self._open if waiting.term != term]
        for waiting in lost:
            self._open.remove(waiting)
            self.outcomes.append(NotLeader(waiting.request_ids, leader_id))

    patch.setattr(Proposals, "lose", lose)


def _reservations_are_not_durable(patch: Patch) -> None:
    """Counters are used before the ledger that reserves them is on disk."""
    original = LedgerWriter.plan_records

    def plan(self: LedgerWriter, bodies: Any) -> Plan:
        return tuple(step for step in original(self, bodies) if isinstance(step, WriteFile))

    patch.setattr(LedgerWriter, "plan_records", plan)


def _rejoin_under_the_old_id(patch: Patch) -> None:
    """An empty log gets the id, and so the key and the counters, of the one that was lost."""
    original = opening.prepare_rejoin

    def rejoin(settings: Any, partition: Any, node: Any, **more: Any) -> Any:
        known = opening._identity(node)
        opened = original(settings, partition, node, **more)
        return opening._empty(settings, known, opened.hard, opening._plan_set_aside(partition))

    patch.setattr("clustor.replica.replica.prepare_rejoin", rejoin)


def _a_hard_state_is_no_news(patch: Patch) -> None:
    """What waited for a hard state stays behind until something else has to be said."""
    patch.setattr(HardStateHold, "has_output", property(lambda _: False))


def _a_write_is_no_news(patch: Patch) -> None:
    """A driver would leave a replica alone whose snapshot waits to be written."""
    original: Callable[[ReplicaTurn], bool] = vars(ReplicaTurn)["has_work"].fget

    def has_work(self: ReplicaTurn) -> bool:
        fresh, self.disk.fresh = self.disk.fresh, []
        try:
            return original(self)
        finally:
            self.disk.fresh = fresh

    patch.setattr(ReplicaTurn, "has_work", property(has_work))


MUTATIONS = (
    Mutation(
        "a vote in a known term is not persisted",
        _vote_not_persisted,
        story=stories.a_vote_in_a_known_term_survives_a_loss_of_power,
    ),
    Mutation(
        "messages do not wait for the hard state",
        _messages_do_not_wait,
        story=stories.a_vote_leaves_only_when_it_is_durable,
    ),
    Mutation(
        "an entry of an old term is committed by counting",
        _old_term_commits,
        story=stories.figure_8,
    ),
    Mutation("half of the voters are a majority", _majority_is_half),
    Mutation("a joint quorum forgets the old members", _joint_forgets_the_old),
    Mutation("the leader's own disk is enough", _leader_alone_is_enough),
    Mutation("a reply leaves before its entry is acknowledged", _replies_do_not_wait),
    Mutation("entries are applied before they are durable", _apply_before_durable),
    Mutation("segments are not synced", _without_syncs_of("wal/segment")),
    Mutation("nothing in the log's directory is synced", _without_syncs_of("wal/")),
    Mutation("a receipt comes before the disk is done", _receipt_before_the_disk),
    Mutation("a candidate's log is not compared", _short_logs_may_lead),
    Mutation("a start forgets the last entry", _start_forgets_the_last_entry),
    Mutation("a snapshot is installed unauthorised", _install_without_authorisation),
    Mutation("compaction runs ahead of the snapshot", _compaction_runs_ahead),
    Mutation("deltas leave out deletions", _deltas_leave_out_deletions, range(30, 80)),
    Mutation(
        "reads ask nobody",
        _reads_ask_nobody,
        story=stories.a_leader_that_is_cut_off_does_not_serve_what_is_old,
    ),
    Mutation(
        "a stale proof is accepted",
        _stale_proof_accepted,
        story=stories.a_proof_of_another_term_opens_no_read,
    ),
    Mutation("a lost term means that nothing happened", _lost_means_refused),
    Mutation("reservations are not durable", _reservations_are_not_durable),
    Mutation("a rejoined log keeps the old id", _rejoin_under_the_old_id),
    Mutation("a durable hard state is no news", _a_hard_state_is_no_news),
    Mutation("a plan for the disk is no news", _a_write_is_no_news),
)
