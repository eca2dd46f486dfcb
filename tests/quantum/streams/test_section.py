"""Streams as a section: catalogue, batches, fences, transactions, groups, time; four replicas."""

from __future__ import annotations

import random

import pytest

from clustor.streams.changes import StreamAppend, StreamDefine, StreamRemove, StreamTrim
from quantum.broker import Broker
from quantum.broker.errors import SnapshotUnusable
from quantum.broker.sections import SECTION_HEAD
from quantum.broker.streams import (
    STREAM_FAMILY,
    AddToTransaction,
    AlterTopic,
    CommitInTransaction,
    CommitOffsets,
    CommittedOffset,
    DeleteTopic,
    EndInGroup,
    EndTransaction,
    GrowTopic,
    InitProducer,
    JoinCompleted,
    JoinGroup,
    MemberWaits,
    ProducerGiven,
    StreamBatch,
    StreamRefusal,
    TransactionState,
    decode_outcomes,
    encode_appends,
)
from quantum.broker.streams.section import SWEEP_MS, encode_term, encode_trims
from quantum.broker.streams.section_items import (
    EndNoted,
    TopicDefined,
    TopicEnded,
    TransactionEnded,
    TransactionOpened,
)
from quantum.broker.streams.section_state import GroupHappened
from quantum.broker.streams.topics import TENANT_PARTITIONS_MAX, file_id_of
from quantum.model.records import RecordProtocol
from quantum.protocols.kafka.codec import MarkerKind, check_stored, read_header, read_marker
from tests.quantum.broker.desk import SETTINGS
from tests.quantum.streams.stream_desk import TERM, StreamDesk, batch_of

R = StreamRefusal
ONE = (7, 0, 0)


def producer_of(desk: StreamDesk, name: str = "t") -> ProducerGiven:
    given = desk.transact(InitProducer(0, name, 60_000))
    assert isinstance(given, ProducerGiven)
    return given


def test_a_topic_begins_here_and_is_told_to_the_others() -> None:
    desk = StreamDesk()
    reply = desk.create("orders", 2)
    assert (reply.number, reply.refusal) == (1, None)
    assert desk.awaited == [(1, 1)]
    assert [each for each in desk.appended if isinstance(each, StreamDefine)] == [
        StreamDefine(file_id_of(1, 0)),
        StreamDefine(file_id_of(1, 1)),
    ]
    [item] = desk.items_there()
    assert isinstance(item, TopicDefined)
    assert (item.spec.name, item.spec.partitions, item.spec.ring) == ("orders", 2, 2)


def test_the_same_order_again_changes_nothing_and_waits_again() -> None:
    desk = StreamDesk()
    desk.create("orders")
    desk.to_there()
    reply = desk.create("orders")
    assert (reply.number, reply.refusal) == (1, None)
    assert desk.awaited == [(1, 2)]
    assert len(desk.section.partitions) == 1


@pytest.mark.parametrize(
    ("name", "partitions", "configs", "refusal"),
    [
        ("", 1, {}, R.BAD_TOPIC_NAME),
        ("..", 1, {}, R.BAD_TOPIC_NAME),
        ("a b", 1, {}, R.BAD_TOPIC_NAME),
        ("n" * 250, 1, {}, R.BAD_TOPIC_NAME),
        ("t", 0, {}, R.BAD_PARTITIONS),
        ("t", 10_001, {}, R.BAD_PARTITIONS),
        ("t", 1, {"retention_ms": "soon"}, R.BAD_CONFIG),
        ("t", 1, {"cleanup_policy": "compress"}, R.BAD_CONFIG),
        ("t", 1, {"min_insync_replicas": "2"}, R.BAD_CONFIG),
    ],
)
def test_what_no_topic_can_be_is_refused(
    name: str, partitions: int, configs: dict[str, str], refusal: StreamRefusal
) -> None:
    desk = StreamDesk()
    assert desk.create(name, partitions, **configs).refusal is refusal
    assert not desk.to_there()
    assert len(desk.section.topics) == 0


