"""The leader's side of topics: one turn one command, answers once, coordinators, sessions."""

from __future__ import annotations

from typing import Any

import pytest

from quantum.broker.streams import (
    AddToTransaction,
    CommitOffsets,
    CommittedOffset,
    EndTransaction,
    GroupEvent,
    GroupResult,
    InitProducer,
    JoinCompleted,
    JoinedGeneration,
    JoinGroup,
    MemberWaits,
    ProducerGiven,
    RebalanceBegun,
    StreamRefusal,
    SyncGroup,
    TransactionResult,
    decode_outcomes,
    encode_appends,
)
from quantum.mesh.topic_views import TopicKind, TopicView
from quantum.mesh.topics import ANSWER_MS_MAX, TenantTopics
from quantum.partition import stream_side
from quantum.partition.stream_side import section_of
from tests.quantum.serving.lab import NODE, TENANT, Lab
from tests.quantum.streams.stream_desk import batch_of

UUID = b"0123456789abcdef"
R = StreamRefusal


class TopicLab(Lab):
    """A lab whose steps are those of an adapter."""

    @property
    def topics(self) -> TenantTopics:
        return self.service.tenants[TENANT].topics

    def create(self, name: str = "orders", partitions: int = 6, uuid: bytes = UUID) -> TopicView:
        told: list[Any] = []
        self.topics.create_topic(name, partitions, (), uuid, told.append)
        self.settle()
        assert [each.refusal for each in told] == [None]
        topic = self.topics.topic(name)
        assert topic is not None
        return topic

    def coordinate(self, prg: int, command: Any) -> Any:
        told: list[Any] = []
        self.topics.coordinate(prg, command, told.append)
        self.settle()
        [result] = told
        assert isinstance(result, GroupResult | TransactionResult)
        return result.answer

    def append(self, topic: TopicView, p: int, **how: Any) -> Any:
        told: list[Any] = []
        self.topics.append(topic.prgs[p], [batch_of(topic.number, p, **how)], told.append)
        self.settle()
        return told[0] if told[0] is None else told[0][0]

    @property
    def indices(self) -> list[int]:
        return [group.replica.machine.applied_index for group in self.node.groups]


def test_a_topic_is_everywhere_when_its_creation_is_answered() -> None:
    lab = TopicLab()
    topic = lab.create()
    assert (topic.kind, topic.partitions, topic.uuid) == (TopicKind.TOPIC, 6, UUID)
    assert set(topic.prgs) == {0, 1, 2}
    assert lab.topics.topic_by_id(UUID) == topic
    assert [each.name for each in lab.topics.topics()] == ["orders"]
    for p in range(6):
        view = lab.topics.partition(topic, p)
        assert view is not None
        assert (view.start, view.high_watermark, view.last_stable) == (0, 0, 0)
    assert lab.topics.partition(topic, 6) is None
    assert lab.topics.leader(topic.prgs[0]).node == NODE
    assert lab.topics.leader(topic.prgs[0]).is_here
    assert lab.topics.leader(7).node is None


def test_an_order_waits_for_a_partition_that_does_not_answer_and_not_for_ever() -> None:
    lab = TopicLab()
    lab.node.groups[2].replica.is_stuck = True
    told: list[Any] = []
    lab.topics.create_topic("slow", 1, (), UUID, told.append)
    for _ in range(5):
        lab.settle()
    assert told == []
    lab.advance(ANSWER_MS_MAX / 1000)
    assert told == [None]
    lab.node.groups[2].replica.is_stuck = False
    lab.node.is_due = True
    lab.settle()
    lab.topics.create_topic("slow", 1, (), UUID, told.append)
    lab.settle()
    assert told[1].number == 1  # the same order again


def test_orders_about_topics_are_answered_with_their_refusals() -> None:
    lab = TopicLab()
    lab.create()
    told: list[Any] = []
    lab.topics.create_topic("orders", 6, (), b"another-uuid-123", told.append)
    lab.settle()
    lab.topics.grow_topic("orders", 8, told.append)
    lab.settle()
    lab.topics.alter_topic("orders", (("no.such", "1"),), told.append)
    lab.topics.delete_topic("none", told.append)
    lab.settle()
    assert [each.refusal for each in told] == [
        *(R.TOPIC_EXISTS, None, R.BAD_CONFIG, R.TOPIC_UNKNOWN)
    ]
    topic = lab.topics.topic("orders")
    assert topic is not None
    assert topic.partitions == 8
    lab.topics.delete_topic("orders", told.append)
    lab.settle()
    assert told[-1].refusal is None
    assert lab.topics.topic("orders") is None


