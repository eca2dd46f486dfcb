"""What one partition has for another. Items of a stream arrive in order and count once."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

NOTHING = 0
WANTED = 1
BLOCKED = 2


class _Item(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    pass


class Forward(_Item, tag=1):
    """A message for the partition that owns its topic (`ForwardPublish`, `TopicPublish`)."""

    record: bytes


class Deliver(_Item, tag=2):
    """A message for every session of the receiving partition that wants its topic."""

    record: bytes


class Interest(_Item, tag=3):
    """How much the sender's sessions want of a filter from now on.

    NOTHING, or WANTED, or BLOCKED: wanted, by a session whose queue is full (quantumqtt §7.2).
    """

    filter: bytes
    level: int


class WantRetained(_Item, tag=4):
    """A session subscribed: send what is retained now, in order with what comes after."""

    client_id: bytes
    epoch: int
    filter: bytes
    qos: int
    identifier: int


class Targeted(_Item, tag=5):
    """A message for one session: retained, or its turn in a shared subscription."""

    client_id: bytes
    epoch: int
    record: bytes
    qos: int
    retain: bool
    identifier: int
    share: bytes = b""  # the group's name, where losing the message would lose it for the group
    filter: bytes = b""


class Member(_Item, tag=6):
    """A session is in a shared subscription; `qos` is -1 when it left."""

    share: bytes
    filter: bytes
    client_id: bytes
    epoch: int
    qos: int
    identifier: int
    online: bool


class Returned(_Item, tag=7):
    """A message of a shared subscription that its member did not acknowledge."""

    share: bytes
    filter: bytes
    record: bytes


Item: TypeAlias = Forward | Deliver | Interest | WantRetained | Targeted | Member | Returned

_decoder: msgspec.msgpack.Decoder[Item] = msgspec.msgpack.Decoder(Item)
_encoder = msgspec.msgpack.Encoder()


def encode_item(item: Item) -> bytes:
    return _encoder.encode(item)


def decode_item(data: bytes) -> Item:
    """Raises msgspec.DecodeError for other bytes."""
    return _decoder.decode(data)
