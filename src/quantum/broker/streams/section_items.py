"""What streams of one PRG have for those of another: each item arrives in order and counts once."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from quantum.broker.streams.topics import TopicSpec
from quantum.broker.streams.types import Amount, Epoch, Name


class _StreamItem(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    pass


class TopicDefined(_StreamItem, tag=0):
    """The catalogue has a topic, or has it otherwise than before."""

    spec: TopicSpec


class TopicEnded(_StreamItem, tag=1):
    """The catalogue has a topic no more."""

    number: Amount


class TransactionOpened(_StreamItem, tag=2):
    """Batches or offsets of a transaction may come: for a partition of a topic, or for a group."""

    producer_id: Amount
    epoch: Epoch
    topic: Name
    partition: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    group: Name | None = None


class TransactionEnded(_StreamItem, tag=3):
    """How a transaction ended; `transactional_id` goes back with the answer."""

    transactional_id: Name
    producer_id: Amount
    epoch: Epoch
    commit: bool
    topic: Name
    partition: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    group: Name | None = None


class EndNoted(_StreamItem, tag=4):
    """The answer: the end is in the log of the partition, or of the group."""

    transactional_id: Name
    producer_id: Amount
    epoch: Epoch
    topic: Name
    partition: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    group: Name | None = None


StreamItem = TopicDefined | TopicEnded | TransactionOpened | TransactionEnded | EndNoted
_DECODER: Final[msgspec.msgpack.Decoder[StreamItem]] = msgspec.msgpack.Decoder(StreamItem)
_ENCODER: Final = msgspec.msgpack.Encoder()


def encode_stream_item(item: StreamItem) -> bytes:
    return _ENCODER.encode(item)


def decode_stream_item(data: bytes) -> StreamItem | None:
    """Decode an item; None for bytes that are none."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return None
