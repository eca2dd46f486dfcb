"""A message as every protocol can tell it, and the tag that says in whose bytes it is kept.

A batch of a stream stays in the bytes of the protocol that brought it, behind one byte that names
it: the same protocol reads them untouched, another has them turned into a `Record` once, at the
edge where they are read. Each protocol's room has that one function (`records_of`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec


class RecordProtocol(IntEnum):
    """Who wrote a batch: its first byte."""

    MQTT = 1  # the broker's own records back to back (`quantum.broker.message`)
    KAFKA = 2  # a record batch, version 2
    AMQP = 3  # bare messages, each behind its length


MQTT_RECORDS: Final = bytes((RecordProtocol.MQTT,))


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Who sent a message, and its place among what that sender sent.

    An MQTT client, its session's epoch and the packet id; a Kafka producer's id, epoch and
    sequence; an AMQP container and link, and the delivery's number.
    """

    sender: bytes
    epoch: int
    sequence: int


class Record(msgspec.Struct, frozen=True, gc=False):
    """One message, whatever brought it. `None` is 'was not said', not 'empty'."""

    offset: int
    timestamp_ms: int
    protocol: RecordProtocol
    address: bytes  # MQTT topic, Kafka topic, AMQP `to`
    origin: Origin
    body: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    content_type: bytes | None = None
    reply_to: bytes | None = None
    correlation: bytes | None = None
    expires_at_ms: int | None = None


def protocol_of(batch: bytes | memoryview) -> RecordProtocol:
    """Name the protocol of a batch. Raises ValueError for one that a later build wrote."""
    return RecordProtocol(batch[0])
