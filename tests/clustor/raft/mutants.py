"""Bugs planted on purpose: each breaks one rule, and a scenario or a seed must notice.

A mutant is a context in which one method of the machine is replaced. None of this runs outside
of `test_mutants.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from clustor.log.types import LogIndex, Term
from clustor.raft.access import AccessGate
from clustor.raft.core import Core
from clustor.raft.durability import Durability
from clustor.raft.election import Election
from clustor.raft.fallback import StrictFallback
from clustor.raft.following import Following
from clustor.raft.hold import HardStateHold
from clustor.raft.leadership import Leadership
from clustor.raft.membership import Membership
from clustor.raft.messages import Outbound
from clustor.raft.progress import Progress
from clustor.raft.quorum import reached_by_majority
from clustor.raft.reads import ReadQueue
from clustor.raft.reception import Reception
from clustor.raft.repair import Repair
from clustor.raft.replication import Replication

Mutate = Callable[[pytest.MonkeyPatch], None]


def answers_before_the_vote_is_durable(patch: pytest.MonkeyPatch) -> None:
    """Messages leave while the hard state is still on its way to the disk."""

    def take(self: HardStateHold) -> list[Outbound]:
        messages, self._core.outbox = self._core.outbox, []
        return messages

    patch.setattr(HardStateHold, "take_messages", take)


def forgets_a_vote_in_a_known_term(patch: pytest.MonkeyPatch) -> None:
    """The hard state is given to the disk only when its term is new."""
    original = HardStateHold.take_hard_state

    def take(self: HardStateHold) -> Any:
        if self._core.hard.term == self._given.term:
            self._given = self._core.hard
            return None
        return original(self)

    patch.setattr(HardStateHold, "take_hard_state", take)


def votes_twice(patch: pytest.MonkeyPatch) -> None:
    original = Election.on_vote_request

    def on_vote_request(self: Election, message: Any) -> None:
        core = self._core
        if message.term == core.hard.term and core.hard.voted_for not in (None, core.id):
            core.set_hard(voted_for=None)
        original(self, message)

    patch.setattr(Election, "on_vote_request", on_vote_request)


def votes_for_shorter_logs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Core, "is_up_to_date", lambda self, term, index: term >= self.log.last_term)


def commits_old_terms_by_counting(patch: pytest.MonkeyPatch) -> None:
    """Figure 8: an entry of an earlier term is committed because a majority holds it."""
    original = Durability.advance

    def advance(self: Durability) -> bool:
        self._core.term_start = LogIndex(0)
        return original(self)

    patch.setattr(Durability, "advance", advance)


def acknowledges_without_its_own_disk(patch: pytest.MonkeyPatch) -> None:
    """The leader counts what it has only in memory."""
    original = Durability.advance

    def advance(self: Durability) -> bool:
        core = self._core
        durable, core.local_wal_durable_index = core.local_wal_durable_index, core.log.last_index
        moved = original(self)
        core.local_wal_durable_index = durable
        return moved

    patch.setattr(Durability, "advance", advance)


def attests_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    """A follower acknowledges when it has received, not when it has synced."""
    original = Following.on_append

    def on_append(self: Following, message: Any) -> None:
        original(self, message)
        if message.entries and self._core.leader_id is not None:
            self.acknowledge(self._core.leader_id)

    patch.setattr(Following, "on_append", on_append)
    patch.setattr(
        Following,
        "acknowledgeable",
        lambda self: min(self._core.matched_index, self._core.log.last_index),
    )


def attests_a_suffix_that_does_not_match(patch: pytest.MonkeyPatch) -> None:
    """C17: whatever is durable counts, equal to the leader's log or not."""
    patch.setattr(Following, "acknowledgeable", lambda self: self._core.local_wal_durable_index)


def believes_late_receipts(patch: pytest.MonkeyPatch) -> None:
    """A receipt for a batch that was cut since still counts in full."""

    def believed(self: Durability, receipt: Any) -> LogIndex:
        held = self._core.log.holds(receipt.term, receipt.index)
        return receipt.index if held else LogIndex(0)

    patch.setattr(Durability, "_believed", believed)


def keeps_a_conflicting_suffix(patch: pytest.MonkeyPatch) -> None:
    """Only the first conflicting entry is compared; what comes after it stays in the log."""
    original = Following._meets

    def meets(self: Following, message: Any) -> bool:
        return original(self, message) or self._core.log.term_at(message.prev_log_index) is not None

    patch.setattr(Following, "_meets", meets)


def joint_asks_only_the_new_majority(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "reached", lambda self, of: reached_by_majority(self.voters, of))


