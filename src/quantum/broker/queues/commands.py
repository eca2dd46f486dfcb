"""What may be asked of the queues of a partition, and how it stands in the log.

A command is the head of every section (`SECTION_HEAD`), then one msgpack array. All that a node
has for a partition in one turn is one `Enqueue`, numbered in the node's own **lane**: a command
that comes twice counts once, and one that comes behind a gap counts not at all, so that whoever
does not know what became of it sends it again without harm.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

from quantum.broker.commands import Amount, Count, Stamp
from quantum.broker.sections import SECTION_HEAD

QUEUE_FAMILY: Final = 2
NAME_BYTES_MAX: Final = 512
PRIORITY_DEFAULT: Final = 4
DELIVERIES_MAX: Final = 10
MESSAGES_MAX: Final = 1_000_000
BYTES_MAX: Final = 8 << 30


class QueueRefusal(IntEnum):
    """Why something was not done."""

    NONE = 0
    NO_QUEUE = 1
    FULL = 2
    NOT_PLACED_HERE = 3
    TOO_MANY = 4
    GAP = 5
    BAD_NAME = 6
    IN_USE = 7
    FENCED = 9  # the link has come back elsewhere
    OVER_LIMIT = 8  # the tenant's, not the queue's own
    NO_TRANSACTION = 20  # it was rolled back, by its time or by another word
    BUSY = 21  # a partition of a transaction hears nothing now


class SettlementKind(IntEnum):
    """What a receiver said of a message."""

    ACCEPTED = 0
    REJECTED = 1
    RELEASED = 2
    FAILED = 3  # modified, with delivery-failed
    CHANGED = 4  # modified, without


class QueueSpec(msgspec.Struct, array_like=True, frozen=True):
    """What a queue is like; its bounds are the tenant's to choose."""

    name: bytes
    messages_max: Count = MESSAGES_MAX
    bytes_max: Amount = BYTES_MAX
    deliveries_max: Count = DELIVERIES_MAX
    """So many deliveries may fail before a message is a dead letter; 0: any number."""
    ttl_ms: Stamp = 0
    """For how long a message that says nothing else is kept; 0: for ever."""
    keeps_expired: bool = False
    """Whether what expires becomes a dead letter; else it is dropped."""
    is_dynamic: bool = False
    """Whether it was made for one link, and ends with it."""


class NewMessage(msgspec.Struct, array_like=True, gc=False):
    """A message to be queued."""

    payload: bytes
    priority: int = PRIORITY_DEFAULT
    ttl_ms: Stamp = 0
    expires_ms: Stamp = 0
    group: bytes = b""
    sender: bytes = b""
    link: bytes = b""
    """The durable end that it came by; empty: none."""
    tag: bytes = b""
    epoch: bytes = b""
    """Which life of that end it is of (`OpenTerminus`)."""


class Settlement(msgspec.Struct, array_like=True, gc=False):
    """What became of one message at a receiver."""

    number: int
    kind: SettlementKind
    reason: bytes = b""
    annotations: list[tuple[bytes, bytes]] = []
    """Keys and values in AMQP's own bytes; they take the place of those of the same key."""
    elsewhere: bool = False
    """Whether its receiver cannot have it again: the leader's to remember."""


class DefineQueue(msgspec.Struct, array_like=True, tag=1):
    """Make a queue; `keeps`: one that is there stays as it is."""

    spec: QueueSpec
    keeps: bool = False


class DeleteQueue(msgspec.Struct, array_like=True, tag=2):
    """End a queue with all that it holds."""

    name: bytes
    if_empty: bool = False


class Enqueue(msgspec.Struct, array_like=True, tag=3):
    """All that a node brings in one turn: messages for queues, and what was settled with them.

    Both or neither count: a transaction in one partition is one of these.
    """

    lane: bytes
    sequence: Count
    batches: list[tuple[bytes, list[NewMessage]]]
    settles: list[tuple[bytes, list[Settlement]]] = []
    is_whole: bool = False
    """Whether one refusal refuses everything."""


class SettleMessages(msgspec.Struct, array_like=True, tag=4):
    """What receivers said in one turn."""

    batches: list[tuple[bytes, list[Settlement]]]


class PurgeQueue(msgspec.Struct, array_like=True, tag=5):
    """Drop all messages, or all dead letters."""

    name: bytes
    dead: bool = False


