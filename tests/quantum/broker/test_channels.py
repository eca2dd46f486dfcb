"""Between partitions everything counts once, and no answer is better than the truth."""

from __future__ import annotations

import pytest
from msgspec import msgpack, structs

from quantum.broker import (
    NOT_COUNTED,
    Broker,
    BrokerMisuse,
    ChannelAcked,
    ChannelItems,
    PublishOnce,
    SendPubrec,
    decode_refusals,
    encode_publishes,
    encode_record,
)
from quantum.broker.channels import REFUSALS_MAX, Forwarded
from quantum.broker.items import WANTED, Deliver, Forward, Interest, OldDeliver, encode_item
from quantum.broker.message import decode_record
from tests.quantum.broker.desk import THERE, Desk, record, spec


def passed(desk: Desk, term: int, first: int, *records: bytes, origin: int = THERE) -> object:
    reply = desk.apply(encode_publishes(desk.now_ms, origin, term, first, list(records)))[0]
    return decode_refusals(reply)


def reader(**settings: int) -> Desk:
    desk = Desk(**settings)
    desk.attach(window=100)
    desk.subscribe(spec(b"a", 1), spec(b"b", 1))
    return desk


# Channels.


def test_an_item_counts_once_however_often_it_comes() -> None:
    desk = reader()
    first, second = Forward(record(b"a", b"1")), Forward(record(b"a", b"2"))
    desk.from_there(first, second, first=1)
    assert desk.payloads() == [b"1", b"2"]
    desk.from_there(first, second, Forward(record(b"a", b"3")), first=1)
    assert desk.payloads() == [b"3"]


def test_items_that_nobody_remembers_leave_gaps() -> None:
    desk = reader()
    desk.from_there(Forward(record(b"a", b"5")), first=5)
    desk.from_there(Forward(record(b"a", b"4")), first=4)
    assert desk.payloads() == []


def test_items_of_no_partition_are_ignored() -> None:
    desk = reader()
    encoded = encode_item(Forward(record(b"a")))
    for origin in (0, 2, 77):
        desk.do(ChannelItems(desk.now_ms, origin, [1], [encoded]))
        assert desk.effects == []
    desk.do(ChannelAcked(77, 5))
    assert desk.leader.state.channels.outboxes().keys() <= {THERE}


def test_a_bad_item_counts_and_is_skipped() -> None:
    desk = reader()
    good = encode_item(Deliver(record(b"a", b"good")))
    cut = encode_item(Deliver(record(b"a", b"good")[:-1]))
    desk.do(ChannelItems(desk.now_ms, THERE, [1, 2, 3], [b"\xff", cut, good]))
    assert desk.payloads() == [b"good"]
    assert desk.leader.state.channels.counted == {THERE: 3}


def test_items_of_older_logs_are_read() -> None:
    desk = reader()
    message, _ = decode_record(record(b"a", b"old"))
    bad = structs.replace(message, packet_id=1 << 16)
    items = [msgpack.encode(OldDeliver(each)) for each in (bad, message)]
    desk.do(ChannelItems(desk.now_ms, THERE, [1, 2], items))
    assert desk.payloads() == [b"old"]


def test_an_outbox_is_forgotten_as_far_as_its_receiver_has_it() -> None:
    desk = Desk()
    desk.from_there(Interest(b"a", WANTED))
    for number in range(5):
        desk.publish(b"a", b"%d" % number)
    outbox = desk.leader.state.channels.to(THERE)
    desk.do(ChannelAcked(THERE, 2))
    assert (outbox.acked_through, outbox.last) == (2, 5)
    desk.do(ChannelAcked(THERE, 1))
    assert outbox.acked_through == 2
    first = outbox.after(3, 10)[0]
    assert isinstance(first, Deliver) and decode_record(first.record)[0].payload == b"3"
    desk.do(ChannelAcked(THERE, 99))
    assert (outbox.acked_through, outbox.last, outbox.weight) == (5, 5, 0)


def test_a_channel_that_holds_too_much_refuses_what_needs_it_and_nothing_else() -> None:
    desk = reader(channel_items_max=3)
    desk.from_there(Interest(b"x", WANTED), Interest(b"q", WANTED))
    for _ in range(3):
        assert desk.publish(b"x") == 0
    assert desk.publish(b"x") == 0x97
    assert desk.publish(b"x", qos=0) == 0
    assert desk.publish_once(b"c", 1, b"far") == 0x97
    assert desk.subscribe(spec(b"far"), spec(b"near")).reasons == [0x97, 2]
    assert desk.publish(b"a") == 0
    assert len(desk.to_there()) == 3
    assert desk.publish(b"x") == 0 and desk.publish_once(b"c", 1, b"far") == 0


