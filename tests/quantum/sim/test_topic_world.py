"""Topics of the whole broker under drawn faults, and the bugs that the judge must notice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from quantum.broker.streams import (
    AbortedRange,
    AppendOutcome,
    GroupCoordinator,
    GroupOffsets,
    KeptBatch,
    StreamPartition,
    StreamRefusal,
    TransactionCoordinator,
    TransactionResult,
    decode_outcomes,
    encode_appends,
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
from quantum.mesh.topics import TenantTopics
from quantum.partition import stream_side
from quantum.partition.stream_side import StreamSide
from quantum.protocols.kafka.session.connection import KafkaConnection
from quantum.protocols.kafka.session.fetch import FetchWork
from quantum.sim.topics import run_topic_seed

Patch: TypeAlias = pytest.MonkeyPatch
Bug: TypeAlias = Callable[[Patch], None]
SEEDS = (3, 0, 5, 8, 1, 2)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_and_nothing_is_there_twice(seed: int) -> None:
    report = run_topic_seed(seed)
    assert report.violation is None, report.detail
    for event in ("kept", "committed", "aborted", "read", "read committed", "consumed"):
        assert report.events[event], event


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 400))
def test_hundreds_of_drawn_worlds_keep_what_kafka_promises(seed: int) -> None:
    report = run_topic_seed(seed)
    assert report.violation is None, report.detail


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


def only_the_last_batch_of_a_producer_is_in_snapshots(patch: Patch) -> None:
    def spoil(made: HostedPartition) -> None:
        for _, known in made.log.producers():
            while len(known.batches) > 1:
                known.batches.popleft()

    _thawed(patch, spoil)


def a_restored_replica_forgets_where_transactions_began(patch: Patch) -> None:
    def spoil(made: HostedPartition) -> None:
        for each in made.log._open.values():
            each.first_offset = None

    _thawed(patch, spoil)


def a_restored_replica_forgets_offsets_of_groups(patch: Patch) -> None:
    thaw = GroupCoordinator.thaw

    def wrong(self: GroupCoordinator, data: bytes) -> None:
        thaw(self, data)
        for name in self.names():
            group = self.get(name)
            assert group is not None
            group.offsets.committed.clear()

    patch.setattr(GroupCoordinator, "thaw", wrong)


def the_newest_open_transaction_bounds_what_is_stable(patch: Patch) -> None:
    def newest(self: StreamPartition) -> int:
        begun = (first for _, _, first in self.open_transactions())
        return max((each for each in begun if each is not None), default=self.end_offset)

    patch.setattr(StreamPartition, "last_stable_offset", property(newest))


def aborted_ranges_begin_one_record_late(patch: Patch) -> None:
    add = AbortedIndex.add

    def late(self: AbortedIndex, each: AbortedRange) -> None:
        add(self, replace(each, first_offset=each.first_offset + 1))

    patch.setattr(AbortedIndex, "add", late)


def who_takes_an_id_over_commits_what_was_open(patch: Patch) -> None:
    init = TransactionCoordinator._init_again
    decide = TransactionCoordinator._decide

    def generous(self: Any, *facts: Any) -> Any:
        self._decide = lambda *more, commit, bump: decide(self, *more, commit=True, bump=bump)
        try:
            return init(self, *facts)
        finally:
            del self._decide

    patch.setattr(TransactionCoordinator, "_init_again", generous)


def offsets_are_counted_by_the_leader_before_the_log_has_them(patch: Patch) -> None:
    submit = StreamSide._submit

    def hasty(self: StreamSide, now_ms: int, requests: Any) -> None:
        submit(self, now_ms, requests)
        for number, some in requests:
            hosted = self.section.partitions.get((some[0].topic_number, some[0].partition))
            if hosted is not None:
                self._tell(number, [AppendOutcome(hosted.log.end_offset, 0, 0) for _ in some])

    patch.setattr(StreamSide, "_submit", hasty)


def outcomes_are_given_to_the_wrong_requests(patch: Patch) -> None:
    patch.setattr(stream_side, "decode_outcomes", lambda said: [*decode_outcomes(said)][::-1])


def what_one_turn_brings_enters_the_log_backwards(patch: Patch) -> None:
    def backwards(now_ms: int, term: int, batches: Any) -> bytes:
        return encode_appends(now_ms, term, batches[::-1])

    patch.setattr(stream_side, "encode_appends", backwards)
    patch.setattr(stream_side, "decode_outcomes", lambda said: [*decode_outcomes(said)][::-1])


def answers_leave_as_they_are_ready(patch: Patch) -> None:
    flush = KafkaConnection.flush

    def hasty(self: KafkaConnection) -> None:
        self._pending = deque(sorted(self._pending, key=lambda each: each.pieces is None))
        flush(self)

    patch.setattr(KafkaConnection, "flush", hasty)


def a_fetch_does_not_tell_what_was_aborted(patch: Patch) -> None:
    patch.setattr(TenantTopics, "aborted", lambda *_facts: [])


def a_fetch_tells_of_ranges_that_end_before_what_it_gives(patch: Patch) -> None:
    told = TenantTopics.aborted

    def narrow(self: TenantTopics, topic: Any, p: int, start: int, end: int) -> Any:
        return told(self, topic, p, start + 1, end - 1)

    patch.setattr(TenantTopics, "aborted", narrow)


def a_fetch_gives_what_is_not_decided(patch: Patch) -> None:
    take = FetchWork._take

    def generous(self: FetchWork, key: Any, limit: int, found: Any) -> None:
        take(self, key, limit, replace(found, last_stable=found.high_watermark))

    patch.setattr(FetchWork, "_take", generous)


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
    only_the_last_batch_of_a_producer_is_in_snapshots,
    a_restored_replica_forgets_where_transactions_began,
    a_restored_replica_forgets_offsets_of_groups,
    the_newest_open_transaction_bounds_what_is_stable,
    aborted_ranges_begin_one_record_late,
    who_takes_an_id_over_commits_what_was_open,
    offsets_are_counted_by_the_leader_before_the_log_has_them,
    outcomes_are_given_to_the_wrong_requests,
    what_one_turn_brings_enters_the_log_backwards,
    answers_leave_as_they_are_ready,
    a_fetch_does_not_tell_what_was_aborted,
    a_fetch_tells_of_ranges_that_end_before_what_it_gives,
    a_fetch_gives_what_is_not_decided,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_noticed(bug: Bug, monkeypatch: Patch) -> None:
    bug(monkeypatch)
    assert any(run_topic_seed(seed).violation is not None for seed in SEEDS)
