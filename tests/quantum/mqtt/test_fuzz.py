"""Whatever bytes come: a packet, or a typed refusal; and what decodes can be sent on."""

from __future__ import annotations

import random

import pytest

from quantum.protocols.mqtt.codec import (
    Direction,
    PacketReader,
    PeerFault,
    ProtocolVersion,
    decode_packet,
    encode_packet,
)
from tests.quantum.mqtt.vectors import BOTH_WAYS, V31

WIRES = [vector.wire for vector in BOTH_WAYS.values()]
TEMPTING = bytes((0, 1, 2, 3, 4, 0x0B, 0x11, 0x16, 0x26, 0x7F, 0x80, 0xC0, 0xED, 0xFF))


def noise(rng: random.Random) -> tuple[int, bytes]:
    return rng.randrange(256), rng.randbytes(rng.randint(0, 60))


def mutation(rng: random.Random) -> tuple[int, bytes]:
    """Damage a good packet: change, cut, repeat or insert a few bytes."""
    wire = rng.choice(WIRES)
    body = bytearray(wire[2:])
    for _ in range(rng.randint(1, 3)):
        position = rng.randint(0, len(body))
        match rng.randrange(4):
            case 0:
                body[position : position + 1] = bytes((rng.choice(TEMPTING),))
            case 1:
                del body[position : position + rng.randint(1, 4)]
            case 2:
                body[position:position] = body[position : position + rng.randint(1, 8)]
            case _:
                body.insert(position, rng.randrange(256))
    return wire[0] ^ (rng.randrange(256) if rng.random() < 0.1 else 0), bytes(body)


def feed(rng: random.Random, inputs: int) -> int:
    """Decode random inputs; return how many were packets. Anything but PeerFault escapes."""
    accepted = 0
    for number in range(inputs):
        first, body = (mutation if number % 4 else noise)(rng)
        version, direction = rng.choice(tuple(ProtocolVersion)), rng.choice(tuple(Direction))
        try:
            packet = decode_packet(first, body, version, direction=direction)
        except PeerFault:
            continue
        accepted += 1
        spoken = getattr(packet, "version", version)
        if spoken is not V31:
            reader = PacketReader(1 << 20)
            reader.receive(encode_packet(packet, spoken))
            found = reader.next_packet()
            assert found is not None
            assert decode_packet(*found, spoken, direction=direction) == packet
    return accepted


@pytest.mark.parametrize("seed", range(10))
def test_random_bytes_are_packets_or_typed_refusals(seed: int) -> None:
    accepted = feed(random.Random(seed), 2_000)
    assert accepted > 50, "the mutations should leave some packets whole"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_a_million_random_bytes_are_packets_or_typed_refusals(seed: int) -> None:
    assert feed(random.Random(seed), 50_000) > 1_000


@pytest.mark.parametrize("seed", range(10))
def test_random_streams_end_in_a_typed_refusal_or_wait(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        reader = PacketReader(200)
        reader.receive(rng.randbytes(300))
        try:
            while reader.next_packet() is not None:
                pass
        except PeerFault:
            pass
        assert reader.buffered_bytes <= 300
