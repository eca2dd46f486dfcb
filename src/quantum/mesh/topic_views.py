"""What a node shows of a tenant's topics: values to read, taken from its replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from quantum.broker.streams import StreamRefusal
from quantum.model.records import RecordProtocol


class TopicKind(StrEnum):
    """A topic of its own, or a capture of MQTT publishes that is shown as one."""

    TOPIC = "topic"
    CAPTURE = "capture"


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic. `prgs[p]` is the PRG that partition p lives in."""

    number: int
    name: str
    uuid: bytes
    kind: TopicKind
    prgs: tuple[int, ...]
    configs: Mapping[str, str]
    """What was said; what was not is in `quantum.broker.streams.topic_configs.DEFAULTS`."""
    created_ms: int

    @property
    def partitions(self) -> int:
        return len(self.prgs)


@dataclass(frozen=True, slots=True)
class PrgLeader:
    """Who leads a PRG, as far as this node knows."""

    node: int | None
    epoch: int
    """The raft term: the leader epoch of Kafka."""
    is_here: bool
    """Whether this node leads it and serves it."""
    closed: str = ""
    """Why nothing may be written now though it leads; empty: it may."""


LeaderView: TypeAlias = PrgLeader
"""As adapters say it."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition as this node's replica has applied it."""

    start: int
    high_watermark: int
    """The end of what is applied: all of it is durable on a quorum."""
    last_stable: int
    """Below this every transaction has ended."""
    leader_epoch: int
    max_timestamp_ms: int
    """-1: nothing was ever appended."""
    max_timestamp_offset: int
    """The first offset of the batch that has it."""


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """A stored batch, untouched. `data` is without the byte that names its protocol."""

    protocol: RecordProtocol
    base_offset: int
    count: int
    timestamp_ms: int
    """The newest time in it."""
    data: memoryview


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """Whole batches from the one that holds the offset; none where it is the next to come."""

    batches: list[FetchedBatch] = field(default_factory=list)
    start: int = 0
    high_watermark: int = 0
    last_stable: int = 0
    refusal: StreamRefusal | None = None
    """TOPIC_UNKNOWN, NOT_LEADER (no replica here), OFFSET_OUT_OF_RANGE, or BUSY: come again."""


@dataclass(frozen=True, slots=True)
class TimeOutcome:
    """The first batch that is as new as the time; None where none is."""

    batch: FetchedBatch | None = None
    refusal: StreamRefusal | None = None