def test_topics_grow_change_and_end() -> None:
    desk = StreamDesk()
    desk.create("orders", 1, retention_ms="1000")
    assert desk.topics(GrowTopic(0, "orders", 3)).refusal is None
    assert len(desk.section.partitions) == 3
    assert desk.topics(GrowTopic(0, "orders", 2)).refusal is R.BAD_PARTITIONS
    assert desk.topics(GrowTopic(0, "orders", 10_001)).refusal is R.BAD_PARTITIONS
    assert desk.topics(AlterTopic(0, "orders", (("retention.bytes", "9"),))).refusal is None
    spec = desk.section.topics.named("orders")
    assert spec is not None
    assert spec.configs == (("retention.bytes", "9"),)
    assert desk.topics(AlterTopic(0, "orders", (("x", "9"),))).refusal is R.BAD_CONFIG
    assert desk.topics(DeleteTopic(0, "orders")).refusal is None
    assert desk.topics(DeleteTopic(0, "orders")).refusal is R.TOPIC_UNKNOWN
    assert not desk.section.partitions
    assert sum(isinstance(each, StreamRemove) for each in desk.appended) == 3
    assert isinstance(desk.items_there()[-1], TopicEnded)
    assert desk.create("orders").number == 2  # a number names one topic for ever


def test_all_partitions_of_a_tenant_are_bounded() -> None:
    desk = StreamDesk()
    desk.create("a")
    desk.section.topics.partition_count = TENANT_PARTITIONS_MAX
    assert desk.section.topics.judge(GrowTopic(0, "a", 2)) is not None
    desk.section.topics.partition_count = 1


def test_another_partition_takes_the_catalogues_word_and_no_orders() -> None:
    desk = StreamDesk(prg=1)
    assert desk.create("orders").refusal is R.NOT_COORDINATOR
    assert not desk.section.partitions


def test_a_batch_gets_its_place_and_the_bytes_stay() -> None:
    desk = StreamDesk()
    desk.create("orders", 2)
    first, second, third = desk.append(
        batch_of(1, 0, 3), batch_of(1, 1, 1), batch_of(1, 0, 2), term=9
    )
    assert [each.base_offset for each in (first, second, third)] == [0, 0, 3]
    assert [each.log_append_ms for each in (first, second, third)] == [1_000] * 3
    stored = [each for each in desk.kept() if each.partition == file_id_of(1, 0)]
    assert [(each.first, each.count, each.timestamp) for each in stored] == [
        (0, 3, 1_002),
        (3, 2, 1_001),
    ]
    for each in stored:
        assert each.payload[0] == RecordProtocol.KAFKA
        header = check_stored(each.payload[1:])
        assert (header.base_offset, header.leader_epoch) == (each.first, 9)
        assert each.payload[1 + 21 :] == batch_of(1, 0, each.count).data[21:]


def test_a_repeated_batch_is_answered_with_its_first_place() -> None:
    desk = StreamDesk()
    desk.create("orders")
    assert desk.append(batch_of(1, 0, 2, (7, 0, 0)))[0].base_offset == 0
    assert desk.append(batch_of(1, 0, 1, (7, 0, 2)))[0].base_offset == 2
    again = desk.append(batch_of(1, 0, 2, (7, 0, 0)), batch_of(1, 0, 1, (7, 0, 2)))
    assert [(each.base_offset, each.repeat) for each in again] == [(0, True), (2, True)]
    assert len(desk.kept()) == 2
    gap = desk.append(batch_of(1, 0, 1, (7, 0, 9)))[0]
    assert gap.refusal is R.OUT_OF_ORDER_SEQUENCE
    assert desk.append(batch_of(1, 0, 1, (7, 1, 0)))[0].refusal is None
    assert desk.append(batch_of(1, 0, 1, (7, 0, 3)))[0].refusal is R.STALE_EPOCH


def test_one_bad_batch_of_a_turn_harms_no_other() -> None:
    desk = StreamDesk()
    desk.create("orders")
    good = batch_of(1, 0, 2)
    lies = StreamBatch(1, 0, 3, -1, 0, 0, 0, 5, good.data)
    short = StreamBatch(1, 0, 1, -1, 0, 0, 0, 5, b"short")
    control = StreamBatch(1, 0, 2, -1, 0, 0, 2, 5, good.data)
    unknown = StreamBatch(2, 0, 2, -1, 0, 0, 0, 5, good.data)
    bare = StreamBatch(1, 0, 2, -1, 0, 0, 1, 5, good.data)
    outcomes = desk.append(lies, short, good, control, unknown, bare)
    assert [each.refusal for each in outcomes] == [
        *(R.BAD_BATCH, R.BAD_BATCH, None, R.BAD_BATCH, R.TOPIC_UNKNOWN, R.BAD_BATCH)
    ]
    assert outcomes[2].base_offset == 0