def test_all_batches_of_one_turn_are_one_command() -> None:
    lab = TopicLab(prgs=1)
    topic = lab.create()
    lab.append(topic, 0)  # the term is in the log now
    before, told = lab.indices[0], list[Any]()
    for p in range(6):
        lab.topics.append(0, [batch_of(topic.number, p, 2)] * 2, told.append)
    lab.settle()
    assert lab.indices[0] == before + 1
    assert [[each.base_offset for each in some] for some in told] == [[1, 3], *[[0, 2]] * 5]
    view = lab.topics.partition(topic, 0)
    assert view is not None
    assert (view.high_watermark, view.leader_epoch) == (5, 1)


def test_what_is_too_large_for_one_command_goes_in_several_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = TopicLab(prgs=1)
    topic = lab.create()
    lab.append(topic, 0)
    size = len(batch_of(topic.number, 0, 2).data) + 64
    monkeypatch.setattr(stream_side, "COMMAND_BYTES_MAX", 2 * size)
    told: list[Any] = []
    for _ in range(5):
        lab.topics.append(0, [batch_of(topic.number, 0, 2)], told.append)
    lab.settle()
    assert [each.base_offset for some in told for each in some] == [1, 3, 5, 7, 9]
    view = lab.topics.partition(topic, 0)
    assert view is not None and view.high_watermark == 11


def test_who_waits_when_the_leadership_ends_is_told_that_nobody_knows() -> None:
    lab = TopicLab()
    topic = lab.create()
    told: list[Any] = []
    for group in lab.node.groups:
        group.replica.is_stuck = True
    lab.topics.append(topic.prgs[0], [batch_of(topic.number, 0)], told.append)
    lab.topics.coordinate(0, InitProducer(0, None, 1), told.append)
    lab.settle()
    assert told == []
    assert lab.topics.is_ready()
    lab.lead(leads=False)
    assert not lab.topics.is_ready(), "a topic that is not found may be there"
    assert told == [None, None]
    assert lab.append(topic, 0) is None
    for group in lab.node.groups:
        group.replica.is_stuck = False
    lab.lead(leads=True)
    assert lab.append(topic, 0).refusal is None
    assert len(told) == 2, "each was told once"


def test_a_transaction_over_all_partitions_of_the_ring() -> None:
    lab = TopicLab()
    topic = lab.create()
    prg = lab.topics.transaction("t")
    given = lab.coordinate(prg, InitProducer(0, "t", 60_000))
    assert isinstance(given, ProducerGiven)
    facts = ("t", given.producer_id, given.epoch)
    places = tuple(("orders", p) for p in range(6))
    assert lab.coordinate(prg, AddToTransaction(0, *facts, places)) == given
    for p in range(6):
        assert lab.topics.is_open(topic, p, given.producer_id, given.epoch)
        outcome = lab.append(topic, p, producer=(*facts[1:], 0), transactional=True)
        assert outcome.base_offset == 0
    views = [lab.topics.partition(topic, p) for p in range(6)]
    assert all(each is not None and each.last_stable == 0 for each in views)
    lab.coordinate(prg, EndTransaction(0, *facts, commit=False))
    views = [lab.topics.partition(topic, p) for p in range(6)]
    assert all(each is not None and each.last_stable == 2 for each in views)
    ranges = [lab.topics.aborted(topic, p, 0, 9) for p in range(6)]
    assert [(each.first_offset, each.last_offset) for each, *_ in ranges] == [(0, 1)] * 6
    assert lab.topics.epoch_end(topic, 0, 1) == (1, 2)


def join(member: str = "", fresh: str = "m1") -> JoinGroup:
    command = JoinGroup(0, "g", member, fresh, 10_000, 60_000, "consumer", (("range", b"x"),))
    command.needs_known_id = False
    return command


