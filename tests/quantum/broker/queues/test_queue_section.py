"""Queues of a partition: what is kept, what becomes of it, and that every replica agrees."""

from __future__ import annotations

import random

import msgspec
import pytest

from quantum.broker.errors import SnapshotUnusable
from quantum.broker.queues import (
    DefineQueue,
    DeleteQueue,
    Enqueue,
    EnqueueReply,
    NewMessage,
    PurgeQueue,
    QueueEnded,
    QueueGrew,
    QueueRefusal,
    QueueShrank,
    QueueSpec,
    ReviveMessages,
    Settlement,
    SettlementKind,
    messages_in,
)
from quantum.broker.sections import SECTION_HEAD
from tests.quantum.broker.queues.queue_desk import LANE, QueueDesk

ACCEPTED, REJECTED, RELEASED, FAILED, CHANGED = SettlementKind


def test_messages_stay_until_they_are_accepted_and_bodies_stand_in_the_file() -> None:
    desk = QueueDesk()
    desk.define()
    assert desk.enqueue(b"a", b"b", b"c") == EnqueueReply()
    assert desk.effects == [QueueGrew(b"q", [0, 1, 2], [b"a", b"b", b"c"])]
    assert desk.settle(ACCEPTED, 1) == 1
    assert desk.effects == [QueueShrank(b"q", [1], [])]
    assert desk.live() == [b"a", b"c"]
    assert desk.settle(ACCEPTED, 1) == 0, "what is settled is settled once"
    assert desk.settle(RELEASED, 0) == 1
    assert desk.live() == [b"a", b"c"]


def test_what_an_empty_queue_held_leaves_its_file() -> None:
    desk = QueueDesk()
    desk.define()
    desk.enqueue(b"a", b"b")
    desk.settle(ACCEPTED, 0)
    assert desk.queue().start == 0, "the file follows in steps"
    desk.settle(ACCEPTED, 1)
    assert desk.queue().start == 2
    assert desk.bodies[desk.queue().file_id] == {}
    desk.enqueue(*[b"%d" % n for n in range(300)])
    desk.settle(ACCEPTED, *range(2, 260))
    assert desk.queue().start == 260
    assert desk.live()[0] == b"258"


def test_rejected_messages_are_dead_letters_with_their_reason() -> None:
    desk = QueueDesk()
    desk.define()
    desk.enqueue(b"good", b"bad")
    desk.settle(REJECTED, 1, reason=b"app:no schema")
    assert desk.effects == [QueueShrank(b"q", [1], [1])]
    assert desk.live() == [b"good"]
    assert desk.dead() == [(b"bad", b"rejected: app:no schema")]
    desk.settle(ACCEPTED, 0)
    assert desk.queue().start == 0, "a dead letter keeps its body"
    assert desk.say(ReviveMessages(b"q", [])).done == 1
    assert desk.live() == [b"bad"]
    assert desk.effects == [QueueGrew(b"q", [1], [])]
    desk.settle(REJECTED, 1)
    assert desk.settle(ACCEPTED, 1) == 1
    assert desk.dead() == []


def test_failed_deliveries_are_counted_up_to_the_bound() -> None:
    desk = QueueDesk()
    desk.define(deliveries_max=3)
    desk.enqueue(b"poison")
    for failures in (1, 2):
        desk.settle(FAILED, 0, annotations=[(b"k", b"%d" % failures)])
        assert desk.queue().live[0].failures == failures
        assert desk.effects == []
    desk.settle(CHANGED, 0, annotations=[(b"l", b"x")])
    assert desk.queue().live[0].annotations == [(b"k", b"2"), (b"l", b"x")]
    desk.settle(FAILED, 0)
    assert desk.dead() == [(b"poison", b"delivered 3 times")]
    assert desk.effects == [QueueShrank(b"q", [0], [0])]


def test_without_a_bound_a_delivery_may_fail_for_ever() -> None:
    desk = QueueDesk()
    desk.define(deliveries_max=0)
    desk.enqueue(b"poison")
    for _ in range(30):
        desk.settle(FAILED, 0)
    assert desk.live() == [b"poison"]