def test_a_batch_behind_one_of_a_topic_that_is_gone_keeps_its_own_bytes() -> None:
    desk = StreamDesk()
    desk.create("orders")
    gone, mine = batch_of(2, 0, 2, (7, 0, 0)), batch_of(1, 0, 2, (8, 0, 0))
    outcomes = desk.append(gone, mine)
    assert [each.refusal for each in outcomes] == [R.TOPIC_UNKNOWN, None]
    [stored] = desk.kept()
    assert check_stored(stored.payload[1:]).producer_id == 8


def test_leader_epochs_say_where_they_ended() -> None:
    desk = StreamDesk()
    desk.create("orders")
    desk.append(batch_of(1, 0, 2), term=3)
    desk.append(batch_of(1, 0, 2), term=3)
    desk.append(batch_of(1, 0, 1), term=7)
    hosted = desk.section.partitions[1, 0]
    assert [hosted.epoch_end(each) for each in (2, 3, 5, 7, 9)] == [
        *((-1, -1), (3, 4), (3, 4), (7, 5), (7, 5))
    ]
    desk.apply(encode_trims(desk.now_ms, [(1, 0, 4)]))
    assert hosted.epoch_end(3) == (-1, -1)
    assert hosted.epoch_end(7) == (7, 5)


def test_trims_move_the_start_and_never_back() -> None:
    desk = StreamDesk()
    desk.create("orders", 2)
    desk.append(batch_of(1, 0, 5))

    def trim(*trims: tuple[int, int, int]) -> list[tuple[int, StreamRefusal | None]]:
        reply = desk.apply(encode_trims(desk.now_ms, trims))[0]
        return [(each.start_offset, each.refusal) for each in decode_outcomes(reply)]

    assert trim((1, 0, 3)) == [(3, None)]
    assert trim((1, 0, 1)) == [(3, None)]
    assert trim((1, 0, 9), (4, 0, 1)) == [(3, R.OFFSET_OUT_OF_RANGE), (-1, R.TOPIC_UNKNOWN)]
    assert trim((1, 0, -1)) == [(5, None)]
    assert [each for each in desk.appended if isinstance(each, StreamTrim)] == [
        StreamTrim(file_id_of(1, 0), 3),
        StreamTrim(file_id_of(1, 0), 5),
    ]
    assert desk.append(batch_of(1, 0, 1))[0].base_offset == 5


def test_a_transaction_in_one_partition_is_whole_with_its_marker() -> None:
    desk = StreamDesk()
    desk.create("orders")
    desk.apply(encode_term(desk.now_ms, TERM + 1))
    given = producer_of(desk)
    producer = (given.producer_id, given.epoch, 0)
    late = desk.append(batch_of(1, 0, 2, producer, transactional=True), term=TERM + 1)[0]
    assert late.refusal is R.TRANSACTION_NOT_OPEN
    add = AddToTransaction(0, "t", *producer[:2], (("orders", 0),))
    assert desk.transact(add) == given
    assert desk.append(batch_of(1, 0, 2, producer, transactional=True))[0].base_offset == 0
    log = desk.section.partitions[1, 0].log
    assert (log.last_stable_offset, log.end_offset) == (0, 2)
    desk.now_ms = 5_000
    bumped = desk.transact(EndTransaction(0, "t", *producer[:2], commit=True))
    assert bumped == ProducerGiven(given.producer_id, given.epoch + 1)
    marker = desk.kept()[-1]
    assert (marker.first, marker.count, marker.timestamp) == (2, 1, 5_000)
    assert read_marker(marker.payload[1:]).kind is MarkerKind.COMMIT
    header = check_stored(marker.payload[1:])
    assert (header.base_offset, header.leader_epoch) == (2, TERM + 1)
    assert (header.producer_id, header.producer_epoch) == (bumped.producer_id, bumped.epoch)
    assert log.last_stable_offset == 3
    known = desk.section.transactions.get("t")
    assert known is not None
    assert known.state is TransactionState.COMPLETE_COMMIT
    after = desk.append(batch_of(1, 0, 1, (*producer[:2], 2), transactional=True))[0]
    assert after.refusal is R.STALE_EPOCH  # a late batch can't make it hang


