"""What is written by hand equals what the protocol's library writes, in every version."""

from __future__ import annotations

import random

import pytest

from quantum.protocols.kafka.codec import (
    ApiKey,
    MalformedRequest,
    ProducedPartition,
    RequestHead,
    RequestTooLarge,
    encode,
    encode_fetch_response,
    encode_produce_response,
    encode_response,
    scan_produce,
)
from tests.quantum.kafka import twins

SEEDS = range(40)


@pytest.mark.parametrize("version", range(3, 13))
def test_a_scan_finds_what_the_library_wrote(version: int) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        request, expected = twins.produce_request(rng, version)
        body = b"head" + encode(request)
        transactional_id, acks, timeout_ms, rows = scan_produce(body, 4, version)
        wanted = request.transactional_id
        assert transactional_id == (None if wanted is None else wanted.encode())
        assert acks == request.acks
        assert timeout_ms == round(request.timeout.total_seconds() * 1000)
        found = [
            (topic, index, None if start < 0 else body[start:end])
            for topic, index, start, end in rows
        ]
        assert found == expected, seed


@pytest.mark.parametrize("version", range(3, 13))
def test_every_cut_of_a_produce_is_malformed(version: int) -> None:
    rng = random.Random(version)
    request, rows = twins.produce_request(rng, version)
    while len(rows) < 3:
        request, rows = twins.produce_request(rng, version)
    body = encode(request)
    for end in range(len(body)):
        with pytest.raises(MalformedRequest):
            scan_produce(body[:end], 0, version)
    assert len(scan_produce(body + b"\x00", 0, version)[3]) == len(rows), "as Apache lets it be"


IMPOSSIBLE = {
    "compact array of 4 billion": (9, b"\x00" + bytes(6) + b"\xff\xff\xff\xff\x0f"),
    "array of 2 billion": (3, b"\xff\xff" + bytes(6) + b"\x7f\xff\xff\xff"),
    "null array": (3, b"\xff\xff" + bytes(6) + b"\xff\xff\xff\xff"),
    "negative string": (3, b"\xff\xfe" + bytes(6)),
    "variable integer without an end": (9, b"\xff" * 11),
    "null topic": (9, b"\x00" + bytes(6) + b"\x02\x00\x01\x00\x00"),
    "batch of 2 GB": (
        3,
        b"\xff\xff" + bytes(6) + b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\x7f\xff\xff\xffx",
    ),
    "batch of -2": (3, b"\xff\xff" + bytes(6) + b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xfe"),
    "tag beyond the end": (9, b"\x00" + bytes(6) + b"\x01\x01\x07\xff\x01"),
    "a partition twice": (
        3,
        b"\xff\xff" + bytes(6) + b"\0\0\0\1\0\1t\0\0\0\2" + b"\0\0\0\0\xff\xff\xff\xff" * 2,
    ),
}


@pytest.mark.parametrize(("version", "body"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_impossible_lengths_are_refused(version: int, body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        scan_produce(body, 0, version)


MANY = {
    "topics": (65_537).to_bytes(4, "big") + b"\0\1t\0\0\0\0" * 65_537,
    "partitions": b"\0\0\0\1\0\1t" + (65_537).to_bytes(4, "big") + bytes(8 * 65_537),
}


@pytest.mark.parametrize("rows", MANY.values(), ids=MANY.keys())
def test_a_produce_of_too_many_is_refused_before_it_is_walked(rows: bytes) -> None:
    with pytest.raises(RequestTooLarge):
        scan_produce(b"\xff\xff" + bytes(6) + rows, 0, 3)


def test_too_many_tags_are_refused() -> None:
    body = b"\x00" + bytes(6) + b"\x01\x81\x08" + b"\x01\x00" * 1_025
    with pytest.raises(MalformedRequest, match="tagged"):
        scan_produce(body, 0, 9)


def test_unknown_tags_of_a_produce_are_for_others() -> None:
    plain = b"\x00\x00\x01\x00\x00\x00\x05\x02\x02t\x02\x00\x00\x00\x07\x03ab"
    tags = b"\x02\x01\x02zz\x05\x00"
    without = scan_produce(plain + b"\x00\x00\x00", 0, 9)
    assert scan_produce(plain + tags * 3, 0, 9) == without
    assert without == (None, 1, 5, [(b"t", 7, 16, 18)])


@pytest.mark.parametrize("version", range(3, 13))
def test_produce_answers_equal_the_librarys(version: int) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        topics = [
            (twins.words(rng).encode(), [twins.produced(rng) for _ in range(rng.randint(0, 3))])
            for _ in range(rng.randint(0, 3))
        ]
        throttle, nodes = twins.number(rng, 31), twins.endpoints(rng)
        head = RequestHead(ApiKey.PRODUCE, version, rng.randrange(1 << 31), None, 0)
        twin = twins.produce_response(version, topics, throttle, nodes)
        written = encode_produce_response(version, head.correlation_id, topics, throttle, nodes)
        assert written == encode_response(head, twin), seed


@pytest.mark.parametrize(
    ("version", "wire"),
    [
        (0, "0000001d 00000007 00000001 0001 74 00000001 00000003 002b ffffffffffffffff"),
        (1, "00000021 00000007 00000001 0001 74 00000001 00000003 002b ffffffffffffffff 00000005"),
        (
            2,
            "00000029 00000007 00000001 0001 74 00000001 00000003 002b ffffffffffffffff"
            "ffffffffffffffff 00000005",
        ),
    ],
)
def test_old_produce_is_refused_in_its_own_shape(version: int, wire: str) -> None:
    topics = [(b"t", [ProducedPartition(3, 43)])]
    assert encode_produce_response(version, 7, topics, 5) == bytes.fromhex(wire)


@pytest.mark.parametrize("version", range(4, 17))
def test_fetch_answers_equal_the_librarys_and_copy_nothing(version: int) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        topics = [
            (
                rng.randbytes(16) if version >= 13 else twins.words(rng).encode(),
                [twins.fetched(rng) for _ in range(rng.randint(0, 3))],
            )
            for _ in range(rng.randint(0, 3))
        ]
        above = (rng.choice(twins.CODES), twins.number(rng, 31), twins.number(rng, 31))
        nodes = twins.endpoints(rng)
        head = RequestHead(ApiKey.FETCH, version, rng.randrange(1 << 31), None, 0)
        pieces = encode_fetch_response(version, head.correlation_id, topics, *above, nodes)
        twin = twins.fetch_response(version, topics, above, nodes)
        assert b"".join(pieces) == encode_response(head, twin), seed
        stored = [b for _, partitions in topics for p in partitions for b in p.batches or ()]
        views = [piece for piece in pieces if isinstance(piece, memoryview)]
        assert all(one is other for one, other in zip(views, stored, strict=True))
