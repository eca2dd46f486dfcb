"""The reply to publishes: nothing when all were taken, else which were not, and why."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

Refusals: TypeAlias = "list[tuple[int, int]]"
"""(number of the record in its command, MQTT 5 reason code)."""

NOT_COUNTED: Final = b"\xc0"
"""Nothing is known of the records: send them again behind what was answered, acknowledge none."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[tuple[int, int]] | None] = msgspec.msgpack.Decoder(
    list[tuple[int, int]] | None
)


def encode_refusals(refused: Refusals) -> bytes:
    return _encoder.encode(refused) if refused else b""


def decode_refusals(reply: bytes) -> Refusals | None:
    """Return which records a reply refuses, or None where nothing may be acknowledged."""
    return _decoder.decode(reply) if reply else []
