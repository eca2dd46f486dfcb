"""How messages of queues stand in a batch of a stream: behind the tag, each behind its length."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from quantum.model.records import RecordProtocol

AMQP_RECORDS: Final = bytes((RecordProtocol.AMQP,))
_LENGTH: Final = struct.Struct("<I")


def join_messages(payloads: Iterable[bytes]) -> bytes:
    """Make a batch of messages."""
    pieces = [AMQP_RECORDS]
    for payload in payloads:
        pieces += (_LENGTH.pack(len(payload)), payload)
    return b"".join(pieces)


def messages_in(batch: bytes | memoryview) -> list[bytes]:
    """Take a batch apart. Raises ValueError for bytes that are no such batch."""
    if bytes(batch[:1]) != AMQP_RECORDS:
        raise ValueError("a batch of another protocol")
    found, at, end = [], 1, len(batch)
    while at < end:
        if at + _LENGTH.size > end:
            raise ValueError("a batch ends inside a length")
        size = _LENGTH.unpack_from(batch, at)[0]
        at += _LENGTH.size
        if at + size > end:
            raise ValueError("a batch ends inside a message")
        found.append(bytes(batch[at : at + size]))
        at += size
    return found