def test_messages_expire_by_the_logs_clock() -> None:
    desk = QueueDesk()
    desk.define(ttl_ms=5_000)
    absolute = NewMessage(b"at", expires_ms=desk.now_ms + 9_000)
    desk.enqueue(NewMessage(b"ttl", ttl_ms=2_000), b"default", absolute)
    assert desk.leader.next_deadline_ms() == desk.now_ms + 2_000
    desk.elapse(1.999)
    assert desk.live() == [b"ttl", b"default", b"at"]
    desk.elapse(0.001)
    assert desk.live() == [b"default", b"at"]
    assert desk.effects == [QueueShrank(b"q", [0], [])]
    desk.elapse(3)
    assert desk.live() == [b"at"]
    desk.elapse(4)
    assert desk.live() == []
    assert desk.queue().dropped == 3
    assert desk.leader.next_deadline_ms() is None


def test_expired_messages_are_dead_letters_where_the_queue_keeps_them() -> None:
    desk = QueueDesk()
    desk.define(keeps_expired=True)
    desk.enqueue(NewMessage(b"late", ttl_ms=1))
    desk.elapse(1)
    assert desk.dead() == [(b"late", b"expired")]
    desk.say(ReviveMessages(b"q", [0]))
    desk.elapse(10)
    assert desk.live() == [b"late"], "what was revived does not expire again"


def test_a_full_queue_refuses_what_does_not_fit_and_takes_the_rest() -> None:
    desk = QueueDesk()
    desk.define(messages_max=3, bytes_max=10)
    reply = desk.enqueue(b"12345", b"1234567", b"1234", b"", b"")
    full = QueueRefusal.FULL
    assert reply.refused == [(0, 1, full), (0, 4, full)]
    assert desk.live() == [b"12345", b"1234", b""]
    desk.settle(ACCEPTED, 0)
    assert desk.enqueue(b"x").refused == []


def test_a_command_that_comes_twice_counts_once_and_one_behind_a_gap_not_at_all() -> None:
    desk = QueueDesk()
    desk.define(messages_max=1)
    first = [(b"q", [NewMessage(b"a"), NewMessage(b"b")])]
    reply = desk.enqueue_as(1, first)
    assert reply.refused == [(0, 1, QueueRefusal.FULL)]
    assert desk.enqueue_as(1, first) == reply
    assert desk.enqueue_as(3, [(b"q", [])]).refusal is QueueRefusal.GAP
    assert desk.live() == [b"a"]
    for sequence in range(2, 40):
        assert desk.enqueue_as(sequence, [(b"q", [])]).refusal is QueueRefusal.NONE
    assert desk.log(Enqueue(LANE, 39, [(b"q", [])])) != b""
    assert desk.log(Enqueue(LANE, 1, first)) == b"", "too old to be asked for"
    assert desk.log(Enqueue(b"other", 2, first)) == msgspec.msgpack.encode(
        EnqueueReply(QueueRefusal.GAP)
    )
    assert desk.live() == [b"a"]


def test_a_whole_command_is_taken_whole_or_not_at_all() -> None:
    desk = QueueDesk()
    desk.define()
    desk.define(b"out", messages_max=1)
    desk.enqueue(b"a", b"b")
    accept = [(b"q", [Settlement(0, ACCEPTED)])]
    two = [(b"out", [NewMessage(b"x"), NewMessage(b"y")])]
    said = msgspec.msgpack.decode(
        desk.log(Enqueue(b"t", 1, two, accept, is_whole=True)), type=EnqueueReply
    )
    assert said.refusal is QueueRefusal.FULL
    assert (desk.live(), desk.live(b"out")) == ([b"a", b"b"], [])
    one = [(b"out", [NewMessage(b"x")])]
    desk.log(Enqueue(b"t", 2, one, accept, is_whole=True))
    assert (desk.live(), desk.live(b"out")) == ([b"b"], [b"x"])
    said = msgspec.msgpack.decode(
        desk.log(Enqueue(b"t", 3, [], accept, is_whole=True)), type=EnqueueReply
    )
    assert said.refusal is QueueRefusal.NO_QUEUE, "it was settled by another"


