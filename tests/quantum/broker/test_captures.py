"""Streams: what is published is kept once, in order, from the moment a capture begins."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec import msgpack

from clustor.streams.changes import StreamAppend, StreamDefine, StreamRemove, StreamTrim
from quantum.broker import (
    BeginRebalance,
    ChannelAcked,
    ChannelItems,
    CreateStream,
    DeleteStream,
    PublishOnce,
    StreamReply,
    TrimStreams,
    decode_record,
    encode_publishes,
)
from quantum.broker.capturing import BATCH_BYTES_MAX
from quantum.broker.commands import OWN_ORIGIN
from quantum.broker.items import (
    WANTED,
    Forward,
    Interest,
    StreamDefined,
    StreamDeleted,
    encode_item,
)
from quantum.broker.stream_table import NAME_BYTES_MAX, StreamSpec
from quantum.broker.types import TRANSFER
from quantum.model.records import MQTT_RECORDS
from tests.quantum.broker.desk import HERE, THERE, Desk, record, spec

ID = 1 << 20


def create(desk: Desk, name: bytes = b"telemetry", *filters: bytes, **keeps: int) -> StreamReply:
    command = CreateStream(desk.now_ms, name, list(filters), **keeps)
    return msgpack.decode(desk.do(command), type=StreamReply)


def capturing(*filters: bytes, **settings: int) -> Desk:
    desk = Desk(**settings)
    assert create(desk, b"telemetry", *filters).refused == ""
    return desk


def kept(desk: Desk) -> list[tuple[int, int, bytes, bytes]]:
    """(stream, offset, topic, payload) of all that was appended, in order."""
    found = []
    for change in desk.appended:
        if isinstance(change, StreamAppend):
            assert change.payload.startswith(MQTT_RECORDS)
            at = len(MQTT_RECORDS)
            for offset in range(change.first, change.first + change.count):
                message, at = decode_record(change.payload, at)
                found.append((change.partition >> 20, offset, message.topic, message.payload))
            assert at == len(change.payload)
    return found


def test_a_capture_keeps_what_is_published_from_its_answer_on() -> None:
    desk = Desk()
    desk.publish(b"sensors/1", b"before")
    create(desk, b"telemetry", b"sensors/#")
    desk.publish(b"sensors/1", b"a")
    desk.publish(b"other", b"b")
    desk.publish(b"sensors/2", b"c", qos=2)
    assert kept(desk) == [(1, 0, b"sensors/1", b"a"), (1, 1, b"sensors/2", b"c")]
    assert [(each.start, each.next) for each in desk.leader.stream_extents()] == [(0, 2)]


def test_one_command_is_one_batch_with_the_command_s_time() -> None:
    desk = capturing(b"a")
    records = [record(b"a", b"1"), record(b"b", b"2"), record(b"a", b"3")]
    desk.apply(encode_publishes(5_000, OWN_ORIGIN, 0, 0, records))
    (append,) = [each for each in desk.appended if isinstance(each, StreamAppend)]
    assert (append.first, append.count, append.timestamp) == (0, 2, 5_000)


def test_a_large_command_is_cut_into_batches_that_a_reader_can_hold() -> None:
    desk = capturing(b"a")
    payload = bytes(BATCH_BYTES_MAX // 2)
    desk.apply(encode_publishes(5_000, OWN_ORIGIN, 0, 0, [record(b"a", payload)] * 5))
    appends = [each for each in desk.appended if isinstance(each, StreamAppend)]
    assert [(each.first, each.count) for each in appends] == [(n, 1) for n in range(5)]


def test_several_filters_of_one_stream_keep_a_message_once() -> None:
    desk = capturing(b"a/#", b"a/+", b"a/b")
    desk.publish(b"a/b", b"1")
    assert kept(desk) == [(1, 0, b"a/b", b"1")]


def test_each_stream_counts_for_itself() -> None:
    desk = capturing(b"a/#")
    create(desk, b"all", b"#")
    for topic in (b"a/1", b"b/1", b"a/2"):
        desk.publish(topic, topic)
    assert [(stream, offset) for stream, offset, _, _ in kept(desk)] == [
        (1, 0),
        (2, 0),
        (2, 1),
        (1, 1),
        (2, 2),
    ]


@pytest.mark.parametrize("subscribed", ["nobody", "a connection", "a kept queue", "elsewhere"])
def test_who_else_wants_a_message_makes_no_difference(subscribed: str) -> None:
    desk = capturing(b"a")
    if subscribed == "a connection":
        desk.attach(clean=True, expiry=0)
        desk.subscribe(spec(b"a"))
    elif subscribed == "a kept queue":
        desk.attach()
        desk.subscribe(spec(b"a"))
    elif subscribed == "elsewhere":
        desk.from_there(Interest(b"a", WANTED))
    desk.publish(b"a", b"1")
    desk.publish(b"a", b"2", retain=1)
    assert [payload for _, _, _, payload in kept(desk)] == [b"1", b"2"]


def test_what_was_refused_is_not_kept() -> None:
    desk = capturing(b"a", queue_messages_max=1)
    desk.attach(window=1)
    desk.subscribe(spec(b"a"))
    reasons = [desk.publish(b"a", b"%d" % n) for n in range(4)]
    assert any(reasons)
    taken = [b"%d" % n for n, reason in enumerate(reasons) if not reason]
    assert [payload for _, _, _, payload in kept(desk)] == taken


def test_qos_0_is_not_kept_even_where_it_is_in_the_log() -> None:
    desk = capturing(b"a")
    desk.apply(encode_publishes(5_000, OWN_ORIGIN, 0, 0, [record(b"a", b"r", 0, retain=1)]))
    assert kept(desk) == []


def test_qos_2_of_a_durable_session_is_kept_once_however_often_it_is_sent() -> None:
    desk = capturing(b"a")
    epoch = desk.attach().epoch
    sent = record(b"a", b"once", 2, publisher=b"c", packet_id=7, epoch=epoch)
    desk.do(PublishOnce(desk.now_ms, [sent]))
    desk.do(PublishOnce(desk.now_ms, [sent]))
    assert [payload for _, _, _, payload in kept(desk)] == [b"once"]


def test_what_comes_through_a_channel_is_kept_where_its_topic_is() -> None:
    desk = capturing(b"#")
    desk.from_there(Forward(record(b"a", b"1", 2)))
    assert [payload for _, _, _, payload in kept(desk)] == [b"1"]


def test_passed_on_publishes_are_kept_once() -> None:
    desk = capturing(b"a")
    for _ in range(2):
        desk.apply(encode_publishes(desk.now_ms, THERE, 1, 1, [record(b"a", b"1")]))
    assert [payload for _, _, _, payload in kept(desk)] == [b"1"]


# The catalogue.


def test_the_catalogue_tells_the_others_and_names_what_to_wait_for() -> None:
    desk = Desk()
    reply = create(desk, b"telemetry", b"a", retention_ms=7, retention_bytes=9)
    assert (reply.number, reply.awaited) == (1, [(THERE, 1)])
    (item,) = desk.to_there()
    assert item == StreamDefined(StreamSpec(1, b"telemetry", (b"a",), 7, 9, desk.now_ms))
    assert create(desk, b"telemetry", b"a", retention_ms=7, retention_bytes=9).awaited == []
    assert desk.appended == [StreamDefine(ID | HERE)]


def test_another_partition_begins_and_ends_a_stream_with_the_item() -> None:
    desk = Desk(prg=THERE)
    told = StreamSpec(4, b"s", (b"#",), 0, 0, 1)
    begun, ended = StreamDefined(told), StreamDeleted(4)
    desk.do(channel(HERE, [begun, begun]))
    desk.publish(b"far", b"1")
    desk.do(channel(HERE, [ended, ended], first=3))
    desk.publish(b"far", b"2")
    assert [type(each) for each in desk.appended] == [StreamDefine, StreamAppend, StreamRemove]


def channel(
    origin: int, items: list[StreamDefined | StreamDeleted], first: int = 1
) -> ChannelItems:
    places = list(range(first, first + len(items)))
    return ChannelItems(1_000, origin, places, [encode_item(each) for each in items])


def test_only_the_catalogue_s_partition_makes_and_ends_streams() -> None:
    desk = Desk(prg=THERE)
    assert "catalogue" in create(desk, b"s", b"a").refused
    reply = msgpack.decode(desk.do(DeleteStream(desk.now_ms, b"s")), type=StreamReply)
    assert reply.refused
    assert desk.appended == []


BAD = {
    "no name": (b"", [b"a"]),
    "a name too long": (b"n" * (NAME_BYTES_MAX + 1), [b"a"]),
    "a path": (b"a/b", [b"a"]),
    "dots": (b"..", [b"a"]),
    "bytes that are no text": (b"\xff", [b"a"]),
    "no filter": (b"s", [b"a/#/b"]),
    "an empty filter": (b"s", [b""]),
    "a shared one": (b"s", [b"$share/g/a"]),
    "system topics": (b"s", [b"$SYS/#"]),
    "too many filters": (b"s", [b"%d" % n for n in range(65)]),
}


@pytest.mark.parametrize(("name", "filters"), BAD.values(), ids=BAD.keys())
def test_a_stream_that_cannot_be_is_refused_with_a_reason(
    name: bytes, filters: list[bytes]
) -> None:
    desk = Desk()
    assert create(desk, name, *filters).refused
    assert desk.appended == []
    assert desk.to_there() == []


def test_a_name_is_one_stream_s_until_it_is_deleted_and_numbers_never_come_again() -> None:
    desk = capturing(b"a")
    assert "other filters" in create(desk, b"telemetry", b"b").refused
    desk.do(DeleteStream(desk.now_ms, b"telemetry"))
    assert create(desk, b"telemetry", b"b").number == 2
    assert [type(each).__name__ for each in desk.to_there()] == [
        "StreamDefined",
        "StreamDeleted",
        "StreamDefined",
    ]
    desk.publish(b"a", b"1")
    desk.publish(b"b", b"2")
    assert kept(desk) == [(2, 0, b"b", b"2")]


def test_a_tenant_has_so_many_streams_and_no_more() -> None:
    desk = Desk(streams_max=2)
    assert [bool(create(desk, b"s%d" % n, b"a").refused) for n in range(3)] == [False, False, True]


def test_no_stream_begins_while_another_partition_is_far_behind() -> None:
    desk = Desk(channel_items_max=1)
    create(desk, b"one", b"a")
    assert "far behind" in create(desk, b"two", b"a").refused
    desk.do(ChannelAcked(THERE, 1))
    assert create(desk, b"two", b"a").refused == ""


def test_filters_that_fork_without_end_are_refused() -> None:
    desk = Desk(wild_forks_max=3)
    filters = [b"/".join(levels) for levels in product((b"a", b"+"), repeat=4)]
    refused = [bool(create(desk, b"s%d" % n, each).refused) for n, each in enumerate(filters)]
    assert set(refused) == {False, True}
    assert desk.leader.state.routes.trie.wild_forks == 3


def test_a_partition_that_joins_the_ring_hears_of_every_stream() -> None:
    desk = capturing(b"a")
    desk.do(BeginRebalance(desk.now_ms, 1, 3))
    told = list(desk.leader.state.channels.to(2 + TRANSFER).items)
    assert [each.spec.name for each in told if isinstance(each, StreamDefined)] == [b"telemetry"]


# Trims.


def test_a_trim_moves_the_start_and_never_back_nor_beyond_the_end() -> None:
    desk = capturing(b"a")
    for n in range(5):
        desk.publish(b"a", b"%d" % n)
    for offset in (2, 1, 99, 0):
        desk.do(TrimStreams(desk.now_ms, [(1, offset), (77, 3)]))
    trims = [each for each in desk.appended if isinstance(each, StreamTrim)]
    assert trims == [StreamTrim(ID, 2), StreamTrim(ID, 5)]
    desk.publish(b"a", b"next")
    assert kept(desk)[-1][1] == 5
