"""The steps of a move, one by one, on a desk: what is fenced, what waits, what is handed over."""

from __future__ import annotations

import msgspec
import pytest

from quantum.broker import (
    NOT_COUNTED,
    OWN_ORIGIN,
    Attach,
    Attached,
    BeginRebalance,
    Broker,
    ChannelAcked,
    ChannelItems,
    Rebalanced,
    RingChanged,
    RoutesFlushed,
    SendPubrec,
    SubscriptionSpec,
    WillSpec,
    decode_refusals,
    encode_publishes,
    encode_record,
    waits_for,
)
from quantum.broker.frames import BrokerHeader, decode_frames, encode_frames
from quantum.broker.items import (
    Began,
    Deliver,
    Flushed,
    Forward,
    HandedOver,
    Interest,
    Item,
    MovedDeliveries,
    MovedRetained,
    MovedSession,
    MovedSubscriptions,
    MovedTurnedAway,
    Settled,
    encode_item,
)
from quantum.broker.message import BEFORE_V5, BEGINS, decode_record, mark_record
from quantum.broker.reasons import QUOTA_EXCEEDED, SESSION_GONE
from quantum.broker.snapshot import NAME
from quantum.broker.types import MOVE_GRACE_MS, TRANSFER
from tests.quantum.broker.desk import THERE, Desk, message, record, spec

FRESH = 2
CLIENT = b"new client"
TOPIC = b"new/topic"


def begin(desk: Desk, count: int = 3, epoch: int = 1) -> Rebalanced:
    reply = desk.do(BeginRebalance(desk.now_ms, epoch, count))
    return msgspec.msgpack.decode(reply, type=Rebalanced)


def flush(desk: Desk) -> None:
    desk.do(RoutesFlushed(desk.now_ms, 1))


def transfer(desk: Desk) -> list[Item]:
    return list(desk.leader.state.channels.to(FRESH + TRANSFER).items)


def attach_is_moved(desk: Desk, client_id: bytes) -> bool:
    reply = desk.do(Attach(desk.now_ms, client_id, clean_start=False, expiry_seconds=9, window=9))
    return msgspec.msgpack.decode(reply, type=Attached).is_moved


def moving_desk() -> Desk:
    """A session with a queue and a will, and a retained message, all of which will move."""
    desk = Desk()
    will = WillSpec(encode_record(b"far/will", b"dead", 1, b"", 0, b"", 0, 0), 0)
    desk.attach(CLIENT, will=will)
    desk.subscribe(spec(b"a/#"), client_id=CLIENT)
    desk.publish(b"a/1", b"queued", 2)
    desk.publish(TOPIC, b"kept", 1, retain=1)
    desk.to_there()
    return desk


def cut(desk: Desk) -> None:
    """Let the other old partition keep up."""
    flush(desk)
    desk.from_there(Began(1, 2, 3), Flushed(1))
    desk.to_there()


def test_a_session_that_leaves_is_fenced_and_its_will_is_not_said() -> None:
    desk = moving_desk()
    assert begin(desk) == Rebalanced(1, 3)
    assert [each for each in desk.effects if isinstance(each, RingChanged)] == [RingChanged(1, 3)]
    assert attach_is_moved(desk, CLIENT)
    assert desk.subscribe(spec(b"b/#"), client_id=CLIENT).reasons == [SESSION_GONE]
    assert desk.publish_once(CLIENT, 7, b"a/1") == SESSION_GONE
    assert not any(isinstance(item, Forward) for item in desk.to_there())
    assert not desk.session(CLIENT).connected
    assert not attach_is_moved(desk, b"c")


def test_a_client_that_says_goodbye_while_it_moves_has_no_will() -> None:
    desk = moving_desk()
    begin(desk)
    desk.detach(CLIENT, gracefully=True)
    assert desk.session(CLIENT).will is None


def test_a_clean_session_is_not_handed_over_and_one_with_a_will_keeps_only_that() -> None:
    desk = Desk()
    will = WillSpec(encode_record(b"far/will", b"dead", 1, b"", 0, b"", 0, 0), 0)
    desk.attach(b"new clean", expiry=0, clean=True)
    desk.attach(b"new with will", expiry=0, clean=True, will=will)
    desk.subscribe(spec(b"a/#"), client_id=b"new with will")
    begin(desk)
    cut(desk)
    images = [each for each in transfer(desk) if isinstance(each, MovedSession)]
    assert [(each.client_id, each.will) for each in images] == [(b"new with will", will)]
    assert not any(isinstance(each, MovedSubscriptions) for each in transfer(desk))


