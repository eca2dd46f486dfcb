"""Entries to columns: what each column says, whatever else is asked for."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustor.log.types import Entry, EntryKind, LogIndex, Term
from clustor.replica.batch import encode_batch
from quantum.archive.types import PrgId
from quantum.broker import (
    OWN_ORIGIN,
    Attach,
    BrokerSettings,
    ChannelItems,
    Detach,
    PublishOnce,
    WillSpec,
    encode_command,
    encode_publishes,
    encode_record,
    split_command,
)
from quantum.broker.items import Forward, encode_item
from quantum.broker.message import BEFORE_V5, FROM_V5, RETAIN, decode_record
from quantum.lake.columns import gap_row
from quantum.lake.filters import NO_FILTERS, Filters
from quantum.lake.judging import ReplayJudge
from quantum.lake.loose_judging import LooseJudge
from quantum.lake.refusals import EntryUnreadable
from quantum.lake.rows import WILLS_FROM, RowBuilder
from quantum.lake.schema import GAP, NAMES, SCHEMA_VERSION, arrow_schema
from quantum.protocols.mqtt.codec import Properties
from quantum.protocols.mqtt.session.delivery import forwardable

PRG = PrgId("dev", 0)
GOLDEN = Path(__file__).parent / "golden"
NOW_MS = 1_763_200_000_123
SETTINGS = BrokerSettings(0, 3, lambda _topic, _count: 0, lambda _client, _count: 0)
PROPERTIES = forwardable(
    Properties(content_type="text/plain", user_properties=(("k", "1"), ("k", "2")))
)


def entry(index: int, *commands: bytes) -> Entry:
    return Entry(Term(1), LogIndex(index), encode_batch(list(commands)))


def some_commands() -> list[list[bytes]]:
    """One command of each kind that carries messages."""
    plain = encode_record(b"a/1", b"one", 1, b"", 0, b"client", 4, 11)
    rich = encode_record("b/ü".encode(), b"two", 1 | RETAIN, PROPERTIES, 99, b"client", 4, 12)
    twice = encode_record(b"c", b"three", 2, b"", 0, b"lasting", 1, 13)
    forward = encode_item(Forward(encode_record(b"d", b"four", 2, b"", 0, b"far", 6, 14)))
    return [
        [encode_publishes(NOW_MS, OWN_ORIGIN, 0, 0, [plain, rich])],
        [
            encode_command(
                Attach(NOW_MS, b"lasting", clean_start=False, expiry_seconds=100, window=1)
            ),
            encode_command(PublishOnce(NOW_MS + 1, [twice])),
            encode_command(ChannelItems(NOW_MS + 2, 2, [41], [forward])),
            encode_publishes(NOW_MS + 3, 1, 8, 1, [plain, plain]),
        ],
    ]


def read(
    batches: list[list[bytes]], names: list[str] | None = None, filters: Filters = NO_FILTERS
) -> pa.RecordBatch:
    builder = RowBuilder(PRG, ReplayJudge(SETTINGS), names or NAMES, filters)
    for index, commands in enumerate(batches, 1):
        builder.add(entry(index, *commands))
    return builder.take()


def plain(value: Any) -> Any:
    """Make a value of a row JSON."""
    if isinstance(value, bytes):
        return value.decode()
    return value.isoformat() if isinstance(value, datetime) else value


def test_every_column_of_every_kind() -> None:
    batch = read(some_commands())
    assert batch.schema.equals(arrow_schema(), check_metadata=True)
    rows = [{name: plain(value) for name, value in row.items()} for row in batch.to_pylist()]
    shared = {
        "tenant": "dev",
        "prg": 0,
        "retain": False,
        "content_type": None,
        "user_properties": None,
        "stream_partition": None,
        "stream_offset": None,
        "protocol": None,
        "origin_prg": 0,
        "origin_term": None,
        "forward_seq": None,
        "row_kind": "message",
        "gap_through": None,
        "sub_index": 0,
        "raft_index": 2,
    }
    stamps = [datetime.fromtimestamp((NOW_MS + n) / 1000, UTC).isoformat() for n in range(4)]
    one = {"topic": "a/1", "payload": "one", "qos": 1, "publisher": "client", "session_epoch": 4}
    one["message_id"] = 11
    passed = {**shared, **one, "origin_prg": 1, "origin_term": 8, "timestamp": stamps[3]}
    assert rows == [
        {**shared, **one, "raft_index": 1, "timestamp": stamps[0]},
        {
            **shared,
            "raft_index": 1,
            "sub_index": 1,
            "topic": "b/ü",
            "payload": "two",
            "qos": 1,
            "retain": True,
            "content_type": "text/plain",
            "publisher": "client",
            "user_properties": [{"key": "k", "value": "1"}, {"key": "k", "value": "2"}],
            "session_epoch": 4,
            "message_id": 12,
            "timestamp": stamps[0],
            "protocol": "mqtt5",
        },
        {
            **shared,
            "topic": "c",
            "payload": "three",
            "qos": 2,
            "publisher": "lasting",
            "session_epoch": 1,
            "message_id": 13,
            "timestamp": stamps[1],
        },
        {
            **shared,
            "sub_index": 1,
            "topic": "d",
            "payload": "four",
            "qos": 2,
            "publisher": "far",
            "session_epoch": 6,
            "message_id": 14,
            "forward_seq": 41,
            "origin_prg": 2,
            "timestamp": stamps[2],
        },
        {**passed, "sub_index": 2, "forward_seq": 1},
        {**passed, "sub_index": 3, "forward_seq": 2},
    ]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_what_older_releases_wrote_gives_the_same_rows(path: Path) -> None:
    """Golden bytes: entries as they stood on disk, and the rows that they have for ever."""
    golden = json.loads(path.read_text())
    builder = RowBuilder(PRG, ReplayJudge(SETTINGS), version=golden["schema_version"])
    for index, payload in enumerate(golden["entries"], 1):
        builder.add(Entry(Term(1), LogIndex(index), bytes.fromhex(payload)))
    rows = [
        {name: plain(value) for name, value in row.items()} for row in builder.take().to_pylist()
    ]
    assert rows == golden["rows"]


def test_there_is_a_golden_vector_of_every_version() -> None:
    versions = {json.loads(path.read_text())["schema_version"] for path in GOLDEN.glob("*.json")}
    assert versions == {1, SCHEMA_VERSION}


PROTOCOLS = {
    "said to be 5": (FROM_V5, b"", "mqtt5", "mqtt"),
    "said to be older": (BEFORE_V5, b"", "mqtt3", "mqtt"),
    "not said": (0, b"", None, "mqtt"),
    "not said, with properties": (0, PROPERTIES, "mqtt5", "mqtt5"),
}


@pytest.mark.parametrize(
    ("flags", "properties", "now", "before"), PROTOCOLS.values(), ids=PROTOCOLS.keys()
)
def test_the_protocol_is_what_the_record_tells(
    flags: int, properties: bytes, now: str | None, before: str
) -> None:
    record = encode_record(b"t", b"", 1 | flags, properties, 0, b"c", 1, 1)
    command = encode_publishes(NOW_MS, OWN_ORIGIN, 0, 0, [record])
    for version, wanted in ((1, before), (2, now)):
        builder = RowBuilder(PRG, ReplayJudge(SETTINGS), ["protocol"], version=version)
        builder.add(entry(1, command))
        assert builder.take().column(0).to_pylist() == [wanted]


def test_wills_stand_behind_the_records_of_their_entry() -> None:
    """Whether or not their reader knows of them, records keep their numbers."""
    will = WillSpec(encode_record(b"gone", b"w", 1, b"", 0, b"c", 0, 0), 0)
    attach = Attach(NOW_MS, b"c", clean_start=True, expiry_seconds=0, window=1, will=will)
    detach = encode_command(Detach(NOW_MS + 7, b"c", 1, gracefully=False))
    record = encode_record(b"t", b"m", 1, b"", 0, b"c", 1, 1)
    packed = encode_publishes(NOW_MS + 8, OWN_ORIGIN, 0, 0, [record])
    names = ["raft_index", "sub_index", "payload", "row_kind", "publisher", "timestamp"]
    batch = read([[encode_command(attach)], [detach, packed]], names)
    stamps = [datetime.fromtimestamp((NOW_MS + n) / 1000, UTC) for n in (7, 8)]
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        (2, 0, b"m", "message", "c", stamps[1]),
        (2, WILLS_FROM, b"w", "will", "c", stamps[0]),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_column_alone_is_the_same(name: str) -> None:
    whole = read(some_commands())
    alone = read(some_commands(), [name])
    assert alone.num_columns == 1
    assert alone.column(0).equals(whole.column(name))


FILTERS = {
    "a prefix": (NO_FILTERS.with_prefix(b"a/"), [(1, 0), (2, 2), (2, 3)]),
    "two prefixes": (NO_FILTERS.with_prefix(b"a").with_prefix(b"a/2"), []),
    "topics": (NO_FILTERS.with_topics(frozenset({b"c", b"d"})), [(2, 0), (2, 1)]),
    "since": (NO_FILTERS.with_times(NOW_MS + 2), [(2, 1), (2, 2), (2, 3)]),
    "until": (NO_FILTERS.with_times(last_ms=NOW_MS + 1), [(1, 0), (1, 1), (2, 0)]),
}


@pytest.mark.parametrize(("filters", "places"), FILTERS.values(), ids=FILTERS.keys())
@pytest.mark.parametrize("names", [["raft_index", "sub_index"], None], ids=["two", "all"])
def test_a_filter_keeps_the_places(
    filters: Filters, places: list[tuple[int, int]], names: list[str] | None
) -> None:
    batch = read(some_commands(), names, filters)
    found = zip(
        batch.column("raft_index").to_pylist(), batch.column("sub_index").to_pylist(), strict=True
    )
    assert list(found) == places


def test_records_that_a_time_leaves_out_keep_their_numbers() -> None:
    record = encode_record(b"t", b"", 1, b"", 0, b"c", 1, 1)
    early = encode_publishes(NOW_MS, OWN_ORIGIN, 0, 0, [record, record])
    late = encode_publishes(NOW_MS + 9, OWN_ORIGIN, 0, 0, [record])
    batch = read([[early, late]], ["sub_index"], NO_FILTERS.with_times(NOW_MS + 1))
    assert batch.column(0).to_pylist() == [2]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.data())
def test_damaged_records_end_the_walk_where_the_broker_ends_it(
    payloads: list[bytes], data: st.DataObject
) -> None:
    """The loop is written out twice: both must find the same records, whatever the bytes are."""
    records = bytearray(
        b"".join(
            encode_record(b"t", payload, data.draw(st.sampled_from([1, 2])), b"", 0, b"c", 1, 1)
            for payload in payloads
        )
    )
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(records) - 1))
        records[at] = data.draw(st.integers(0, 255))
    del records[data.draw(st.integers(0, len(records))) :]
    expected = []
    at = 0
    try:
        while at < len(records):
            message, at = decode_record(bytes(records), at)
            expected.append(message.payload)
    except ValueError:
        pass
    command = encode_publishes(NOW_MS, OWN_ORIGIN, 0, 0, [bytes(records)])
    assert read([[command]], ["payload"]).column(0).to_pylist() == expected


def test_batches_are_cut_and_nothing_is_lost_between_them() -> None:
    record = encode_record(b"t", bytes(1 << 20), 1, b"", 0, b"c", 1, 1)
    command = encode_publishes(NOW_MS, OWN_ORIGIN, 0, 0, [record])
    builder = RowBuilder(PRG, LooseJudge(0, None), ["raft_index", "payload"])
    found: list[int] = []
    batches = 0
    for index in range(1, 21):
        builder.add(entry(index, command))
        if builder.is_full:
            found += builder.take().column(0).to_pylist()
            batches += 1
    found += builder.take().column(0).to_pylist()
    assert found == list(range(1, 21))
    assert batches == 2


@pytest.mark.parametrize("exact", [True, False])
def test_a_message_larger_than_an_entry_is_one_row_where_it_ended(exact: bool) -> None:
    large = encode_record(b"t", bytes(3 << 20), 1, b"", 0, b"c", 1, 1)
    small = encode_publishes(
        NOW_MS, OWN_ORIGIN, 0, 0, [encode_record(b"t", b"s", 1, b"", 0, b"c", 1, 2)]
    )
    parts = split_command(encode_publishes(NOW_MS, OWN_ORIGIN, 0, 0, [large]))
    judge = ReplayJudge(SETTINGS) if exact else LooseJudge(0, None)
    builder = RowBuilder(PRG, judge, ["raft_index", "payload"])
    builder.learn(entry(1, parts[0]))
    for index, part in enumerate(parts[1:], 2):
        builder.add(entry(index, small, part))
    rows = builder.take().to_pylist()
    last = len(parts)
    sizes = [(row["raft_index"], len(row["payload"])) for row in rows]
    assert sizes == [*((index, 1) for index in range(2, last + 1)), (last, 3 << 20)]


def test_entries_of_other_kinds_have_no_rows() -> None:
    builder = RowBuilder(PRG, LooseJudge(0, None))
    builder.add(Entry(Term(1), LogIndex(1), b"", EntryKind.NO_OP))
    builder.learn(Entry(Term(1), LogIndex(2), b"?", EntryKind.MEMBERSHIP_CHANGE))
    assert builder.take().num_rows == 0


def test_an_entry_that_is_no_batch_is_named() -> None:
    builder = RowBuilder(PRG, LooseJudge(0, None))
    with pytest.raises(EntryUnreadable) as caught:
        builder.add(Entry(Term(1), LogIndex(17), b"\xff\xff\xff\xff"))
    assert (caught.value.prg, caught.value.index) == (PRG, 17)


def test_a_gap_says_from_where_to_where() -> None:
    (row,) = gap_row(PRG, 5, 9, NAMES).to_pylist()
    said = {name: value for name, value in row.items() if value is not None}
    assert said == {"tenant": "dev", "prg": 0, "raft_index": 5, "row_kind": GAP, "gap_through": 9}


def test_text_that_is_none_is_shown_as_such() -> None:
    record = encode_record(b"t\xff", b"", 1, b"", 0, b"c", 1, 1)
    command = encode_publishes(NOW_MS, OWN_ORIGIN, 0, 0, [record])
    assert read([[command]], ["topic"]).column(0).to_pylist() == ["t\ufffd"]
