"""The words of streams: who produces, where, and why something was refused."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, NewType, TypeAlias

from msgspec import Meta

ProducerId = NewType("ProducerId", int)
"""prg << 48 | n: no two partitions of a ring give the same, and none asks another."""
ProducerEpoch = NewType("ProducerEpoch", int)

Stamp: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
Amount: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Sequence: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Epoch: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 15) - 1)]
Name: TypeAlias = Annotated[str, Meta(max_length=32_767)]
# The bounds hold for what is decoded: no committed bytes bring numbers that cannot be kept.

EPOCH_MAX: Final = (1 << 15) - 1
SEQUENCE_MAX: Final = (1 << 31) - 1
PRODUCER_BITS: Final = 48

TopicPartition: TypeAlias = tuple[str, int]


class StreamRefusal(StrEnum):
    """Why a command changed nothing; each protocol has one table from these to its own codes."""

    OUT_OF_ORDER_SEQUENCE = "the batch does not follow the producer's last one"
    STALE_EPOCH = "the producer's epoch is older than the one known here"
    TRANSACTION_NOT_OPEN = "no transaction of this producer and epoch is open here"
    WRONG_TRANSACTION_STATE = "the transaction is not in a state for this"
    FENCED = "another instance of this producer has taken over"
    UNKNOWN_PRODUCER = "this producer id does not belong to this transactional id"
    TRANSACTION_ENDING = "the last transaction is still being ended; ask again"
    BAD_TIMEOUT = "the transaction's time-out is beyond the bound"
    UNKNOWN_MEMBER = "the group does not know this member"
    STALE_GENERATION = "the group has a newer generation"
    REBALANCING = "the group is rebalancing; join again"
    INCONSISTENT_PROTOCOL = "the member shares no protocol with the group"
    MEMBER_ID_REQUIRED = "join again with the member id of this answer"
    FENCED_INSTANCE = "another member has taken this instance id"
    GROUP_FULL = "the group has as many members as it may have"
    GROUP_NOT_EMPTY = "the group still has members"
    GROUP_UNKNOWN = "there is no such group"
    METADATA_TOO_LARGE = "the metadata of an offset is too large"
    SUBSCRIBED = "the group is subscribed to the topic"
    STALE_MEMBER_EPOCH = "the member's epoch is not the one that the group knows"
    UNSTABLE_OFFSETS = "a transaction has offsets of this partition in hand"
    UNRELEASED_INSTANCE = "the instance id still belongs to a member that is there"
    UNKNOWN_ASSIGNOR = "no such assignor on this server"
    WRONG_GROUP_KIND = "the group speaks the other protocol"
    TOPIC_UNKNOWN = "there is no such topic, or it has no such partition here"
    TOPIC_EXISTS = "there is a topic of this name"
    BAD_TOPIC_NAME = "no name, or no id, that a topic can have"
    BAD_PARTITIONS = "a topic cannot have so many partitions"
    TOO_MANY_PARTITIONS = "the tenant has as many topics or partitions as it may have"
    BAD_CONFIG = "a config that is not known, or has a value that it cannot have"
    BAD_BATCH = "no batch that could be kept"
    BUSY = "another partition is gone or far behind; ask again"
    NOT_COORDINATOR = "another partition coordinates this"
    OFFSET_OUT_OF_RANGE = "the partition does not reach there, or not any more"
    NOT_LEADER = "another node leads this partition, or none that is known"
