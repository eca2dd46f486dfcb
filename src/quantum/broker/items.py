"""What one partition has for another. Items of a stream arrive in order and count once."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from quantum.broker.commands import Count, QosLevel
from quantum.broker.message import Message

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

    message: Message


class Interest(_Item, tag=3):
    """How much the sender's sessions want of a filter from now on.

    NOTHING, or WANTED, or BLOCKED: wanted, by a session whose queue is full (quantumqtt §7.2).
    """

    filter: bytes
    level: Annotated[int, Meta(ge=NOTHING, le=BLOCKED)]


class WantRetained(_Item, tag=4):
    """A session subscribed: send what is retained now, in order with what comes after.

    At most `limit` messages that come after the topic `after`; `MoreRetained` follows if there
    may be others.
    """

    client_id: bytes
    epoch: int
    filter: bytes
    qos: QosLevel
    identifier: Count
    after: bytes = b""
    limit: Count = 1_024


class Targeted(_Item, tag=5):
    """A message for one session: retained, or its turn in a shared subscription."""

    client_id: bytes
    epoch: int
    record: bytes
    qos: QosLevel
    retain: bool
    identifier: Count
    share: bytes = b""  # the group's name, where losing the message would lose it for the group
    filter: bytes = b""


class Member(_Item, tag=6):
    """A session is in a shared subscription; `qos` is -1 when it left.

    `full` says that its queue is: others take its turns.
    """

    share: bytes
    filter: bytes
    client_id: bytes
    epoch: int
    qos: Annotated[int, Meta(ge=-1, le=2)]
    identifier: Count
    online: bool
    full: bool = False


class Returned(_Item, tag=7):
    """A message of a shared subscription that its member did not acknowledge."""

    share: bytes
    filter: bytes
    record: bytes


class MoreRetained(_Item, tag=8):
    """There may be more than the page that was sent: a `WantRetained` brings the next one."""

    client_id: bytes
    epoch: int
    filter: bytes
    qos: QosLevel
    identifier: Count
    after: bytes


class Pressure(_Item, tag=9):
    """Whether a topic's subscribers have no room: no more QoS 2 for it until they have."""

    topic: bytes
    refuse: bool


Item: TypeAlias = (
    Forward
    | Deliver
    | Interest
    | WantRetained
    | Targeted
    | Member
    | Returned
    | MoreRetained
    | Pressure
)

_decoder: msgspec.msgpack.Decoder[Item] = msgspec.msgpack.Decoder(Item)
_encoder = msgspec.msgpack.Encoder()


def encode_item(item: Item) -> bytes:
    return _encoder.encode(item)


def decode_item(data: bytes) -> Item:
    """Raises msgspec.DecodeError for other bytes."""
    return _decoder.decode(data)