def joint_elects_with_one_majority(patch: pytest.MonkeyPatch) -> None:
    original = Membership.vote
    patch.setattr(Membership, "vote", lambda self, votes: original(Membership(self.voters), votes))


def obeys_members_only_when_committed(patch: pytest.MonkeyPatch) -> None:
    """A configuration takes effect at commit, not when it is in the log."""

    def read_configuration(self: Core) -> None:
        self.config, self.config_index = self.hard.membership, self.hard.membership_index
        self.log_epoch = self.hard.durability_mode_epoch

    patch.setattr(Core, "read_configuration", read_configuration)


def reads_without_asking_a_quorum(patch: pytest.MonkeyPatch) -> None:
    original = ReadQueue.advance

    def advance(self: ReadQueue, view: Any) -> Any:
        view.confirmed_seq = 1 << 60
        return original(self, view)

    patch.setattr(ReadQueue, "advance", advance)


def reads_join_a_round_already_sent(patch: pytest.MonkeyPatch) -> None:
    """A read is confirmed by an answer to a message that is older than the read."""
    patch.setattr(Replication, "next_read_round", lambda self: self.read_seq)


def reads_need_no_proof(patch: pytest.MonkeyPatch) -> None:
    def proven(self: Durability, proof: Any) -> Any:
        return proof if proof is None else replace(proof, index=LogIndex(1 << 60))

    patch.setattr(Durability, "proven", proven)


def counts_attestations_of_an_old_term(patch: pytest.MonkeyPatch) -> None:
    original = Reception.admit

    def admit(self: Reception, message: Any) -> bool:
        if type(message).__name__ == "DurabilityAck":
            return True
        return original(self, message)

    patch.setattr(Reception, "admit", admit)


def obeys_an_old_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Following, "conflicts", lambda self, sender, epoch: False)


def batches_span_a_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "clustor.raft.durability._between_fences",
        lambda entries, system: [entries] if entries else [],
    )


def votes_without_its_disk(patch: pytest.MonkeyPatch) -> None:
    """A replica that lost its disk votes at once."""
    patch.setattr("clustor.raft.hard_state.HardState.rejoining", False)


def repairs_with_any_entry(patch: pytest.MonkeyPatch) -> None:
    original = Repair.on_entries

    def on_entries(self: Repair, message: Any) -> None:
        for entry in message.entries:
            entry.term = self._core.log.term_at(entry.index) or Term(0)
        original(self, message)

    patch.setattr(Repair, "on_entries", on_entries)


def disturbs_a_living_leader(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Election, "leader_is_alive", lambda self: False)


def leads_without_a_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "_quorum_is_there", lambda self: True)


def campaigns_though_barred(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StrictFallback, "may_campaign", lambda self, now_ms, last_leader_ms: True)


def never_goes_back(patch: pytest.MonkeyPatch) -> None:
    """A refusal is ignored, so logs that differ never meet."""
    patch.setattr(Replication, "_back_off", lambda self, progress, message: None)


def loses_what_was_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A refused position is skipped: the follower's log gets entries behind a gap."""

    def back_off(self: Replication, progress: Progress, message: Any) -> None:
        progress.become_probe(message.conflict_index + 1)

    patch.setattr(Replication, "_back_off", back_off)


def serves_snapshot_reads_after_revocation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AccessGate, "_watch_follower_reads", lambda self: None)


MUTANTS: dict[str, Mutate] = {
    mutate.__name__: mutate
    for mutate in (
        answers_before_the_vote_is_durable,
        forgets_a_vote_in_a_known_term,
        votes_twice,
        votes_for_shorter_logs,
        commits_old_terms_by_counting,
        acknowledges_without_its_own_disk,
        attests_what_is_not_durable,
        attests_a_suffix_that_does_not_match,
        believes_late_receipts,
        keeps_a_conflicting_suffix,
        joint_asks_only_the_new_majority,
        joint_elects_with_one_majority,
        obeys_members_only_when_committed,
        reads_without_asking_a_quorum,
        reads_join_a_round_already_sent,
        reads_need_no_proof,
        counts_attestations_of_an_old_term,
        obeys_an_old_epoch,
        batches_span_a_fence,
        votes_without_its_disk,
        repairs_with_any_entry,
        disturbs_a_living_leader,
        leads_without_a_quorum,
        campaigns_though_barred,
        never_goes_back,
        loses_what_was_in_flight,
        serves_snapshot_reads_after_revocation,
    )
}


@contextmanager
def planted(mutate: Mutate) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        yield
