"""Whatever bytes come: a request, or a typed refusal, within bounds of time and memory."""

from __future__ import annotations

import random
import struct

import pytest

from quantum.protocols.kafka.codec import (
    ApiKey,
    BatchRefused,
    KafkaRequestReader,
    RequestFault,
    check_produced,
    decode_request,
    is_foreign_api_versions,
    iterate_records,
    read_head,
    scan_produce,
)
from quantum.protocols.kafka.codec.record_batch import CRC_AT, HEADER_BYTES, crc_of
from tests.quantum.kafka import golden

REAL = golden.requests()
TEMPTING = (b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff", b"\xff" * 5)
LENGTHS = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\x80\x00\x00\x00",
    b"\xfe\xff\xff\xff\x0f",
)
RECORDS_MAX = 1 << 20


def mutated(rng: random.Random, request: bytes) -> bytes:
    """Damage a request: change, cut, repeat, insert, or put an impossible length."""
    body = bytearray(request)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        position = rng.randint(0, len(body)) if rng.random() < 0.8 else rng.randint(0, 12)
        match rng.randrange(6):
            case 0:
                body[position : position + 1] = rng.choice(TEMPTING)
            case 1:
                del body[position : position + rng.randint(1, 6)]
            case 2:
                body[position:position] = body[position : position + rng.randint(1, 30)]
            case 3:
                piece = rng.choice(LENGTHS)
                body[position : position + len(piece)] = piece
            case 4:
                body[2:4] = rng.randrange(16).to_bytes(2, "big")  # another version
            case _:
                body[position : position + 1] = rng.randbytes(1)
    return bytes(body)


def look_inside(batch: memoryview, api_version: int, rng: random.Random) -> None:
    """Check a batch as it came, and once more with a checksum that is made to fit."""
    try:
        check_produced(batch, api_version=api_version)
    except BatchRefused:
        if len(batch) < HEADER_BYTES:
            return
    forged = bytearray(batch)
    if rng.random() < 0.5:
        forged[rng.randrange(len(forged))] ^= 1 << rng.randrange(8)
    struct.pack_into(">I", forged, CRC_AT, crc_of(forged))
    try:
        check_produced(memoryview(forged), api_version=api_version)
        list(iterate_records(bytes(forged), bytes_max=RECORDS_MAX))
    except BatchRefused:
        return


def read(request: bytes, rng: random.Random) -> str:
    """Read one request as a connection does; say what it was. Only typed refusals are caught."""
    reader = KafkaRequestReader(admitted=True, produce_bytes_max=1 << 20, control_bytes_max=1 << 16)
    length = len(request) if rng.random() < 0.95 else rng.getrandbits(32)
    reader.receive((length & 0xFFFFFFFF).to_bytes(4, "big"))
    reader.receive(request)
    try:
        whole = reader.next_request()
        if whole is None:
            return "waits"
        head = read_head(whole)
        if is_foreign_api_versions(head.api_key, head.api_version):
            return "foreign"
        if head.api_key == ApiKey.PRODUCE:
            *_, rows = scan_produce(whole, head.body_start, head.api_version)
            for _, _, start, end in rows:
                if start >= 0:
                    look_inside(memoryview(whole)[start:end], head.api_version, rng)
        else:
            decode_request(head, whole)
    except RequestFault as fault:
        return type(fault).__name__
    return "read"


def feed(seed: int, count: int) -> dict[str, int]:
    rng = random.Random(seed)
    outcomes: dict[str, int] = {}
    for _ in range(count):
        outcome = read(mutated(rng, rng.choice(REAL)), rng)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return outcomes


def test_the_real_ones_are_read() -> None:
    rng = random.Random(1)
    assert len(REAL) > 60
    for request in REAL:
        reader = KafkaRequestReader(admitted=True)
        reader.receive(len(request).to_bytes(4, "big") + request)
        assert reader.next_request() == request
        rng.seed(4)  # a length that is right
        assert read(request, rng) == "read"


@pytest.mark.parametrize("seed", range(5))
def test_mutated_real_requests_are_read_or_refused(seed: int) -> None:
    outcomes = feed(seed, 1_000)
    print(f"seed {seed}: {outcomes}")
    assert outcomes["read"] > 100, "the mutations should leave some requests whole"
    assert outcomes["MalformedRequest"] > 100
    assert outcomes["UnsupportedRequest"] > 10


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 150))
def test_half_a_million_mutated_requests_are_read_or_refused(seed: int) -> None:
    outcomes = feed(seed, 10_000)
    print(f"seed {seed}: {outcomes}")
    assert outcomes["read"] > 1_000