def test_a_channel_is_full_by_bytes_too() -> None:
    desk = Desk(channel_bytes_max=1_000)
    desk.from_there(Interest(b"x", WANTED))
    assert desk.publish(b"x", bytes(2_000)) == 0
    assert desk.publish(b"x") == 0x97


# What leaders pass on.


def test_a_passed_on_publish_counts_once() -> None:
    desk = reader()
    assert passed(desk, 1, 1, record(b"a", b"1"), record(b"a", b"2")) == []
    assert desk.payloads() == [b"1", b"2"]
    assert passed(desk, 1, 2, record(b"a", b"2"), record(b"a", b"3")) == []
    assert desk.payloads() == [b"3"]


def test_an_answer_that_was_lost_comes_out_the_same() -> None:
    """A refused publish that is sent again must not be acknowledged."""
    desk = reader(queue_messages_max=2)
    publishes = [record(b"a", b"%d" % number) for number in range(3)]
    assert passed(desk, 1, 1, *publishes) == [(2, 0x97)]
    desk.acknowledge(4, 1, 2)
    assert passed(desk, 1, 2, *publishes[1:], record(b"a", b"new")) == [(1, 0x97)]
    assert desk.payloads() == [b"new"]


def test_what_a_deposed_leader_passes_on_is_not_acknowledged() -> None:
    desk = reader()
    assert passed(desk, 2, 1, record(b"a", b"1")) == []
    assert passed(desk, 1, 1, record(b"a", b"old")) is None
    assert desk.payloads() == []


def test_what_comes_behind_a_gap_is_not_acknowledged() -> None:
    desk = reader()
    assert passed(desk, 1, 2, record(b"a", b"2")) is None
    assert passed(desk, 1, 1, record(b"a", b"1")) == []
    assert passed(desk, 2, 3, record(b"a", b"x")) is None
    assert passed(desk, 1, 2, record(b"a", b"2")) is None  # the new term is known now
    assert passed(desk, 2, 1, record(b"a", b"1")) == []


def test_numbers_of_no_partition_count_nothing() -> None:
    desk = reader()
    for origin in (0, 2, 0xFFFE):
        assert passed(desk, 1, 1, record(b"a"), origin=origin) == []
        assert desk.effects == []


def test_forgotten_refusals_are_never_success() -> None:
    forwarded = Forwarded(1, REFUSALS_MAX + 10)
    for number in range(5, REFUSALS_MAX + 7):
        forwarded.refuse(number, 0x97)
    assert len(forwarded.refused) == REFUSALS_MAX
    assert [forwarded.answer(number) for number in (1, 6, 7)] == [0x97, 0x97, 0x97]
    assert forwarded.answer(REFUSALS_MAX + 8) == 0


def test_the_reply_says_nothing_everything_or_which() -> None:
    assert decode_refusals(b"") == []
    assert decode_refusals(NOT_COUNTED) is None


# QoS 2 of sessions that are in the log.


def test_a_qos_2_publish_is_taken_once_and_answered_each_time() -> None:
    desk = reader()
    assert desk.publish_once(b"c", 1, b"a") == 0
    assert desk.effects[-1] == SendPubrec(b"c", 1) and len(desk.sent()) == 1
    assert desk.publish_once(b"c", 1, b"a") == 0
    assert desk.effects == [SendPubrec(b"c", 1)]
    assert desk.release(b"c", 1) == 0
    assert desk.release(b"c", 1) == 0x92
    assert desk.publish_once(b"c", 1, b"a") == 0 and len(desk.sent()) == 1


def test_a_qos_2_publish_for_another_partition_is_answered_when_that_has_it() -> None:
    desk = Desk()
    desk.attach()
    assert desk.publish_once(b"c", 1, b"far") == 0 and desk.effects == []
    assert desk.publish_once(b"c", 1, b"far") == 0 and desk.effects == []
    (item,) = desk.to_there()
    assert isinstance(item, Forward) and desk.effects == [SendPubrec(b"c", 1)]
    desk.publish_once(b"c", 1, b"far")
    assert desk.effects == [SendPubrec(b"c", 1)] and desk.to_there() == []


def test_an_answer_to_an_exchange_that_is_over_is_not_sent() -> None:
    desk = Desk()
    desk.attach()
    desk.publish_once(b"c", 1, b"far")
    desk.attach(clean=True)
    desk.to_there()
    assert SendPubrec(b"c", 1) not in desk.effects
    desk.publish_once(b"c", 1, b"far")
    desk.release(b"c", 1)
    desk.publish_once(b"c", 1, b"far/2")
    outbox = desk.leader.state.channels.to(THERE)
    desk.do(ChannelAcked(THERE, outbox.last - 1))
    assert desk.effects == []
    desk.do(ChannelAcked(THERE, outbox.last))
    assert desk.effects == [SendPubrec(b"c", 1)]


