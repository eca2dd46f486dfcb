"""Transactions over several partitions that this one has promised a part of, and their words.

Whatever is here can count and does not yet. One partition coordinates: it has its own part first,
and decides. What it decided goes to the others by the channels, in order and once; so it keeps no
decision, and of a transaction that it does not know it can say that it was rolled back: had it been
committed, that word would be before this one on the same channel.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from quantum.broker.queues.commands import Settlement
from quantum.broker.queues.queue import QueueEntry

PREPARED_MAX: Final = 4_096
"""Parts of transactions in one partition that are not decided."""
DECIDED_MS_MAX: Final = 60_000
"""By the log's clock: a coordinator rolls back what it has not heard the end of by then, and the
other partitions ask it."""


class PreparedPart(msgspec.Struct, array_like=True):
    """This partition's part of one transaction; queues by their number."""

    coordinator: int
    due_ms: int
    others: list[int]
    """The partitions with the other parts; where this one coordinates."""
    staged: list[tuple[int, list[QueueEntry]]]
    settles: list[tuple[int, list[Settlement]]]


class PartDecided(msgspec.Struct, array_like=True, tag=21, forbid_unknown_fields=True):
    """The coordinator's word: a transaction counts, or does not."""

    transaction: bytes
    commit: bool


class DecisionAsked(msgspec.Struct, array_like=True, tag=22, forbid_unknown_fields=True):
    """A partition has heard nothing of a transaction for too long."""

    transaction: bytes


QueueItem: TypeAlias = PartDecided | DecisionAsked
encode_queue_item = msgspec.msgpack.Encoder().encode
_items: Final[msgspec.msgpack.Decoder[QueueItem]] = msgspec.msgpack.Decoder(QueueItem)


def decode_queue_item(data: bytes) -> QueueItem | None:
    """Decode an item; None for bytes that are none."""
    try:
        return _items.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
