"""Which records are messages: one story for each way in which one is not."""

from __future__ import annotations

import pytest

from quantum.archive.types import PrgId
from quantum.broker import (
    OWN_ORIGIN,
    Attach,
    BrokerSettings,
    ChannelItems,
    Command,
    Detach,
    PublishOnce,
    Release,
    Subscribe,
    SubscriptionSpec,
    WillSpec,
    encode_command,
    encode_publishes,
    encode_record,
)
from quantum.broker.items import Deliver, Forward, Interest, encode_item
from quantum.broker.message import decode_record
from quantum.lake.judging import Judge, LooseJudge, ReplayJudge
from quantum.lake.rows import RowBuilder
from tests.quantum.lake.memory_source import MemorySource

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
        [[items(1, Interest(b"#", 1), forward(b"a"), Deliver(decode_record(record(b"x"))[0]))]],
        "a",
    ),
    "a will that crosses": ([[items(1, forward(b"x", packet_id=0))]], ""),
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
                        WillSpec(record(b"x", packet_id=0), 0),
                    )
                )
            ],
            [encoded(Detach(1_000, b"client", 1, gracefully=False))],
        ],
        "",
    ),
}


def payloads(batches: list[list[bytes]], judge: Judge) -> str:
    source = MemorySource()
    source.append(PRG, batches)
    builder = RowBuilder(PRG, judge, ["payload"])
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
    """In the middle of a log nobody knows which of two was answered; one row is right."""
    batches = [[passed_on([b"b"], 5)], [passed_on([b"a", b"b", b"c"], 4)]]
    assert payloads(batches, LooseJudge(HERE, owner)) == "bac"


def test_a_new_session_may_use_an_open_packet_id() -> None:
    batches = [[once([b"a"], epoch=1)], [once([b"b"], epoch=2)], [once([b"b"], epoch=2)]]
    assert payloads(batches, LooseJudge(HERE, owner)) == "ab"


def test_without_a_ring_every_publish_stays() -> None:
    batches = [[once([b"a"], 7, b"there")], [once([b"b"], 8)], [once([b"b"], 8)]]
    assert payloads(batches, LooseJudge(HERE, None)) == "ab"