class ReviveMessages(msgspec.Struct, array_like=True, tag=6):
    """Let dead letters be messages of the queue again; no numbers: so many, the oldest first."""

    name: bytes
    numbers: list[int]
    count_max: Count = 1_000


class CarryMessages(msgspec.Struct, array_like=True, tag=7):
    """Let bodies stand at the end of the queue's file: what is before them is let go of.

    Each is a number, the place where its body stands, and the body. What stands elsewhere by now,
    or is gone, is left alone: the same command again changes nothing.
    """

    name: bytes
    bodies: list[tuple[int, int, bytes]]


class OpenTerminus(msgspec.Struct, array_like=True, tag=8):
    """Let the durable end of a link come back, in the place of an earlier one of its name.

    A sender says the tags that it does not know to be settled. A receiver says what it decided of
    what it holds; what it holds and says nothing of has failed, and is given again.
    """

    link: bytes
    queue: bytes
    epoch: bytes
    """Drawn by who opens: the same again changes nothing, another one fences what came before."""
    tags: list[bytes] = []
    settles: list[Settlement] = []


class CloseTerminus(msgspec.Struct, array_like=True, tag=9):
    """End the durable end of a link; what it holds is given again."""

    link: bytes


class AcquireMessages(msgspec.Struct, array_like=True, tag=10):
    """Let a durable receiver hold messages, whoever leads: nobody else is given them."""

    link: bytes
    name: bytes
    numbers: list[int]


class PrepareTransaction(msgspec.Struct, array_like=True, tag=21):
    """Promise this partition's part of a transaction: it can count, and does not yet.

    The coordinator's own part is prepared first, and names all others: what they ask it about
    later, and what it does not know, was rolled back.
    """

    lane: bytes
    sequence: Count
    transaction: bytes
    """Drawn by who asks, and never again."""
    coordinator: Count
    """The partition that decides: one of those with a part."""
    others: list[Count]
    """The partitions with the other parts; where this one decides."""
    batches: list[tuple[bytes, list[NewMessage]]]
    settles: list[tuple[bytes, bytes, list[Settlement]]] = []
    """By queue, and by the durable receiver that holds the messages; empty: one that is not."""


class DecideTransaction(msgspec.Struct, array_like=True, tag=22):
    """Let a transaction count, or not: the coordinator's word, which all partitions follow."""

    lane: bytes
    sequence: Count
    transaction: bytes
    commit: bool


LaneCommand: TypeAlias = Enqueue | PrepareTransaction | DecideTransaction
"""What is numbered in a lane; each is answered with an `EnqueueReply`."""
QueueCommand: TypeAlias = (
    DefineQueue
    | DeleteQueue
    | Enqueue
    | SettleMessages
    | PurgeQueue
    | ReviveMessages
    | CarryMessages
    | OpenTerminus
    | CloseTerminus
    | AcquireMessages
    | PrepareTransaction
    | DecideTransaction
)


class QueueReply(msgspec.Struct, array_like=True, gc=False):
    """What came of any command that is in no lane: `done` counts what it says."""

    refusal: QueueRefusal = QueueRefusal.NONE
    done: int = 0
    tags: list[bytes] = []
    """Of an OpenTerminus: which of the sender's were taken."""


class EnqueueReply(msgspec.Struct, array_like=True, gc=False):
    """What came of a command in a lane: all was taken but those refused, by batch and place."""

    refusal: QueueRefusal = QueueRefusal.NONE
    refused: list[tuple[int, int, QueueRefusal]] = []


_encode = msgspec.msgpack.Encoder().encode
decode_queue_command = msgspec.msgpack.Decoder(QueueCommand).decode
decode_queue_reply = msgspec.msgpack.Decoder(QueueReply).decode
decode_enqueue_reply = msgspec.msgpack.Decoder(EnqueueReply).decode


def encode_queue_command(now_ms: int, command: QueueCommand) -> bytes:
    """Write a command with its head."""
    return SECTION_HEAD.pack(QUEUE_FAMILY, now_ms) + _encode(command)


def encode_queue_reply(reply: QueueReply | EnqueueReply) -> bytes:
    return _encode(reply)


def place_key(name: bytes) -> bytes:
    """Return what a queue is placed by: its address."""
    return b"/queues/" + name