def test_a_group_is_told_of_its_rebalance_and_loses_who_is_silent() -> None:
    lab = TopicLab()
    prg = lab.topics.group("g")
    events: list[tuple[int, GroupEvent]] = []
    lab.topics.on_group_event(lambda at, event: events.append((at, event)))
    assert lab.coordinate(prg, join()) == MemberWaits("m1")
    assert events == [(prg, RebalanceBegun("g"))]
    lab.advance(3.1)
    assert events[1:] == [(prg, JoinCompleted("g", 1))]
    sync = SyncGroup(0, "g", 1, "m1", (("m1", b"all"),))
    assert lab.coordinate(prg, sync).assignment == b"all"
    commit = CommitOffsets(0, "g", 1, "m1", ((("orders", 0), CommittedOffset(3)),))
    assert lab.coordinate(prg, commit) == (None,)
    for _ in range(3):
        lab.topics.heard("g", "m1")
        lab.advance(8)
    group = lab.topics.coordinator(prg).groups.get("g")
    assert group is not None
    assert group.has_members
    lab.lead(leads=True)  # a new leader begins every session anew
    lab.advance(8)
    group = lab.topics.coordinator(prg).groups.get("g")
    assert group is not None
    assert group.has_members
    lab.advance(11)
    lab.advance(1)
    assert list(group.members.members if group.members else ()) == []
    refused = lab.coordinate(prg, sync)
    assert refused is R.UNKNOWN_MEMBER
    again = lab.coordinate(prg, join(fresh="m2"))
    assert isinstance(again, MemberWaits | JoinedGeneration)


def test_records_are_deleted_by_the_log() -> None:
    lab = TopicLab()
    topic = lab.create()
    lab.append(topic, 0, count=5)
    told: list[Any] = []
    lab.topics.delete_records(topic, 0, 3, told.append)
    lab.topics.delete_records(topic, 0, 9, told.append)
    lab.topics.delete_records(topic, 0, -1, told.append)
    lab.settle()
    assert [(each.start_offset, each.refusal) for each in told] == [
        *((3, None), (3, R.OFFSET_OUT_OF_RANGE), (5, None))
    ]


def test_a_waiter_hears_of_its_partition_once_and_of_a_new_leader() -> None:
    lab = TopicLab()
    topic = lab.create()
    told: list[str] = []
    lab.topics.on_news(topic, 0, lambda: told.append("first"))
    cancel = lab.topics.on_news(topic, 0, lambda: told.append("never"))
    cancel()
    file_id = lab.topics.file_id(topic, 0)
    lab.topics.stream_news(topic.prgs[0], {file_id + 1})
    lab.topics.stream_news(topic.prgs[0] + 1, {file_id})
    assert told == []
    lab.topics.stream_news(topic.prgs[0], {file_id})
    lab.topics.stream_news(topic.prgs[0], {file_id})
    assert told == ["first"]
    lab.topics.on_news(topic, 0, lambda: told.append("led"))
    lab.lead(leads=True)
    assert told == ["first", "led"]


def test_nothing_is_logged_before_every_member_knows_topics() -> None:
    lab = TopicLab()
    for side in lab.topics.sides:
        side._is_known, side._knows = False, lambda: False
    told: list[Any] = []
    lab.topics.create_topic("t", 1, (), UUID, told.append)
    lab.topics.append(0, [batch_of(1)], told.append)
    lab.settle()
    assert told == [None, None]
    for side in lab.topics.sides:
        side._knows = lambda: True
    assert lab.create().partitions == 6


def test_a_batch_that_another_node_asks_for_has_the_leader_s_own_term_and_counts_once() -> None:
    lab = TopicLab()
    topic = lab.create(partitions=1)
    prg = topic.prgs[0]
    side = lab.topics.sides[prg]
    told: list[Any] = []
    batch = batch_of(topic.number, 0, producer=(7, 0, 0))
    for _ in range(2):
        side.order(encode_appends(lab.service.now_ms(), 999, [batch]), told.append)
        lab.settle()
    first, again = (next(decode_outcomes(each)) for each in told)
    assert (first.base_offset, first.repeat) == (0, False)
    assert (again.base_offset, again.repeat) == (0, True)
    hosted = section_of(lab.service.tenants[TENANT].prgs[prg].broker).partitions[topic.number, 0]
    assert [epoch for epoch, _ in hosted.epochs] == [lab.topics.leader(prg).epoch]