def test_everything_is_handed_over_at_the_cut_and_not_before() -> None:
    desk = moving_desk()
    begin(desk)
    assert transfer(desk) == [Began(1, 2, 3), Interest(b"a/#", 1)]
    flush(desk)
    desk.from_there(Began(1, 2, 3))
    assert desk.leader.state.retained.get(TOPIC) is not None
    assert "partition 1 to take what was sent to it" in waits_for(desk.leader.state)
    desk.to_there()
    assert waits_for(desk.leader.state) == ["partition 1 to route by the new ring"]
    desk.from_there(Flushed(1))
    assert [type(each) for each in transfer(desk)[2:6]] == [
        MovedRetained,
        MovedSession,
        MovedSubscriptions,
        MovedDeliveries,
    ]
    state = desk.leader.state
    assert not state.sessions and not len(state.retained) and not state.filters
    assert not isinstance(transfer(desk)[-1], HandedOver)
    desk.to_there()
    assert transfer(desk)[-1] == HandedOver(1)
    assert state.move is None and waits_for(state) == ["partition 2 to say what it wants"]


def test_another_epochs_word_is_skipped() -> None:
    desk = moving_desk()
    begin(desk)
    flush(desk)
    desk.to_there()
    desk.from_there(Flushed(2), Flushed(0))
    assert CLIENT in desk.leader.state.sessions
    desk.do(RoutesFlushed(desk.now_ms, 2))
    desk.from_there(Flushed(1))
    assert CLIENT not in desk.leader.state.sessions


def test_a_peer_that_began_makes_this_partition_begin() -> None:
    desk = moving_desk()
    desk.from_there(Began(1, 2, 3))
    assert desk.leader.state.prg_count == 3 and CLIENT in desk.leader.state.leaving


def test_messages_reach_those_who_leave_on_one_way_only() -> None:
    desk = moving_desk()
    begin(desk)
    queued = len(desk.session(CLIENT).outbound)
    desk.publish(b"a/2", b"ours", 2)
    desk.from_there(Deliver(message(b"a/far", b"theirs before", 2).record))
    desk.from_there(Began(1, 2, 3), Deliver(message(b"a/far", b"theirs after", 2).record))
    waiting = [each.message.payload for each in desk.session(CLIENT).outbound.unfinished()]
    assert waiting[queued:] == [b"theirs before"]
    passed = [each.record for each in transfer(desk) if isinstance(each, Deliver)]
    assert [decode_record(each)[0].payload for each in passed] == [b"ours"]


@pytest.mark.parametrize(
    ("epoch", "count", "why"),
    [
        (1, 2, "a ring only grows"),
        (1, 1, "a ring only grows"),
        (2, 3, "not the epoch that follows"),
    ],
)
def test_a_change_that_has_no_meaning_is_refused(epoch: int, count: int, why: str) -> None:
    desk = Desk()
    assert begin(desk, count, epoch) == Rebalanced(0, 2, why)


def test_a_change_waits_for_the_one_before_it_and_comes_once() -> None:
    desk = Desk()
    begin(desk)
    assert begin(desk) == Rebalanced(1, 3)
    assert begin(desk, 4, 2).refused == "the change before it is not over"


# A fresh partition.


class FreshDesk(Desk):
    """The partition that the ring grew by."""

    def __init__(self) -> None:
        super().__init__(prg=FRESH)
        self._places: dict[int, int] = {}

    def send(self, origin: int, *items: Item) -> None:
        begin = self._places.get(origin, 0) + 1
        self._places[origin] = begin + len(items) - 1
        places = list(range(begin, begin + len(items)))
        self.do(ChannelItems(self.now_ms, origin, places, [encode_item(each) for each in items]))


def image(now_ms: int) -> MovedSession:
    will = WillSpec(encode_record(b"far/will", b"dead", 1, b"", 0, b"", 0, 0), 0)
    due_ms = now_ms + MOVE_GRACE_MS
    return MovedSession(CLIENT, 4, 100, 9, due_ms, [3], will, due_ms, True, [], 10, 1, b"")  # noqa: FBT003


def test_a_fresh_partition_takes_nothing_but_transfers_until_all_have_ended() -> None:
    desk = FreshDesk()
    assert attach_is_moved(desk, CLIENT)
    passed = encode_publishes(desk.now_ms, THERE, 1, 1, [record(TOPIC)])
    own = encode_publishes(desk.now_ms, OWN_ORIGIN, 0, 0, [record(TOPIC)])
    assert desk.apply(passed, own) == [NOT_COUNTED, NOT_COUNTED]
    desk.send(THERE, Forward(record(TOPIC, b"too early", retain=1)))
    assert THERE not in desk.leader.state.channels.counted
    desk.send(TRANSFER, Began(1, 2, 3), image(desk.now_ms), HandedOver(1))
    assert waits_for(desk.leader.state) == ["all that moves from partition 1"]
    desk.send(TRANSFER + THERE, Began(1, 2, 3), HandedOver(9))
    assert waits_for(desk.leader.state) == ["all that moves from partition 1"]  # another epoch's
    desk.send(TRANSFER + THERE, HandedOver(1))
    assert desk.leader.state.is_open
    settled = [list(desk.leader.state.channels.to(prg).items) for prg in (0, THERE)]
    assert all(each[-1] == Settled(1) for each in settled)


