"""What one partition has for another. Items of a channel arrive in order and count once."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from quantum.broker.commands import PRGS_MAX, Count, QosLevel, Stamp, SubscriptionSpec, WillSpec
from quantum.broker.message import Message
from quantum.broker.stream_table import StreamSpec
from quantum.broker.types import MACHINE_PACKET_ID_MAX

NOTHING = 0
WANTED = 1
BLOCKED = 2


_PacketId: TypeAlias = Annotated[int, Meta(ge=0, le=0xFFFF)]


class _Item(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    pass


class Forward(_Item, tag=1):
    """A message for the partition that owns its topic (`ForwardPublish`, `TopicPublish`)."""

    record: bytes


class OldDeliver(_Item, tag=2):
    """A `Deliver` as older logs have it."""

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
    prg_count: Count = 0  # the ring in which it was asked; 0: nobody says


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


class MemberItem(_Item, tag=6):
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
    prg_count: Count = 0  # as the `WantRetained` said
    prg: int = -1  # who has more, where the item was passed on to a session that moved


class Pressure(_Item, tag=9):
    """Whether a topic's subscribers have no room: no more QoS 2 for it until they have."""

    topic: bytes
    refuse: bool


class Began(_Item, tag=10):
    """The sender routes by another ring from here on (`REBALANCE.md`)."""

    routing_epoch: Count
    old_count: Count
    prg_count: Count


class Flushed(_Item, tag=11):
    """Nothing that the sender routed by the ring before this epoch's comes any more."""

    routing_epoch: Count


class HandedOver(_Item, tag=12):
    """All that moves from the sender was sent, and all that it said before was heard."""

    routing_epoch: Count


class Settled(_Item, tag=13):
    """A fresh partition said all that its sessions want."""

    routing_epoch: Count


class MovedRetained(_Item, tag=14):
    """Retained messages of topics that the receiver owns now."""

    messages: list[Message]


class MovedSession(_Item, tag=15):
    """A session that the receiver keeps from now on; what it wants and its queue follow."""

    client_id: bytes
    epoch: Count
    expiry_seconds: Count
    attachment: Stamp
    disconnected_at_ms: Stamp
    received: list[_PacketId]  # accepted QoS 2 publishes that are not released
    will: WillSpec | None
    will_due_ms: Stamp
    keeps_queue: bool
    replays: list[tuple[Count, bytes, QosLevel, Count, bytes]]
    window: Count
    next_id: Annotated[int, Meta(ge=1, le=MACHINE_PACKET_ID_MAX)]
    identity: bytes


class MovedSubscriptions(_Item, tag=16):
    client_id: bytes
    specs: list[SubscriptionSpec]


FrozenDelivery: TypeAlias = tuple[Message, int, bool, tuple[int, ...], bytes, bytes, int, int, int]
"""message qos retain identifiers share filter packet_id state drop_at_ms"""


class MovedDeliveries(_Item, tag=17):
    """On its way to that session, in order: in flight first (with packet ids)."""

    client_id: bytes
    deliveries: list[FrozenDelivery]


class StoreFull(_Item, tag=18):
    """Whether the queues of a partition hold all that its tenant may have there."""

    prg: Annotated[int, Meta(ge=0, lt=PRGS_MAX)]
    full: bool


class MovedTurnedAway(_Item, tag=19):
    """Publishers that were refused and cannot be told: their topics may be the receiver's now."""

    clients: list[tuple[bytes, QosLevel, Stamp]]


class Deliver(_Item, tag=20, gc=False):
    """A message for every session of the receiving partition that wants its topic.

    It stays the record of the sender's log: the replicas that only keep it never look inside.
    """

    record: bytes


class StreamDefined(_Item, tag=21):
    """The catalogue has a stream: it begins here with this item."""

    spec: StreamSpec


class StreamDeleted(_Item, tag=22):
    """The catalogue has a stream no more."""

    number: Count


class SectionItem(_Item, tag=23, gc=False):
    """What a section of the machine has for the same section of another partition."""

    family: Annotated[int, Meta(ge=1, le=0x7F)]
    data: bytes


Item: TypeAlias = (
    Forward
    | Deliver
    | Interest
    | WantRetained
    | Targeted
    | MemberItem
    | Returned
    | MoreRetained
    | Pressure
    | Began
    | Flushed
    | HandedOver
    | Settled
    | MovedRetained
    | MovedSession
    | MovedSubscriptions
    | MovedDeliveries
    | StoreFull
    | MovedTurnedAway
    | StreamDefined
    | StreamDeleted
    | SectionItem
)

_decoder: msgspec.msgpack.Decoder[Item | OldDeliver] = msgspec.msgpack.Decoder(Item | OldDeliver)
_encoder = msgspec.msgpack.Encoder()


def encode_item(item: Item) -> bytes:
    return _encoder.encode(item)


def decode_item(data: bytes) -> Item:
    """Raises msgspec.DecodeError for other bytes."""
    item = _decoder.decode(data)
    return Deliver(item.message.record) if isinstance(item, OldDeliver) else item