def test_a_transaction_over_two_partitions_waits_for_both() -> None:
    desk = StreamDesk()
    desk.create("far-orders")  # the other partition owns what begins with `far`
    desk.create("orders")
    desk.to_there()
    given = producer_of(desk)
    facts = ("t", given.producer_id, given.epoch)
    both = (("far-orders", 0), ("orders", 0))
    desk.transact(AddToTransaction(0, *facts, both))
    assert desk.awaited == [(1, 3)]
    assert desk.items_there() == [
        TransactionOpened(given.producer_id, given.epoch, "far-orders", 0)
    ]
    desk.transact(AddToTransaction(0, *facts, both))  # asked again: it waits again
    assert desk.awaited == [(1, 4)]
    desk.to_there()
    desk.transact(EndTransaction(0, *facts, commit=False))
    known = desk.section.transactions.get("t")
    assert known is not None
    assert known.state.name == "PREPARE_ABORT"
    ended = (given.producer_id, given.epoch + 1)
    assert desk.items_there() == [TransactionEnded("t", *ended, False, "far-orders", 0)]  # noqa: FBT003
    wait = desk.transact(AddToTransaction(0, "t", *ended, both))
    assert wait is R.TRANSACTION_ENDING
    desk.hear(EndNoted("t", *ended, "far-orders", 0))
    assert known.state is TransactionState.COMPLETE_ABORT


def test_what_another_coordinator_says_is_done_and_answered() -> None:
    desk = StreamDesk()
    desk.create("orders")
    desk.to_there()
    pid = 1 << 48 | 1
    desk.hear(TransactionOpened(pid, 4, "orders", 0))
    assert desk.append(batch_of(1, 0, 1, (pid, 4, 0), transactional=True))[0].base_offset == 0
    desk.hear(TransactionEnded("x", pid, 5, commit=False, topic="orders", partition=0))
    assert desk.items_there() == [EndNoted("x", pid, 5, "orders", 0)]
    assert read_marker(desk.kept()[-1].payload[1:]).kind is MarkerKind.ABORT
    log = desk.section.partitions[1, 0].log
    assert [(each.first_offset, each.last_offset) for each in log.aborted_between(0, 9)] == [(0, 1)]
    desk.hear(TransactionEnded("x", pid, 5, commit=False, topic="gone", partition=0))
    assert desk.items_there() == [EndNoted("x", pid, 5, "gone", 0)]


def test_a_topic_that_is_gone_holds_no_transaction_up() -> None:
    desk = StreamDesk()
    desk.create("far-orders")
    given = producer_of(desk)
    facts = ("t", given.producer_id, given.epoch)
    assert desk.transact(AddToTransaction(0, *facts, (("none", 0),))) is R.TOPIC_UNKNOWN
    desk.transact(AddToTransaction(0, *facts, (("far-orders", 0),)))
    desk.topics(DeleteTopic(0, "far-orders"))
    desk.transact(EndTransaction(0, *facts, commit=True))
    known = desk.section.transactions.get("t")
    assert known is not None
    assert known.state is TransactionState.COMPLETE_COMMIT


def test_a_transaction_times_out_by_the_logs_clock() -> None:
    desk = StreamDesk()
    desk.create("orders")
    given = producer_of(desk)
    producer = (given.producer_id, given.epoch)
    desk.transact(AddToTransaction(0, "t", *producer, (("orders", 0),)))
    desk.append(batch_of(1, 0, 1, (*producer, 0), transactional=True))
    assert desk.leader.next_deadline_ms() == 61_000
    desk.elapse(59.999)
    assert desk.section.partitions[1, 0].log.last_stable_offset == 0
    desk.elapse(0.001)
    assert desk.section.partitions[1, 0].log.last_stable_offset == 2
    assert read_header(desk.kept()[-1].payload[1:]).is_control
    assert desk.transact(EndTransaction(0, "t", *producer, commit=True)) is R.FENCED


def test_offsets_of_a_transaction_count_when_it_is_committed() -> None:
    desk = StreamDesk()
    desk.create("orders")
    given = producer_of(desk)
    producer = (given.producer_id, given.epoch)
    desk.transact(AddToTransaction(0, "t", *producer, (), ("g",)))
    rows = ((("orders", 0), CommittedOffset(4)),)
    assert desk.groups(CommitInTransaction(0, "g", -1, "", *producer, rows)) == (None,)
    group = desk.section.groups.get("g")
    assert group is not None
    assert group.offsets.get(("orders", 0)) is None
    desk.transact(EndTransaction(0, "t", *producer, commit=True))
    committed = group.offsets.get(("orders", 0))
    assert isinstance(committed, CommittedOffset)
    assert committed.offset == 4
    refused = desk.groups(CommitInTransaction(0, "g", -1, "", *producer, rows))
    assert refused is R.TRANSACTION_NOT_OPEN
    desk.topics(DeleteTopic(0, "orders"))
    assert not group.offsets.committed