def test_what_came_before_its_session_waits_for_it() -> None:
    desk = FreshDesk()
    desk.send(
        TRANSFER + THERE, Began(1, 2, 3), Deliver(message(b"a/1", b"held", 2).record), HandedOver(1)
    )
    subscriptions = MovedSubscriptions(CLIENT, [SubscriptionSpec(b"a/#", 2)])
    desk.send(TRANSFER, Began(1, 2, 3), image(desk.now_ms), subscriptions, HandedOver(1))
    waiting = [each.message.payload for each in desk.session(CLIENT).outbound.unfinished()]
    assert waiting == [b"held"]


def open_desk() -> FreshDesk:
    desk = FreshDesk()
    desk.send(TRANSFER, Began(1, 2, 3), image(desk.now_ms), HandedOver(1))
    desk.send(TRANSFER + THERE, Began(1, 2, 3), HandedOver(1))
    return desk


def test_a_session_that_moved_is_resumed_with_what_it_held() -> None:
    desk = open_desk()
    attached = desk.attach(CLIENT)
    assert attached.present and attached.epoch == 4 and attached.attachment > 9
    assert desk.publish_once(CLIENT, 3, TOPIC) == 0
    assert [each for each in desk.effects if isinstance(each, SendPubrec)] != []
    assert not len(desk.leader.state.retained), "it was taken once, before the move"


def test_the_will_of_a_client_that_stays_away_is_said_after_the_grace() -> None:
    desk = open_desk()
    for prg in (0, THERE):
        outbox = desk.leader.state.channels.to(prg)
        desk.do(ChannelAcked(prg, outbox.last))
    desk.elapse(MOVE_GRACE_MS / 1000 - 1)
    assert not desk.to_there()
    desk.elapse(1)
    assert [type(each) for each in desk.to_there()] == [Forward]


def test_a_snapshot_of_the_version_before_is_read() -> None:
    desk = moving_desk()
    frames = list(decode_frames(desk.leader.snapshot()))
    header = frames[0]
    assert isinstance(header, BrokerHeader)
    older = [NAME, 2, *msgspec.to_builtins(header)[3:9]]
    body = msgspec.msgpack.encode([0, *older])
    rest = b"".join(encode_frames(frames[1:]))
    restored = Broker(desk.settings)
    restored.restore([len(body).to_bytes(4, "little") + body + rest])
    assert restored.digest() == desk.leader.digest()


def refused_before_v5(desk: Desk) -> None:
    """Let a client before MQTT 5 be refused: somebody's queue is full."""
    desk.attach(b"sleeper")
    desk.subscribe(spec(TOPIC), client_id=b"sleeper")
    desk.detach(b"sleeper")
    desk.to_there()
    assert desk.publish(TOPIC, b"fills") == 0
    assert publish_before_v5(desk, BEGINS) == QUOTA_EXCEEDED


def publish_before_v5(desk: Desk, flags: int = 0) -> int:
    data = mark_record(record(TOPIC, b"p", publisher=b"old one"), BEFORE_V5 | flags)
    refused = decode_refusals(
        desk.apply(encode_publishes(desk.now_ms, OWN_ORIGIN, 0, 0, [data]))[0]
    )
    assert refused is not None
    return refused[0][1] if refused else 0


def test_who_was_refused_where_a_topic_was_is_refused_where_it_is_now() -> None:
    """What stood behind the refused publish must not get in at the new owner before it."""
    desk = Desk(queue_messages_max=1)
    refused_before_v5(desk)
    begin(desk)
    cut(desk)
    (moved,) = [each for each in transfer(desk) if isinstance(each, MovedTurnedAway)]
    assert moved.clients == [(b"old one", 1, desk.now_ms)]
    fresh = Desk(prg=FRESH, prg_count=2)
    for origin in (0, 1):
        items: list[Item] = [Began(1, 2, 3), *([moved] if origin == 0 else []), HandedOver(1)]
        fresh.do(
            ChannelItems(
                fresh.now_ms,
                origin + TRANSFER,
                list(range(1, len(items) + 1)),
                [encode_item(each) for each in items],
            )
        )
    assert fresh.leader.state.is_open
    assert publish_before_v5(fresh) == QUOTA_EXCEEDED
    assert publish_before_v5(fresh, BEGINS) == 0
    assert publish_before_v5(fresh) == 0