def test_a_session_has_so_many_open_exchanges_and_no_more() -> None:
    desk = Desk(received_max=2)
    desk.attach()
    assert [desk.publish_once(b"c", number, b"a") for number in (1, 2, 3, 2)] == [0, 0, 0x97, 0]


def test_an_exchange_is_remembered_up_to_the_horizon_and_no_longer() -> None:
    """quantumqtt §4.2: 72 hours, unless the client releases it before."""
    desk = Desk(received_max=2, dedupe_horizon_ms=60_000)
    desk.attach(expiry=10_000)
    desk.subscribe(spec(b"a"))
    assert [desk.publish_once(b"c", number, b"a") for number in (1, 2)] == [0, 0]
    desk.now_ms += 59_999
    assert [desk.publish_once(b"c", number, b"a") for number in (1, 3)] == [0, 0x97]
    assert len(desk.session(b"c").outbound) == 2  # the repetition counted once
    desk.now_ms += 1
    assert [desk.publish_once(b"c", number, b"a") for number in (1, 3)] == [0, 0]
    assert len(desk.session(b"c").outbound) == 4
    assert desk.release(b"c", 2) == 0x92  # it made room for the last one


def test_what_is_not_accepted_yet_has_no_horizon() -> None:
    desk = Desk(dedupe_horizon_ms=1_000)
    desk.attach(expiry=10_000)
    assert desk.publish_once(b"c", 1, b"far/x") == 0
    desk.now_ms += 10_000
    assert desk.publish_once(b"c", 1, b"far/x") == 0
    assert len(desk.to_there()) == 1


def test_a_publish_of_another_epoch_is_refused() -> None:
    desk = Desk()
    assert desk.publish_once(b"nobody", 1, b"a") == 0x80
    desk.attach()
    stale = encode_record(b"a", b"p", 2, b"", 0, b"c", 99, 1)
    assert decode_refusals(desk.do(PublishOnce(desk.now_ms, [stale]))) == [(0, 0x80)]


# Records.


RECORDS = {
    "plain": (b"t", b"payload", 1, b"", 0, b"client", 3, 9),
    "empty": (b"", b"", 0, b"", 0, b"", 0, 0),
    "expires": (b"t", b"p", 2, b"", 5_000, b"c", 1, 0xFFFF),
    "properties": (b"t/u", b"p" * 300, 4 | 2, b"\x26\0", 1, b"c", 0xFFFF_FFFF, 1),
}


@pytest.mark.parametrize("parts", RECORDS.values(), ids=RECORDS.keys())
def test_a_record_and_its_message_agree(
    parts: tuple[bytes, bytes, int, bytes, int, bytes, int, int],
) -> None:
    data = encode_record(*parts)
    message, end = decode_record(b"xyz" + data + b"more", 3)
    assert end == len(data) + 3 and message.record == data
    assert (message.topic, message.payload, message.properties) == (parts[0], parts[1], parts[3])
    assert (message.client_id, message.epoch, message.packet_id) == parts[5:]
    assert (message.qos, message.retain, message.expires_at_ms) == (
        parts[2] & 3,
        bool(parts[2] & 4),
        parts[4],
    )


@pytest.mark.parametrize("parts", RECORDS.values(), ids=RECORDS.keys())
def test_packed_records_are_read_as_single_ones_are(
    parts: tuple[bytes, bytes, int, bytes, int, bytes, int, int],
) -> None:
    """The loop over packed records is written out: it must find the same ones damaged."""
    data = encode_record(*parts)
    settings = Desk().settings
    for at in range(len(data)):
        for changed in (data[:at], data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]):
            leader, follower = Broker(settings), Broker(settings)
            leader.collect(wanted=True)
            packed = encode_publishes(1, THERE, 1, 1, [changed, data])
            assert leader.apply_batch(1, [packed]) == follower.apply_batch(1, [packed])
            counted = leader.state.channels.forwarded[THERE].number
            assert counted == _count(changed + data)
            assert leader.digest() == follower.digest()


def _count(data: bytes) -> int:
    count = at = 0
    try:
        while at < len(data):
            _, at = decode_record(data, at)
            count += 1
    except ValueError:
        pass
    return count


def test_an_index_is_applied_once() -> None:
    desk = Desk()
    desk.leader.apply_batch(5, [])
    for index in (5, 4):
        with pytest.raises(BrokerMisuse):
            desk.leader.apply_batch(index, [])
