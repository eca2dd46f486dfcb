"""Requests as bytes: framed, bounded, and read in every version that the table has."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from quantum.protocols.kafka.codec import (
    VERSIONS,
    ApiKey,
    KafkaCode,
    KafkaMisuse,
    KafkaRequestReader,
    MalformedRequest,
    RequestHead,
    RequestTooLarge,
    UnsupportedRequest,
    answer,
    answer_api_versions,
    decode,
    decode_request,
    encode,
    encode_response,
    read_head,
    versions_of,
)
from quantum.protocols.kafka.codec.framing import LONG_BYTES, PART_BYTES_MIN
from tests.quantum.kafka import golden
from tests.quantum.kafka.drawing import draw

SERVED = [
    (key, version)
    for key, row in VERSIONS.items()
    for version in range(row.served_from, row.last + 1)
]
NAMES = [f"{key.name}-{version}" for key, version in SERVED]


def request_of(key: int, version: int, body: bytes = b"", *, flexible: bool = False) -> bytes:
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + b"\0\0\0\7\0\2me"
    return head + (b"\x00" if flexible else b"") + body


@pytest.mark.parametrize(("key", "version"), SERVED, ids=NAMES)
def test_the_table_agrees_with_the_protocol(key: ApiKey, version: int) -> None:
    row = VERSIONS[key]
    request: Any = load_request_schema(key, version)
    response: Any = load_response_schema(key, version)
    flexible = version >= row.flexible_from
    assert request.__flexible__ == response.__flexible__ == flexible
    assert request.__header_schema__.__version__ == (2 if flexible else 1)
    is_new = flexible and key != ApiKey.API_VERSIONS
    assert response.__header_schema__.__version__ == (1 if is_new else 0)


@pytest.mark.parametrize(("key", "version"), SERVED, ids=NAMES)
def test_both_readers_read_the_same(key: ApiKey, version: int) -> None:
    rng = random.Random(key * 100 + version)
    for schema in (load_request_schema(key, version), load_response_schema(key, version)):
        for _ in range(8):
            entity: Any = draw(schema, rng)
            wire = encode(entity)
            assert decode(schema, wire) == entity
            assert entity_reader(schema)(wire, 0) == (entity, len(wire))
            cut = rng.randrange(len(wire)) if wire else None
            if cut is not None:
                with pytest.raises(MalformedRequest):
                    decode(schema, wire[:cut])


def test_golden_requests_are_read_as_the_library_reads_them() -> None:
    for request in golden.requests():
        head = read_head(request)
        if head.api_key == ApiKey.PRODUCE:
            continue
        schema = load_request_schema(head.api_key, head.api_version)
        twin, size = entity_reader(schema)(request, head.body_start)
        assert decode_request(head, request) == twin
        assert request[head.body_start :].startswith(encode(twin)[:size])


@pytest.mark.parametrize(
    "body",
    [
        b"\x01\x01\x00\x00\x01\x05\x02zz",  # an unknown tag of the whole request
        b"\x02" + bytes(16) + b"\x02a\x01\x07\x00\x01\x00\x00\x00",  # one of a topic
    ],
)
def test_unknown_tags_are_ignored(body: bytes) -> None:
    request = request_of(3, 12, body, flexible=True) if len(body) > 12 else None
    if request is None:
        request = request_of(3, 9, body, flexible=True)
    decoded: Any = decode_request(read_head(request), request)
    assert [each.name for each in decoded.topics] == (["a"] if len(body) > 12 else [])


IMPOSSIBLE = {
    "2 billion topics": (3, 1, b"\x7f\xff\xff\xff" + b"\0\0" * 9),
    "-2 topics": (3, 1, b"\xff\xff\xff\xfe"),
    "4 billion topics": (3, 9, b"\x00\xff\xff\xff\xff\x0f\x01"),
    "a length without an end": (3, 9, b"\x00" + b"\xff" * 9),
    "2 billion partitions": (9, 1, b"\0\1g\0\0\0\1\0\1t\x7f\xff\xff\xff\0\0\0\0"),
    "4 billion tags": (3, 9, b"\x00\x01\x00\x00\xff\xff\xff\xff\x0f"),
    "a tag twice": (1, 12, b"\x00" + bytes(25) + b"\x01\x01\x01" + b"\x02\x00\x01\x00\x00\x01\x00"),
    "no UTF-8": (3, 1, b"\0\0\0\1\0\2\xff\xfe"),
    "null where none may be": (12, 0, b"\xff\xff" + bytes(10)),
    "nothing": (3, 1, b""),
}


@pytest.mark.parametrize(("key", "version", "body"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_impossible_bodies_are_malformed(key: int, version: int, body: bytes) -> None:
    request = request_of(key, version, body)
    with pytest.raises(MalformedRequest):
        decode_request(read_head(request), request)


def test_an_array_of_small_things_is_bounded_by_its_bytes() -> None:
    """64 partitions of four bytes are no 2 billion: what is left decides, not what is said."""
    body = b"\0\1g\0\0\0\1\0\1t" + (65).to_bytes(4, "big") + bytes(4 * 64)
    request = request_of(9, 1, body)
    with pytest.raises(MalformedRequest, match="impossible length"):
        decode_request(read_head(request), request)


@pytest.mark.parametrize(("count", "nested"), [(65_537, False), (257, True)])
def test_arrays_of_a_message_are_bounded_together(count: int, nested: bool) -> None:
    """A megabyte of empty names would take most of a second; in parts it would as well."""
    body = count.to_bytes(4, "big") + bytes(2 * count)
    request = request_of(3, 1, body)
    if nested:
        topic = b"\0\1t" + (256).to_bytes(4, "big") + bytes(4 * 256)
        request = request_of(9, 1, b"\0\1g" + count.to_bytes(4, "big") + topic * count)
    with pytest.raises(RequestTooLarge):
        decode_request(read_head(request), request)


@pytest.mark.parametrize(("key", "version"), [(3, 14), (0, 13), (4, 0), (1, 3), (999, 0), (2, -1)])
def test_unknown_apis_and_versions_have_no_answer(key: int, version: int) -> None:
    with pytest.raises(UnsupportedRequest) as refused:
        read_head(request_of(key, version))
    assert (refused.value.api_key, refused.value.api_version) == (key, version)


@pytest.mark.parametrize("version", [5, 99, -1])
def test_api_versions_of_an_unknown_version_is_answered_in_version_0(version: int) -> None:
    head = read_head(request_of(18, version, b"\xff\xff whatever"))
    wire = answer_api_versions(head)
    assert wire[:8] == (len(wire) - 4).to_bytes(4, "big") + b"\0\0\0\7"
    response: Any = decode(load_response_schema(18, 0), wire[8:])
    assert response.error_code is KafkaCode.unsupported_version
    assert {each.api_key for each in response.api_keys} == set(VERSIONS)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_says_the_table(version: int) -> None:
    head = RequestHead(18, version, 7, None, 0)
    hidden = frozenset({ApiKey.CONSUMER_GROUP_HEARTBEAT})
    wire = answer_api_versions(head, throttle_ms=3, hidden=hidden)
    response: Any = decode(load_response_schema(18, version), wire[8:])
    found = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    assert found == {key: (r.first, r.last) for key, r in VERSIONS.items() if key not in hidden}
    if version >= 3:
        levels = {each.name: each.max_version_level for each in response.finalized_features}
        assert levels == {"transaction.version": 2, "group.version": 1}


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_requests_are_found_however_the_bytes_arrive(size: int) -> None:
    requests = golden.requests()[:20]
    wire = b"".join(len(each).to_bytes(4, "big") + each for each in requests)
    reader = KafkaRequestReader(admitted=True)
    found = []
    for start in range(0, len(wire), size):
        reader.receive(wire[start : start + size])
        while (request := reader.next_request()) is not None:
            found.append(request)
    assert found == requests
    assert reader.buffered_bytes == 0


@pytest.mark.parametrize("size", [1, 5_000, PART_BYTES_MIN, 100_000, 3 * LONG_BYTES])
def test_long_requests_are_found_however_the_bytes_arrive(size: int) -> None:
    lengths = (LONG_BYTES - 1, LONG_BYTES, 20, LONG_BYTES + 77_777, 9)
    requests = [bytes(2) + os.urandom(length - 2) for length in lengths]
    wire = b"".join(len(each).to_bytes(4, "big") + each for each in requests)
    reader = KafkaRequestReader(admitted=True)
    found: list[bytes] = []
    for start in range(0, len(wire), size):
        reader.receive(wire[start : start + size])
        while (request := reader.next_request()) is not None:
            found.append(request)
        taken = sum(4 + len(each) for each in found)
        held = min(start + size, len(wire)) - taken
        assert reader.buffered_bytes in (held, held - 4), "a long one's length is known, not held"
    assert found == requests
    assert reader.buffered_bytes == 0


def test_a_long_request_that_drips_costs_no_object_for_each_byte() -> None:
    reader = KafkaRequestReader(admitted=True)
    reader.receive((2 * LONG_BYTES).to_bytes(4, "big") + bytes(2))
    assert reader.next_request() is None
    for _ in range(10_000):
        reader.receive(b"x")
    assert reader.awaited_bytes == 2 * LONG_BYTES - 10_002
    assert len(reader._long) == 1


def too_large(reader: KafkaRequestReader, data: bytes) -> bool:
    reader.receive(data)
    try:
        reader.next_request()
    except RequestTooLarge:
        return True
    return False


def test_a_request_is_refused_by_its_first_bytes() -> None:
    bounds: Any = {"produce_bytes_max": 1000, "control_bytes_max": 100, "stranger_bytes_max": 50}
    at = [(999, 0), (1000, 0), (1001, 0), (99, 3), (100, 3), (101, 3)]
    refused = [
        too_large(
            KafkaRequestReader(admitted=True, **bounds),
            size.to_bytes(4, "big") + key.to_bytes(2, "big"),
        )
        for size, key in at
    ]
    assert refused == [False, False, True, False, False, True]
    assert too_large(KafkaRequestReader(admitted=True, **bounds), (1001).to_bytes(4, "big"))
    stranger = KafkaRequestReader(**bounds)
    assert not too_large(stranger, (50).to_bytes(4, "big"))
    assert stranger.awaited_bytes == 50
    assert too_large(KafkaRequestReader(**bounds), (51).to_bytes(4, "big") + b"\0\0")
    stranger.admitted = True
    stranger.receive(b"\0\0" + bytes(48))
    assert stranger.next_request() == bytes(50)


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\0\0\0\7"])
def test_impossible_lengths_are_malformed_whenever_asked(size: bytes) -> None:
    reader = KafkaRequestReader(admitted=True)
    reader.receive(size + b"more")
    for _ in range(2):
        with pytest.raises(MalformedRequest):
            reader.next_request()


def test_what_was_whole_before_a_bad_length_is_delivered() -> None:
    reader = KafkaRequestReader(admitted=True)
    reader.receive(b"\0\0\0\x08" + b"12345678" + b"\xff\xff\xff\xff")
    assert reader.next_request() == b"12345678"
    with pytest.raises(MalformedRequest):
        reader.next_request()


@pytest.mark.parametrize("client_id", [b"\xff\xff", b"\0\0", b"\0\3abc"])
def test_client_ids_keep_the_old_string_in_all_versions(client_id: bytes) -> None:
    request = b"\0\3\0\x0c\0\0\0\1" + client_id + b"\x01\x63\x01z" + b"rest"
    head = read_head(request)
    assert (
        head.client_id
        == {0: None, 1: "", 2: "abc"}[[b"\xff\xff", b"\0\0", b"\0\3abc"].index(client_id)]
    )
    assert request[head.body_start :] == b"rest"


@pytest.mark.parametrize(
    "tail", [b"", b"\0", b"\0\5ab", b"\xff\xfe", b"\0\1\xff\0", b"\0\0\x01\x01"]
)
def test_broken_headers_are_malformed(tail: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_head(b"\0\3\0\x0c\0\0\0\1" + tail)


@pytest.mark.parametrize("version", range(14))
def test_one_set_of_facts_answers_all_versions(version: int) -> None:
    head = RequestHead(ApiKey.METADATA, version, 9, None, 0)
    node = {"node_id": 1, "host": "h", "port": 2, "rack": None}
    facts = {"brokers": [node], "cluster_id": "c", "controller_id": 1, "topics": []}
    wire = answer(head, facts)
    start = 9 if version >= 9 else 8
    decoded: Any = decode(load_response_schema(ApiKey.METADATA, version), wire[start:])
    assert decoded.brokers[0].host == "h"
    with pytest.raises(KafkaMisuse, match="missing"):
        answer(head, {"brokers": [node]})


def test_our_own_mistakes_are_told_as_such() -> None:
    head = RequestHead(ApiKey.METADATA, 1, 9, None, 0)
    facts: Any = {"brokers": [], "controller_id": 1 << 40, "topics": []}
    with pytest.raises(KafkaMisuse):
        answer(head, facts)
    other = draw(load_response_schema(12, 0), random.Random(1))
    with pytest.raises(KafkaMisuse, match="another request"):
        encode_response(head, other)
    with pytest.raises(KafkaMisuse):
        decode_request(RequestHead(0, 1, 9, None, 0), b"")
    assert versions_of(0, 1).served_from == 3
