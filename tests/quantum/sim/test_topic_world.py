"""Topics of the whole broker under drawn faults, and the bugs that the judge must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from quantum.broker.streams import (
    GroupOffsets,
    KeptBatch,
    StreamPartition,
    StreamRefusal,
    TransactionResult,
    decode_outcomes,
    hosted_partition,
    partition,
    section,
    transacting,
)
from quantum.broker.streams.control_batch import control_batch
from quantum.broker.streams.group_commands import CommittedOffset
from quantum.broker.streams.hosted_partition import HostedPartition
from quantum.broker.streams.open_transactions import AbortedIndex
from quantum.broker.streams.partition import EndInPartition
from quantum.broker.streams.producers import ProducerTable, judge
from quantum.broker.streams.section_state import StreamState
from quantum.partition import stream_side
from quantum.sim.topics import run_topic_seed

Patch: TypeAlias = pytest.MonkeyPatch
Bug: TypeAlias = Callable[[Patch], None]
SEEDS = (3, 0, 5, 8, 1, 2)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_and_nothing_is_there_twice(seed: int) -> None:
    report = run_topic_seed(seed)
    assert report.violation is None, report.detail
    for event in ("kept", "committed", "aborted", "read", "read committed"):
        assert report.events[event], event


def a_batch_that_comes_again_is_appended_again(patch: Patch) -> None:
    def forgetful(*facts: Any) -> Any:
        found = judge(*facts)
        return None if isinstance(found, KeptBatch) else found

    patch.setattr(partition, "judge", forgetful)


def a_batch_may_come_before_the_one_it_follows(patch: Patch) -> None:
    def lenient(*facts: Any) -> Any:
        found = judge(*facts)
        return None if found is StreamRefusal.OUT_OF_ORDER_SEQUENCE else found

    patch.setattr(partition, "judge", lenient)


def _thawed(patch: Patch, spoil: Callable[[HostedPartition], None]) -> None:
    thaw = HostedPartition.thaw

    def wrong(file_id: int, data: bytes) -> HostedPartition:
        made = thaw(file_id, data)
        spoil(made)
        return made

    patch.setattr(HostedPartition, "thaw", wrong)


def a_restored_replica_forgets_producers(patch: Patch) -> None:
    def spoil(made: HostedPartition) -> None:
        made.log._producers = ProducerTable()

    _thawed(patch, spoil)


def a_restored_replica_forgets_what_was_aborted(patch: Patch) -> None:
    def spoil(made: HostedPartition) -> None:
        made.log._aborted = AbortedIndex()

    _thawed(patch, spoil)


def the_start_goes_back_where_a_replica_begins_anew(patch: Patch) -> None:
    def spoil(made: HostedPartition) -> None:
        made.log.start_offset = max(0, made.log.start_offset - 1)

    _thawed(patch, spoil)


def every_transaction_is_committed_in_partitions(patch: Patch) -> None:
    end = HostedPartition.end

    def generous(self: HostedPartition, command: EndInPartition, *more: int) -> Any:
        command.commit = True
        return end(self, command, *more)

    patch.setattr(HostedPartition, "end", generous)


def a_transaction_is_answered_before_its_partitions_know(patch: Patch) -> None:
    told = transacting._open_everywhere

    def hasty(*facts: Any) -> list[tuple[int, int]]:
        told(*facts)
        return []

    patch.setattr(transacting, "_open_everywhere", hasty)


def groups_do_not_hear_how_a_transaction_ended(patch: Patch) -> None:
    send = transacting.send_ends

    def partial(state: StreamState, result: TransactionResult) -> None:
        markers = tuple(each for each in result.markers if each.group is None)
        send(state, TransactionResult(result.answer, (), markers))

    patch.setattr(transacting, "send_ends", partial)


def a_refused_batch_takes_its_offsets(patch: Patch) -> None:
    append = HostedPartition.append

    def greedy(self: HostedPartition, row: Any, *more: Any) -> Any:
        reply, change = append(self, row, *more)
        if change is None:
            self.log.end_offset += row[2]
        return reply, change

    patch.setattr(HostedPartition, "append", greedy)


def markers_have_no_leader_epoch(patch: Patch) -> None:
    def timeless(offset: int, now_ms: int, producer_id: int, *more: int, commit: bool) -> bytes:
        return control_batch(offset, now_ms, producer_id, more[0], 0, commit=commit)

    patch.setattr(hosted_partition, "control_batch", timeless)


def what_is_not_decided_is_read_as_committed(patch: Patch) -> None:
    stable = property(lambda self: self.end_offset)
    patch.setattr(StreamPartition, "last_stable_offset", stable)


def offsets_of_a_transaction_count_at_once(patch: Patch) -> None:
    keep = GroupOffsets.commit_in

    def hasty(self: GroupOffsets, *facts: Any) -> Any:
        said = keep(self, *facts)
        if not isinstance(said, StreamRefusal):
            for place, row in facts[2]:
                self.committed[place] = CommittedOffset(row.offset)
        return said

    patch.setattr(GroupOffsets, "commit_in", hasty)


def a_refusal_is_told_as_an_answer(patch: Patch) -> None:
    def kind(reply: bytes) -> Any:
        for each in decode_outcomes(reply):
            if each.refusal is StreamRefusal.OUT_OF_ORDER_SEQUENCE:
                each.refusal, each.base_offset = None, 0
            yield each

    patch.setattr(stream_side, "decode_outcomes", kind)


def a_page_is_forgotten_in_deltas(patch: Patch) -> None:
    patch.setattr(section, "partition_page", lambda _number, _partition: b"h")


BUGS: list[Bug] = [
    a_batch_that_comes_again_is_appended_again,
    a_batch_may_come_before_the_one_it_follows,
    a_restored_replica_forgets_producers,
    a_restored_replica_forgets_what_was_aborted,
    the_start_goes_back_where_a_replica_begins_anew,
    every_transaction_is_committed_in_partitions,
    a_transaction_is_answered_before_its_partitions_know,
    groups_do_not_hear_how_a_transaction_ended,
    a_refused_batch_takes_its_offsets,
    markers_have_no_leader_epoch,
    what_is_not_decided_is_read_as_committed,
    offsets_of_a_transaction_count_at_once,
    a_refusal_is_told_as_an_answer,
    a_page_is_forgotten_in_deltas,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_noticed(bug: Bug, monkeypatch: Patch) -> None:
    bug(monkeypatch)
    assert any(run_topic_seed(seed).violation is not None for seed in SEEDS)
