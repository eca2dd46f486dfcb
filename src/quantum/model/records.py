"""A message as every protocol can tell it, and the tag that says in whose bytes it is kept.

A batch of a stream stays in the bytes of the protocol that brought it, behind one byte that names
it: the same protocol reads them untouched, another has them turned into a `Record` once, at the
edge where they are read. Each protocol's room has that one function (`records_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, Protocol, TypeAlias

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


def producer_mark(producer_id: int) -> bytes:
    """Name a Kafka producer as a sender of records; empty: it has no id."""
    return b"" if producer_id < 0 else producer_id.to_bytes(8, "big")


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


RecordReader: TypeAlias = Callable[[bytes, int, int], Iterator[Record]]
"""Walks a batch of one protocol, its tag in front: the bytes, the first offset, the time.

Raises ValueError for bytes that are none of its batches, at any record.
"""
RecordReaders: TypeAlias = Mapping[RecordProtocol, RecordReader]
"""Given to adapters by the node: no protocol knows another one."""


class RecordWriter(Protocol):
    """Puts records into the form that a topic keeps; given to adapters by the node."""

    def key_partition(self, key: bytes, partitions: int) -> int:
        """Return the partition that messages of a key go to."""
        ...

    def join_records(
        self,
        records: Sequence[Record],
        producer_id: int,
        epoch: int,
        first_sequence: int,
        *,
        is_append_time: bool,
    ) -> bytes:
        """Make one batch of records, without its tag. Offsets are counted from 0.

        `is_append_time`: every record has the time of the newest one.
        """
        ...


def protocol_of(batch: bytes | memoryview) -> RecordProtocol:
    """Name the protocol of a batch. Raises ValueError for one that a later build wrote."""
    return RecordProtocol(batch[0])
