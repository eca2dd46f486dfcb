"""A stream as rows: what it captured and nothing else, each at the offset that the broker gave."""

from __future__ import annotations

import pytest

from clustor.log.types import Entry, LogIndex, Term
from clustor.replica.batch import encode_batch
from clustor.streams.changes import StreamAppend
from quantum.archive.types import PrgId
from quantum.broker import (
    OWN_ORIGIN,
    Attach,
    Broker,
    BrokerSettings,
    ChannelItems,
    CreateStream,
    Detach,
    PublishOnce,
    WillSpec,
    decode_record,
    encode_command,
    encode_publishes,
    encode_record,
    split_command,
)
from quantum.broker.items import Forward, encode_item
from quantum.broker.message import BEFORE_V5, FROM_V5
from quantum.lake.filters import NO_FILTERS
from quantum.lake.judging import ReplayJudge
from quantum.lake.loose_judging import LooseJudge
from quantum.lake.options import parse_options
from quantum.lake.refusals import BadOption, EntryUnreadable
from quantum.lake.rows import RowBuilder

PRG = PrgId("dev", 0)
NOW = 1_763_200_000_123
SETTINGS = BrokerSettings(0, 3, lambda _topic, _count: 0, lambda _client, _count: 0)
STREAM = NO_FILTERS.with_stream(b"telemetry")


def record(topic: bytes, payload: bytes, qos: int = 1, client: bytes = b"c", **at: int) -> bytes:
    flags = qos | at.get("flags", 0)
    return encode_record(topic, payload, flags, b"", 0, client, at.get("epoch", 4), at.get("id", 1))


def packed(*records: bytes, origin: int = OWN_ORIGIN, first: int = 0) -> bytes:
    return encode_publishes(NOW, origin, 8, first, list(records))


def a_log() -> list[list[bytes]]:
    """Every way by which a message comes into a partition, captured and not."""
    will = WillSpec(record(b"s/will", b"will", 1, b"lasting", id=0), 0)
    large = packed(record(b"s/large", bytes(600 << 10)))
    attach = Attach(NOW, b"lasting", clean_start=False, expiry_seconds=9, window=1, will=will)
    twice = record(b"s/2", b"twice", 2, b"lasting", epoch=1, id=13, flags=BEFORE_V5)
    items = [
        encode_item(Forward(record(b"s/3", b"forwarded", 2, b"far", flags=FROM_V5))),
        encode_item(Forward(record(b"not", b"elsewhere", 2, b"far"))),
    ]
    return [
        [packed(record(b"s/1", b"before it begins"))],
        [encode_command(CreateStream(NOW, b"telemetry", [b"s/#"]))],
        [encode_command(CreateStream(NOW, b"another", [b"#"]))],
        [packed(record(b"s/1", b"a"), record(b"not", b"b"), record(b"s/1", b"a")), packed()],
        [encode_command(attach), encode_command(PublishOnce(NOW, [twice, twice]))],
        [encode_command(ChannelItems(NOW, 2, [41, 42], items)), packed(record(b"s/1", b"c"))],
        [packed(record(b"s/1", b"d"), record(b"s/1", b"e"), origin=1, first=1)],
        [packed(record(b"s/1", b"e"), record(b"s/1", b"f"), origin=1, first=2)],
        split_command(large),
        [encode_command(Detach(NOW, b"lasting", 1, gracefully=False))],
        [packed(record(b"s/1", b"qos 0", 0), record(b"s/1", b"last"))],
    ]


def rows(log: list[list[bytes]], *, stream: bool = True) -> list[dict[str, object]]:
    builder = RowBuilder(PRG, ReplayJudge(SETTINGS), filters=STREAM if stream else NO_FILTERS)
    for index, commands in enumerate(log, 1):
        builder.add(Entry(Term(1), LogIndex(index), encode_batch(commands)))
    found: list[dict[str, object]] = builder.take().to_pylist()
    return found


def test_the_rows_of_a_stream_are_what_its_files_have_at_the_same_offsets() -> None:
    broker = Broker(SETTINGS, keeps_streams=True)
    kept: list[tuple[int, str, bytes]] = []
    for index, commands in enumerate(a_log(), 1):
        broker.apply_batch(index, commands)
        for change in broker.take_stream_changes():
            if isinstance(change, StreamAppend) and change.partition == 1 << 20:
                at = 1
                for offset in range(change.first, change.first + change.count):
                    message, at = decode_record(change.payload, at)
                    kept.append((offset, message.topic.decode(), message.payload))
    found = sorted((row["stream_offset"], row["topic"], row["payload"]) for row in rows(a_log()))
    assert found == kept
    assert [offset for offset, _, _ in kept] == list(range(len(kept)))
    assert len(kept) == 11


def test_a_row_of_a_stream_is_the_row_that_it_is_without() -> None:
    others = {(row["raft_index"], row["sub_index"]): row for row in rows(a_log(), stream=False)}
    assert all(row["stream_offset"] is None for row in others.values())
    for row in rows(a_log()):
        plain = others[row["raft_index"], row["sub_index"]]
        assert row["stream_partition"] == 0
        assert row == plain | {"stream_partition": 0, "stream_offset": row["stream_offset"]}


def test_another_filter_leaves_offsets_as_they_are() -> None:
    builder = RowBuilder(PRG, ReplayJudge(SETTINGS), filters=STREAM.with_prefix(b"s/1"))
    for index, commands in enumerate(a_log(), 1):
        builder.add(Entry(Term(1), LogIndex(index), encode_batch(commands)))
    all_rows = rows(a_log())
    wanted = [row for row in all_rows if str(row["topic"]).startswith("s/1")]
    assert builder.take().to_pylist() == wanted
    assert len(wanted) < len(all_rows)


def test_a_stream_that_is_not_there_has_no_rows() -> None:
    assert rows([[packed(record(b"s/1", b"x"))]]) == []


def test_without_the_state_there_are_no_offsets() -> None:
    with pytest.raises(BadOption, match="state"):
        RowBuilder(PRG, LooseJudge(0, None), filters=STREAM)
    with pytest.raises(BadOption, match="rows is applied"):
        parse_options({"path": "x", "stream": "telemetry", "rows": "logged"})
    assert parse_options({"path": "x", "stream": "telemetry"}).filters == STREAM


def test_a_command_of_a_later_release_is_said_with_its_place() -> None:
    builder = RowBuilder(PRG, ReplayJudge(SETTINGS))
    with pytest.raises(EntryUnreadable, match="later release") as refused:
        builder.add(Entry(Term(1), LogIndex(1), encode_batch([b"\x92\x7f\xc0"])))
    assert refused.value.index == 1
