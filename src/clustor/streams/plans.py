"""What a store plans: steps for a disk, and the receipt that it is handed back for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from clustor.log.steps import Plan
from clustor.streams.files import StreamFiles
from clustor.streams.metadata import CompactionMark, SegmentMeta


@dataclass(slots=True)
class StreamReceipt:
    """To be handed back once its plan was carried out whole."""

    number: int
    readable: list[tuple[StreamFiles, tuple[SegmentMeta, ...], int]] = field(default_factory=list)
    """Partitions whose files change, their files then, and below which index memory lets go."""
    compacted: list[tuple[StreamFiles, CompactionMark]] = field(default_factory=list)
    """Partitions whose files are rewritten by then, and how far."""
    durable_raft_index: int | None = None


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Steps for a disk, and the receipt that they earn."""

    steps: Plan
    receipt: StreamReceipt
