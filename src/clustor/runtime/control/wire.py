"""What the control services of two nodes say to each other; local requests go the same way.

A question has a number of its sender's. Its answer carries the number back; an answer that
nobody waits for any more is dropped.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

from clustor.control import Caller
from clustor.control.publisher import ProofBatch
from clustor.log.types import (
    DurabilityModeEpoch,
    IoWriterMode,
    LogIndex,
    PartitionId,
    SegmentSeq,
    Term,
)
from clustor.raft.types import DurabilityTuple


class Passed(msgspec.Struct, array_like=True, frozen=True, tag=1, gc=False):
    """A call for the control plane's leader; `command` is its JSON."""

    number: int
    caller: Caller
    request_id: str
    command: bytes


class Wished(msgspec.Struct, array_like=True, frozen=True, tag=2, gc=False):
    """A node's proofs to be published: the leader stamps and signs them."""

    number: int
    request_id: str
    wishes: list[tuple[int, int, int, int, int, int]]


class NewestAsked(msgspec.Struct, array_like=True, frozen=True, tag=3, gc=False):
    """How new is the newest? What was confirmed within `age_ms_max` will do."""

    number: int
    age_ms_max: int


class AnswerStatus(IntEnum):
    """What became of a question. Numbers are on the wire: never reuse one."""

    ANSWERED = 1
    NOT_LEADER = 2  # nothing happened
    UNSETTLED = 3  # it may happen yet: ask again under the same request id
    BUSY = 4  # nothing happened; later


class Answered(msgspec.Struct, array_like=True, frozen=True, tag=4, gc=False):
    """The answer to a call or to wishes: bytes of an `Answer` where there is one."""

    number: int
    standing: AnswerStatus
    body: bytes = b""


class Confirmed(msgspec.Struct, array_like=True, frozen=True, tag=5, gc=False):
    """Whoever has this revision had everything, `age_ms` before it asked."""

    number: int
    revision: int
    age_ms: int


Question: TypeAlias = Passed | Wished | NewestAsked
Reply: TypeAlias = Answered | Confirmed
Message: TypeAlias = Question | Reply

_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_MODES = frozenset(map(int, IoWriterMode))
encode_message = msgspec.msgpack.encode


def decode_message(encoded: bytes) -> Message:
    """Read a message; raises msgspec.DecodeError, also for a writer mode that is none."""
    message = _decoder.decode(encoded)
    if isinstance(message, Wished) and not _MODES.issuperset(wish[4] for wish in message.wishes):
        raise msgspec.DecodeError("no such writer mode")
    return message


def wished(number: int, batch: ProofBatch) -> Wished:
    """Put a batch into a message."""
    return Wished(
        number,
        batch.request_id,
        [
            (
                partition_id,
                proven.term,
                proven.index,
                proven.segment_seq,
                proven.io_writer_mode,
                proven.durability_mode_epoch,
            )
            for partition_id, proven in batch.wishes
        ],
    )


def batch_of(message: Wished, node_id: int) -> ProofBatch:
    """Take a batch out of a message, as its sender's own."""
    wishes = tuple(
        (
            PartitionId(partition_id),
            DurabilityTuple(
                Term(term),
                LogIndex(index),
                SegmentSeq(segment),
                IoWriterMode(mode),
                DurabilityModeEpoch(epoch),
            ),
        )
        for partition_id, term, index, segment, mode, epoch in message.wishes
    )
    return ProofBatch(message.request_id, node_id, wishes)
