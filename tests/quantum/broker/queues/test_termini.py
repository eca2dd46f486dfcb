"""Durable ends of links: a sender's tags count once, a receiver's messages stay with it."""

from __future__ import annotations

from quantum.broker.queues import (
    AcquireMessages,
    CloseTerminus,
    NewMessage,
    OpenTerminus,
    QueueGrew,
    QueueRefusal,
    Settlement,
    SettlementKind,
)
from quantum.broker.queues.termini import TAGS_MAX, TERMINI_MAX, UNHEARD_MS_MAX, TerminusState
from tests.quantum.broker.queues.queue_desk import QueueDesk

SENDER, RECEIVER = b"sone", b"rone"
DAY_SECONDS = 86_400


def desk_with_queue() -> QueueDesk:
    desk = QueueDesk()
    desk.define()
    return desk


def sent(body: bytes, tag: bytes, epoch: bytes) -> NewMessage:
    return NewMessage(body, link=SENDER, tag=tag, epoch=epoch)


def test_a_tag_counts_once() -> None:
    desk = desk_with_queue()
    desk.say(OpenTerminus(SENDER, b"q", b"1"))
    assert not desk.enqueue(sent(b"a", b"1", b"1"), sent(b"b", b"2", b"1")).refused
    assert not desk.enqueue(sent(b"a", b"1", b"1"), sent(b"c", b"3", b"1")).refused
    assert desk.live() == [b"a", b"b", b"c"]


def test_who_comes_back_hears_which_tags_were_taken() -> None:
    desk = desk_with_queue()
    desk.say(OpenTerminus(SENDER, b"q", b"1"))
    desk.enqueue(sent(b"a", b"1", b"1"), sent(b"b", b"2", b"1"))
    for _ in range(2):  # whoever asks again hears the same
        assert desk.say(OpenTerminus(SENDER, b"q", b"2", [b"2", b"3"])).tags == [b"2"]
    desk.enqueue(sent(b"b", b"2", b"2"), sent(b"c", b"3", b"2"), sent(b"again", b"1", b"2"))
    assert desk.live() == [b"a", b"b", b"c", b"again"], "a tag that was settled may be used again"


def test_what_an_earlier_connection_has_on_its_way_is_fenced() -> None:
    desk = desk_with_queue()
    desk.say(OpenTerminus(SENDER, b"q", b"1"))
    assert desk.say(OpenTerminus(SENDER, b"q", b"2", [b"1"])).tags == []
    reply = desk.enqueue(sent(b"late", b"1", b"1"))
    assert reply.refused == [(0, 0, QueueRefusal.FENCED)]
    desk.enqueue(sent(b"again", b"1", b"2"))
    assert desk.live() == [b"again"]


def test_tags_are_bounded() -> None:
    desk = desk_with_queue()
    desk.say(OpenTerminus(SENDER, b"q", b"1"))
    for first in range(0, TAGS_MAX + 8, 8):
        tags = [b"%d" % n for n in range(first, first + 8)]
        for tag in tags:
            desk.section._termini.take(SENDER, tag, desk.now_ms)
    assert len(desk.section._termini.termini[SENDER].tags) == TAGS_MAX
    assert not desk.section._termini.is_taken(SENDER, b"0")


def held(desk: QueueDesk) -> dict[int, bytes]:
    queue = desk.queue()
    return {number: entry.holder for number, entry in queue.live.items() if entry.holder}


def test_a_durable_receiver_s_messages_stay_with_it_until_it_says_what_becomes_of_them() -> None:
    desk = desk_with_queue()
    desk.enqueue(b"a", b"b", b"c", b"d")
    desk.say(OpenTerminus(RECEIVER, b"q", b"1"))
    assert desk.say(AcquireMessages(RECEIVER, b"q", [0, 1, 2])).done == 3
    assert held(desk) == dict.fromkeys((0, 1, 2), RECEIVER)
    desk.say(OpenTerminus(b"rtwo", b"q", b"1"))
    assert desk.say(AcquireMessages(b"rtwo", b"q", [2, 3])).done == 1, "2 is another's"
    accepted = Settlement(0, SettlementKind.ACCEPTED)
    rejected = Settlement(1, SettlementKind.REJECTED)
    stranger = Settlement(3, SettlementKind.ACCEPTED)
    desk.say(OpenTerminus(RECEIVER, b"q", b"2", [], [accepted, rejected, stranger]))
    assert desk.live() == [b"c", b"d"], "what it does not hold is not its to settle"
    assert desk.dead() == [(b"b", b"rejected")]
    assert held(desk) == {3: b"rtwo"}
    assert desk.queue().live[2].failures == 1
    assert QueueGrew(b"q", [2], []) in desk.effects


def test_every_outcome_frees_a_message_that_stays() -> None:
    for kind in (SettlementKind.RELEASED, SettlementKind.FAILED, SettlementKind.CHANGED):
        desk = desk_with_queue()
        desk.enqueue(b"a")
        desk.say(OpenTerminus(RECEIVER, b"q", b"1"))
        desk.say(AcquireMessages(RECEIVER, b"q", [0]))
        desk.settle(kind, 0)
        assert (desk.live(), held(desk)) == ([b"a"], {})


def test_who_closes_gives_back_and_who_is_unknown_acquires_nothing() -> None:
    desk = desk_with_queue()
    desk.enqueue(b"a", b"b")
    desk.say(OpenTerminus(RECEIVER, b"q", b"1"))
    desk.say(AcquireMessages(RECEIVER, b"q", [0, 1]))
    assert desk.say(CloseTerminus(RECEIVER)).done == 2
    assert held(desk) == {}
    assert desk.effects == [QueueGrew(b"q", [0, 1], [])]
    assert desk.say(AcquireMessages(RECEIVER, b"q", [0])).refusal is QueueRefusal.FENCED
    assert desk.say(OpenTerminus(RECEIVER, b"no", b"1")).refusal is QueueRefusal.NO_QUEUE


def test_an_end_that_is_not_heard_of_is_forgotten() -> None:
    desk = desk_with_queue()
    desk.enqueue(b"a")
    desk.say(OpenTerminus(RECEIVER, b"q", b"1"))
    desk.say(AcquireMessages(RECEIVER, b"q", [0]))
    desk.elapse(6 * DAY_SECONDS)
    assert held(desk) == {0: RECEIVER}
    desk.say(OpenTerminus(b"rnew", b"q", b"1"))
    desk.elapse(2 * DAY_SECONDS)
    assert held(desk) == {}
    assert list(desk.section._termini.termini) == [b"rnew"]
    assert desk.section.next_deadline_ms() is not None
    desk.elapse(UNHEARD_MS_MAX / 1000)
    assert not desk.section._termini.termini


def test_ends_are_bounded() -> None:
    desk = desk_with_queue()
    table = desk.section._termini
    for number in range(TERMINI_MAX + 3):
        table.put(b"%06d" % number, TerminusState(b"q", b"1", number))
    desk.section._forget_terminus(b"000000")
    assert len(table.termini) == TERMINI_MAX + 2
    assert table.oldest() == (1, b"000001")