def test_queues_are_made_changed_purged_and_deleted() -> None:
    desk = QueueDesk()
    number = desk.define().done
    assert desk.define(messages_max=7).done == number
    assert desk.queue().spec.messages_max == 7
    assert desk.say(DefineQueue(QueueSpec(b"q"), keeps=True)).done == number
    assert desk.queue().spec.messages_max == 7
    desk.enqueue(b"a", b"b", b"c")
    desk.settle(REJECTED, 0)
    assert desk.say(PurgeQueue(b"q")).done == 2
    assert desk.say(DeleteQueue(b"q", if_empty=True)).refusal is QueueRefusal.IN_USE
    assert desk.say(PurgeQueue(b"q", dead=True)).done == 1
    assert desk.say(DeleteQueue(b"q", if_empty=True)).refusal is QueueRefusal.NONE
    assert desk.effects == [QueueEnded(b"q")]
    assert desk.enqueue(b"x").refused == [(0, 0, QueueRefusal.NO_QUEUE)]
    assert desk.define().done == number + 1, "no number comes twice: files are named by it"


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        (b"", QueueRefusal.BAD_NAME),
        (b"x" * 513, QueueRefusal.BAD_NAME),
    ],
)
def test_names_are_bounded(name: bytes, refusal: QueueRefusal) -> None:
    assert QueueDesk().define(name).refusal is refusal


def test_bytes_that_are_no_command_change_nothing() -> None:
    desk = QueueDesk()
    desk.define()
    before = desk.leader.digest()
    rng = random.Random(7)
    for _ in range(200):
        noise = rng.randbytes(rng.randrange(40))
        assert desk.apply(SECTION_HEAD.pack(2, desk.now_ms) + noise) == [b""]
    assert desk.leader.digest() != before, "the index moved"
    assert desk.live() == []


@pytest.mark.parametrize("key", [b"q\0", b"e123", b"x", b"n"])
def test_a_page_that_cannot_be_read_is_said(key: bytes) -> None:
    with pytest.raises(SnapshotUnusable):
        QueueDesk().section.put_page(key, b"\xc1")


def test_a_batch_that_is_cut_is_said() -> None:
    for batch in (b"", b"\x01", b"\x03\x01", b"\x03\x02\0\0\0x"):
        with pytest.raises(ValueError, match="batch"):
            messages_in(batch)


@pytest.mark.parametrize("seed", range(6))
def test_a_queue_is_what_a_naive_list_says(seed: int) -> None:
    """Any commands in any order: the four replicas agree, and so does a list."""
    rng = random.Random(seed)
    desk = QueueDesk()
    desk.define(deliveries_max=3)
    live: dict[int, tuple[bytes, int]] = {}
    dead: dict[int, bytes] = {}
    sent = 0
    for _ in range(80):
        known = [*live, *dead, sent + 5]
        number = rng.choice(known)
        draw = rng.random()
        if draw < 0.4:
            bodies = [b"%d" % (sent + n) for n in range(rng.randrange(1, 40))]
            desk.enqueue(*bodies)
            live |= {sent + n: (body, 0) for n, body in enumerate(bodies)}
            sent += len(bodies)
        elif draw < 0.6:
            chosen = rng.sample(known, min(len(known), rng.randrange(1, 30)))
            desk.settle(ACCEPTED, *chosen)
            for each in chosen:
                live.pop(each, None)
                dead.pop(each, None)
        elif draw < 0.75:
            desk.settle(FAILED, number)
            if number in live:
                body, failures = live[number]
                live[number] = body, failures + 1
                if failures == 2:
                    dead[number] = live.pop(number)[0]
        elif draw < 0.85:
            desk.settle(REJECTED, number)
            if number in live:
                dead[number] = live.pop(number)[0]
        elif draw < 0.93:
            desk.say(ReviveMessages(b"q", [number]))
            if number in dead:
                live[number] = dead.pop(number), 0
        else:
            desk.say(PurgeQueue(b"q", dead=rng.random() < 0.5))
            queue = desk.queue()
            live = live if queue.live else {}
            dead = dead if queue.dead else {}
        assert desk.live() == [live[each][0] for each in sorted(live)]
        assert [body for body, _ in desk.dead()] == [dead[each] for each in sorted(dead)]