def test_a_rebalance_ends_by_the_logs_clock_and_tells_who_waits() -> None:
    desk = StreamDesk()
    join = JoinGroup(0, "g", "", "m1", 10_000, 60_000, "consumer", (("range", b""),))
    join.needs_known_id = False
    assert desk.groups(join) == MemberWaits("m1")
    assert isinstance(desk.effects[-1], GroupHappened)
    desk.elapse(2.999)
    assert not any(isinstance(each, GroupHappened) for each in desk.effects)
    desk.elapse(0.001)
    [happened] = [each for each in desk.effects if isinstance(each, GroupHappened)]
    assert happened.events == (JoinCompleted("g", 1),)


def test_commands_for_other_coordinators_are_refused() -> None:
    desk = StreamDesk()
    commit = CommitOffsets(0, "g", -1, "", ((("t", 0), CommittedOffset(1)),))
    assert desk.groups(commit) == (None,)
    assert desk.groups(EndInGroup(0, "g", 1, 1, commit=True)) is R.NOT_COORDINATOR
    other = StreamDesk(prg=1)
    assert other.groups(commit) is R.NOT_COORDINATOR
    assert other.transact(InitProducer(0, "t", 9)) is R.NOT_COORDINATOR
    assert other.transact(InitProducer(0, None, 0)) == ProducerGiven(1 << 48 | 1, 0)


def test_what_nobody_uses_is_forgotten_by_the_logs_clock() -> None:
    desk = StreamDesk()
    desk.create("orders")
    desk.append(batch_of(1, 0, 1, ONE))
    producer_of(desk)
    desk.groups(CommitOffsets(0, "g", -1, "", ((("orders", 0), CommittedOffset(1)),)))
    assert desk.leader.next_deadline_ms() == SWEEP_MS
    desk.elapse(2 * 86_400)
    assert desk.section.partitions[1, 0].log.producer_count == 0
    assert desk.section.groups.names() == ["g"]
    desk.elapse(7 * 86_400)
    assert desk.section.groups.names() == []
    assert desk.section.transactions.ids() == []
    again = desk.append(batch_of(1, 0, 1, (7, 0, 5)))[0]
    assert again.base_offset == 1  # who was forgotten may begin anywhere


def test_no_bytes_raise_and_no_page_is_half_read() -> None:
    desk = StreamDesk()
    desk.create("orders")
    desk.append(batch_of(1, 0, 1, ONE))
    good = [
        encode_appends(5, 1, [batch_of(1, 0, 2)]),
        encode_trims(5, [(1, 0, 1)]),
        encode_term(5, 9),
    ]
    rng = random.Random(11)
    for _ in range(400):
        data = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(9, len(data))] = rng.randrange(256)
        desk.apply(bytes(data[: rng.randrange(9, len(data) + 1)]))
    for kind in range(8):
        desk.apply(SECTION_HEAD.pack(STREAM_FAMILY, 5) + bytes((kind,)) + rng.randbytes(40))
        desk.apply(SECTION_HEAD.pack(STREAM_FAMILY, 5) + bytes((kind,)))
    for key in desk.section.page_keys():
        page = desk.section.page(key)
        assert page is not None
        with pytest.raises(SnapshotUnusable):
            Broker(SETTINGS).state.sections[STREAM_FAMILY].put_page(key, page[:-1])
        with pytest.raises(SnapshotUnusable):
            Broker(SETTINGS).state.sections[STREAM_FAMILY].put_page(b"?", page)


def test_a_page_changes_only_with_what_is_on_it() -> None:
    desk = StreamDesk()
    desk.create("orders", 50)
    desk.leader.mark(99)
    command = encode_appends(desk.now_ms, TERM, [batch_of(1, 7)])
    desk.leader.apply_batch(100, [encode_term(desk.now_ms, TERM)])
    desk.leader.mark(100)
    desk.leader.apply_batch(101, [command])
    delta = desk.leader.delta(100)
    assert delta is not None
    assert len(b"".join(delta)) < 1_200
    assert isinstance(desk.leader.take_stream_changes()[-1], StreamAppend)
