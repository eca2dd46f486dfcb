"""What nodes say to each other about a replica that is being repaired."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from clustor.log.types import LogIndex, Term
from clustor.raft.types import ReplicaId, RoutingEpoch
from clustor.replica import VoteStanding


class StandingAsked(msgspec.Struct, frozen=True, tag="asked", array_like=True):
    """How does this group stand with you?"""

    partition_id: int
    round: int


class StandingTold(msgspec.Struct, frozen=True, tag="told", array_like=True):
    """The answer of a replica that lacks nothing it ever said."""

    partition_id: int
    round: int
    term: int
    leads: bool
    settled: bool
    proven: bool
    routing_epoch: int
    commit_index: int
    voters: list[int]
    others: list[int]

    @classmethod
    def of(cls, partition_id: int, round_number: int, standing: VoteStanding) -> StandingTold:
        return cls(
            partition_id,
            round_number,
            standing.term,
            standing.leads,
            standing.settled,
            standing.proven,
            standing.routing_epoch,
            standing.commit_index,
            sorted(standing.voters),
            sorted(standing.others),
        )

    def standing(self) -> VoteStanding:
        return VoteStanding(
            Term(self.term),
            self.leads,
            self.settled,
            self.proven,
            RoutingEpoch(self.routing_epoch),
            LogIndex(self.commit_index),
            frozenset(map(ReplicaId, self.voters)),
            frozenset(map(ReplicaId, self.others)),
        )


class Readmit(msgspec.Struct, frozen=True, tag="readmit", array_like=True):
    """Remove me from this group, or take me in again: you lead it.

    `routing_epoch` is the group's as the answer was that this follows from: one that comes late,
    after another change, must not undo it.
    """

    partition_id: int
    kind: Literal["add", "remove"]
    routing_epoch: int


RepairMessage: TypeAlias = StandingAsked | StandingTold | Readmit

_decoder: msgspec.msgpack.Decoder[RepairMessage] = msgspec.msgpack.Decoder(RepairMessage)


def encode_repair(message: RepairMessage) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_repair(data: bytes) -> RepairMessage:
    """Read a message; raises msgspec.DecodeError."""
    return _decoder.decode(data)
