"""Which records are messages: one story for each way in which one is not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantum.archive.types import PrgId
from quantum.broker import (
    OWN_ORIGIN,
    Attach,
    BrokerSettings,
    ChannelItems,
    Command,
    Detach,
    LeaderStarted,
    Part,
    PublishOnce,
    Release,
    Subscribe,
    SubscriptionSpec,
    WillSpec,
    decode_command,
    encode_command,
    encode_publishes,
    encode_record,
)
from quantum.broker.items import Deliver, Forward, Interest, encode_item
from quantum.broker.parts import PART_BYTES_MAX, split_command
from quantum.broker.streams import STREAM_FAMILY, CreateTopic, StreamSection, encode_appends
from quantum.broker.streams.section import TOPICS, encode_stream_command, encode_term
from quantum.lake.filters import NO_FILTERS, Filters
from quantum.lake.judging import Judge, ReplayJudge
from quantum.lake.loose_judging import LooseJudge
from quantum.lake.planner import Task
from quantum.lake.reader import read_task
from quantum.lake.refusals import EntryUnreadable
from quantum.lake.rows import RowBuilder
from tests.quantum.lake.memory_source import MemorySource
from tests.quantum.streams.stream_desk import batch_of

HERE, THERE = 0, 1
PRG = PrgId("dev", HERE)


def owner(topic: bytes, _count: int = 2) -> int:
    return THERE if topic.startswith(b"there") else HERE


SETTINGS = BrokerSettings(HERE, 2, owner, owner, queue_messages_max=1)


def record(
    payload: bytes, *, topic: bytes = b"here", qos: int = 1, packet_id: int = 7, epoch: int = 1
) -> bytes:
    return encode_record(topic, payload, qos, b"", 0, b"client", epoch, packet_id)


def packed(records: list[bytes], origin: int = OWN_ORIGIN, term: int = 0, first: int = 0) -> bytes:
    return encode_publishes(1_000, origin, term, first, records)


def passed_on(payloads: list[bytes], first: int, term: int = 1, origin: int = THERE) -> bytes:
    return packed([record(payload) for payload in payloads], origin, term, first)


def once(
    payloads: list[bytes], packet_id: int = 7, topic: bytes = b"here", epoch: int = 1
) -> bytes:
    records = [
        record(payload, qos=2, packet_id=packet_id, topic=topic, epoch=epoch)
        for payload in payloads
    ]
    return encode_command(PublishOnce(1_000, records))


def items(first: int, *found: Forward | Interest | Deliver, origin: int = THERE) -> bytes:
    sequences = list(range(first, first + len(found)))
    return encode_command(ChannelItems(1_000, origin, sequences, list(map(encode_item, found))))


def forward(payload: bytes, packet_id: int = 7) -> Forward:
    return Forward(record(payload, qos=2, packet_id=packet_id))


def encoded(command: Command) -> bytes:
    return encode_command(command)


ATTACH = encoded(Attach(1_000, b"client", clean_start=False, expiry_seconds=100, window=10))
RELEASE = encoded(Release(1_000, [(b"client", 7)]))

BOTH = {
    "what is published here": ([[packed([record(b"a"), record(b"b")])]], "ab"),
    "what is passed on": ([[passed_on([b"a", b"b"], 1)], [passed_on([b"c"], 3)]], "abc"),
    "numbers that come again": (
        [[passed_on([b"a", b"b"], 1)], [passed_on([b"a", b"b", b"c"], 1)], [passed_on([b"b"], 2)]],
        "abc",
    ),
    "numbers again in one entry": ([[passed_on([b"a"], 1), passed_on([b"a", b"b"], 1)]], "ab"),
    "a deposed leader": ([[passed_on([b"a"], 1, term=2)], [passed_on([b"x"], 2, term=1)]], "a"),
    "a new leader counts anew": ([[passed_on([b"a"], 1)], [passed_on([b"b"], 1, term=2)]], "ab"),
    "two origins": ([[passed_on([b"a"], 1)], [passed_on([b"x"], 1, origin=HERE)]], None),
    "a QoS 2 publish": ([[ATTACH], [once([b"a"])]], "a"),
    "a QoS 2 publish again": ([[ATTACH], [once([b"a"])], [once([b"a"])]], "a"),
    "again in one command": ([[ATTACH], [once([b"a", b"a"])]], "a"),
    "another after its release": ([[ATTACH], [once([b"a"])], [RELEASE], [once([b"b"])]], "ab"),
    "a QoS 2 publish of another partition's topic": ([[ATTACH], [once([b"x"], 7, b"there")]], ""),
    "what a stream brings": ([[items(1, forward(b"a"))], [items(2, forward(b"b"))]], "ab"),
    "what it brings again": ([[items(1, forward(b"a"))], [items(1, forward(b"a"))]], "a"),
    "places left out": ([[items(1, forward(b"a"))], [items(5, forward(b"b"))]], "ab"),
    "no messages of a stream": (
        [[items(1, Interest(b"#", 1), forward(b"a"), Deliver(record(b"x")))]],
        "a",
    ),
    "a will that crosses": ([[items(1, forward(b"w", packet_id=0))]], "w"),
    "what no broker wrote": ([[b"", b"\0", b"\x93\x06", b"\x93\x08", packed([b"\1\2"])]], ""),
}
EXACT = {
    "numbers behind a gap": ([[passed_on([b"a"], 1)], [passed_on([b"x"], 3)]], "a"),
    "a full queue refuses": (
        [
            [
                encoded(Attach(1_000, b"slow", clean_start=False, expiry_seconds=100, window=1)),
                encoded(Subscribe(1_000, b"slow", 1, [SubscriptionSpec(b"here", 1)])),
                encoded(Detach(1_000, b"slow", 1, gracefully=True)),
            ],
            [packed([record(b"a"), record(b"x"), record(b"b", topic=b"free")])],
        ],
        "ab",
    ),
    "a session that is gone": ([[once([b"x"])]], ""),
    "a session that began anew": ([[ATTACH], [once([b"x"], epoch=9)]], ""),
    "a number from nowhere": ([[passed_on([b"x"], 5)]], ""),
    "a partition that is none": ([[passed_on([b"x"], 1, origin=77)]], ""),
    "a will here": (
        [
            [
                encoded(
                    Attach(
                        *(1_000, b"client", True, 0, 10),
                        WillSpec(record(b"w", packet_id=0), 0),
                    )
                )
            ],
            [encoded(Detach(1_000, b"client", 1, gracefully=False))],
        ],
        "w",
    ),
    "a will about another partition's topic": (
        [
            [
                encoded(
                    Attach(
                        *(1_000, b"client", True, 0, 10),
                        WillSpec(record(b"w", packet_id=0, topic=b"there"), 0),
                    )
                )
            ],
            [encoded(Detach(1_000, b"client", 1, gracefully=False))],
        ],
        "",
    ),
    "a will that is not wanted": (
        [
            [
                encoded(
                    Attach(
                        *(1_000, b"client", True, 0, 10),
                        WillSpec(record(b"w", packet_id=0), 0),
                    )
                )
            ],
            [encoded(Detach(1_000, b"client", 1, gracefully=True))],
        ],
        "",
    ),
}


def payloads(
    batches: list[list[bytes]], judge: Judge, filters: Filters = NO_FILTERS, version: int = 2
) -> str:
    source = MemorySource()
    source.append(PRG, batches)
    builder = RowBuilder(PRG, judge, ["payload"], filters, version)
    for _, entry in sorted(source.logs[PRG].items()):
        builder.add(entry)
    return b"".join(builder.take().column("payload").to_pylist()).decode()


@pytest.mark.parametrize(("batches", "wanted"), (BOTH | EXACT).values(), ids=(BOTH | EXACT).keys())
def test_the_broker_says_what_is_a_message(batches: list[list[bytes]], wanted: str | None) -> None:
    assert payloads(batches, ReplayJudge(SETTINGS)) == ("a" if wanted is None else wanted)


@pytest.mark.parametrize(("batches", "wanted"), BOTH.values(), ids=BOTH.keys())
def test_repetitions_are_seen_without_the_broker(
    batches: list[list[bytes]], wanted: str | None
) -> None:
    assert payloads(batches, LooseJudge(HERE, owner)) == ("ax" if wanted is None else wanted)


def test_a_number_that_counted_only_later_is_not_lost() -> None:
    """In the middle of a log nobody knows where it counted, so it is shown in both places."""
    batches = [[passed_on([b"b"], 5)], [passed_on([b"a", b"b", b"c"], 4)]]
    assert payloads(batches, LooseJudge(HERE, owner)) == "babc"


def test_a_number_that_stands_before_a_time_and_counts_after_it_has_its_row() -> None:
    early = encode_publishes(1_000, THERE, 1, 5, [record(b"b")])
    late = encode_publishes(2_000, THERE, 1, 4, [record(b"a"), record(b"b")])
    since = NO_FILTERS.with_times(1_500)
    assert payloads([[early], [late]], LooseJudge(HERE, owner, since), since) == "ab"


def test_what_counted_for_certain_is_not_shown_again() -> None:
    """Wherever the counter stood: it is beyond these when they come again."""
    batches = [[passed_on([b"a", b"b"], 5)], [passed_on([b"c"], 7)], [passed_on([b"b", b"c"], 6)]]
    assert payloads(batches, LooseJudge(HERE, owner)) == "abc"


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 8),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4)), min_size=1, max_size=8),
)
def test_every_place_in_which_a_number_counts_is_shown(
    before: int, commands: list[tuple[int, int]]
) -> None:
    """Whatever was counted before reading began, and in whatever order numbers come."""
    numbers = [list(range(first, first + count)) for first, count in commands]
    batches = [[passed_on([bytes([65 + n]) for n in each], each[0])] for each in numbers]
    begun = [[passed_on([bytes([65 + n]) for n in range(1, before + 1)], 1)]] if before else []
    exact = places(begun + batches, ReplayJudge(SETTINGS), skip=len(begun))
    loose = places(batches, LooseJudge(HERE, owner))
    assert exact <= loose


def places(batches: list[list[bytes]], judge: Judge, skip: int = 0) -> set[tuple[int, int]]:
    source = MemorySource()
    source.append(PRG, batches)
    builder = RowBuilder(PRG, judge, ["raft_index", "sub_index"])
    for index, entry in sorted(source.logs[PRG].items()):
        if index <= skip:
            builder.learn(entry)
        else:
            builder.add(entry)
    return {(row["raft_index"] - skip, row["sub_index"]) for row in builder.take().to_pylist()}


def test_a_refused_exchange_leaves_its_packet_id_to_another_message() -> None:
    """A client that was told of a refusal uses the id again, without a release."""
    batches = [[once([b"a"])], [once([b"b"])], [once([b"b"])]]
    assert payloads(batches, LooseJudge(HERE, owner)) == "ab"


def test_an_exchange_that_a_broker_may_have_forgotten_is_shown_again() -> None:
    again = encode_command(PublishOnce(61_000, [record(b"a", qos=2)]))
    assert payloads([[once([b"a"])], [again]], LooseJudge(HERE, owner)) == "a"
    assert payloads([[once([b"a"])], [again]], LooseJudge(HERE, owner, horizon_ms=60_000)) == "aa"


def test_the_first_version_has_no_wills() -> None:
    for name in ("a will that crosses", "a will here"):
        batches, _ = (BOTH | EXACT)[name]
        assert payloads(batches, ReplayJudge(SETTINGS), version=1) == ""


def test_a_new_session_may_use_an_open_packet_id() -> None:
    batches = [[once([b"a"], epoch=1)], [once([b"b"], epoch=2)], [once([b"b"], epoch=2)]]
    assert payloads(batches, LooseJudge(HERE, owner)) == "ab"


def test_without_a_ring_every_publish_stays() -> None:
    """Its partition may have been closed when they came first."""
    batches = [[once([b"a"], 7, b"there")], [once([b"b"], 8)], [once([b"b"], 8)]]
    assert payloads(batches, LooseJudge(HERE, None)) == "abb"
    batches = [[passed_on([b"a"], 1)], [passed_on([b"a"], 1)], [items(1, forward(b"b"))]]
    assert payloads([*batches, batches[-1]], LooseJudge(HERE, None)) == "aabb"


# Messages larger than an entry.

LARGE = b"x" * (2 * PART_BYTES_MAX)


def large(*, qos: int = 1) -> list[bytes]:
    command = packed([record(LARGE)]) if qos == 1 else once([LARGE])
    return split_command(command)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_large_message_has_its_row_where_its_last_part_is(qos: int) -> None:
    parts = large(qos=qos)
    first = [ATTACH, packed([record(b"a")]), parts[0]]
    batches = [first, parts[1:-1], [parts[-1], packed([record(b"b")])]]
    for new in (lambda: ReplayJudge(SETTINGS), lambda: LooseJudge(HERE, owner)):
        assert payloads(batches, new()) == "a" + LARGE.decode() + "b"
        assert places(batches, new()) == {(1, 0), (3, 0), (3, 1)}


def test_what_a_leader_did_not_finish_has_no_row() -> None:
    began = encoded(LeaderStarted(1_000, 2))
    batches = [large()[:-1], [began, packed([record(b"a")])]]
    for judge in (ReplayJudge(SETTINGS), LooseJudge(HERE, owner)):
        assert payloads(batches, judge) == "a"


def test_the_end_of_a_large_message_alone_is_never_passed_over() -> None:
    with pytest.raises(EntryUnreadable, match="began before what is read"):
        payloads([[large()[-1]]], LooseJudge(HERE, owner))


def test_a_task_that_begins_inside_a_large_message_reads_from_where_that_begins() -> None:
    parts = large()
    source = MemorySource()
    source.append(PRG, [[part] for part in parts])
    rows = [
        row
        for batch in read_task(source, Task(PRG, len(parts), len(parts)), ["payload"])
        for row in batch.to_pylist()
    ]
    assert rows == [{"payload": LARGE}]


def test_every_part_says_when_its_command_was_made() -> None:
    for qos in (1, 2):
        for part in large(qos=qos):
            command = decode_command(part)
            assert isinstance(command, Part) and command.now_ms == 1_000


def test_commands_of_topics_are_no_messages_and_do_no_harm() -> None:
    batch = batch_of(1, 0, 3)
    create = CreateTopic(0, "orders", b"0123456789abcdef", 1)
    commands = [
        encode_stream_command(1_000, TOPICS, create),
        encode_appends(1_000, 1, [batch, batch]),
        *split_command(encode_appends(1_000, 1, [batch] * 4_000)),
        encode_term(1_000, 2),
    ]
    alone = BrokerSettings(0, 1, lambda *_: 0, lambda *_: 0)
    exact, loose = ReplayJudge(alone), LooseJudge(0, None)
    for judge in (exact, loose):
        for index, command in enumerate(commands, 1):
            assert list(judge.judge(index, [command])) == [None]
    section = exact.state.sections[STREAM_FAMILY]
    assert isinstance(section, StreamSection)
    assert section.partitions[1, 0].log.end_offset == 3 * 4_002
