"""What is written into the log for a transaction coordinator, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import msgspec

from quantum.broker.streams.coding import CoordinationCommand, decode_command
from quantum.broker.streams.types import (
    Amount,
    Epoch,
    Name,
    Stamp,
    StreamRefusal,
    TopicPartition,
)

UNKNOWN: Final = -1


class InitProducer(CoordinationCommand, tag=0):
    """Give a producer its id; with a transactional id, fence whoever had it before.

    `producer_id` and `epoch` are what the client had, or -1: who still has the newest epoch may go
    on after an error (KIP-360), anybody else with one is fenced.
    """

    now_ms: Stamp
    transactional_id: Name | None
    timeout_ms: Amount
    producer_id: int = UNKNOWN
    epoch: int = UNKNOWN


class AddToTransaction(CoordinationCommand, tag=1):
    """Begin a transaction, or bring partitions and groups into it."""

    now_ms: Stamp
    transactional_id: Name
    producer_id: Amount
    epoch: Epoch
    partitions: tuple[TopicPartition, ...] = ()
    groups: tuple[Name, ...] = ()


class EndTransaction(CoordinationCommand, tag=2):
    """Decide a transaction. `bump` where the client can be told a new epoch (EndTxn 5, KIP-890)."""

    now_ms: Stamp
    transactional_id: Name
    producer_id: Amount
    epoch: Epoch
    commit: bool
    bump: bool = True


class EndArrived(CoordinationCommand, tag=3):
    """A partition or a group has written its marker of this epoch."""

    now_ms: Stamp
    transactional_id: Name
    producer_id: Amount
    epoch: Epoch
    partition: TopicPartition | None = None
    group: Name | None = None


class ExpireTransactions(CoordinationCommand, tag=4):
    """Abort what is open for too long, and forget ids that nobody used for long."""

    now_ms: Stamp


TransactionCommand = (
    InitProducer | AddToTransaction | EndTransaction | EndArrived | ExpireTransactions
)
_DECODER: Final[msgspec.msgpack.Decoder[TransactionCommand]] = msgspec.msgpack.Decoder(
    TransactionCommand
)


def decode_transaction_command(data: bytes) -> TransactionCommand:
    """Decode a committed command. Raises CommandUnreadable."""
    return decode_command(_DECODER, data)


class TransactionState(IntEnum):
    """Where a transaction stands; PREPARE is decided, and its markers are on their way."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


@dataclass(slots=True, frozen=True)
class ProducerGiven:
    """Who the producer is from now on."""

    producer_id: int
    epoch: int


@dataclass(slots=True, frozen=True)
class TransactionAdmission:
    """To be sent to a partition or a group: batches and offsets of this epoch may come."""

    transactional_id: str
    producer_id: int
    epoch: int
    partition: TopicPartition | None = None
    group: str | None = None


@dataclass(slots=True, frozen=True)
class EndMarker:
    """To be sent to a partition or a group: how the transaction ended."""

    transactional_id: str
    producer_id: int
    epoch: int
    commit: bool
    partition: TopicPartition | None = None
    group: str | None = None


@dataclass(slots=True, frozen=True)
class TransactionResult:
    """What the client is told, and what goes to others through the exactly-once channels."""

    answer: ProducerGiven | StreamRefusal | None = None
    admissions: tuple[TransactionAdmission, ...] = ()
    markers: tuple[EndMarker, ...] = ()
