"""The sizes a segmented log is run with."""

from __future__ import annotations

from dataclasses import dataclass

from clustor.segmented.errors import SegmentedMisuse
from clustor.segmented.runs import RUN_BYTES_MAX


@dataclass(frozen=True, slots=True)
class SegmentedConfig:
    """Sizes. Tests and small machines use less."""

    segment_bytes: int = 256 << 20  # a partition file is closed before it grows over this
    run_bytes: int = 256 << 10  # what is sealed, and read, at once; one batch may be longer
    index_interval_bytes: int = 256 << 10  # one row of the sparse index for so many bytes
    metadata_rewrite_bytes: int = 8 << 20
    ack_runs_max: int = 4096  # of one partition; out-of-order acks beyond that are asked again
    compaction_keys_max: int = 1_000_000  # keys that one compaction holds in memory
    compaction_chunk_bytes: int = 4 << 20  # what one step of a compaction writes

    def __post_init__(self) -> None:
        if self.segment_bytes < 256 or not 64 <= self.run_bytes <= RUN_BYTES_MAX:
            raise SegmentedMisuse(
                "a file has at least 256 bytes, a run 64, and no more than a reader takes",
                segment_bytes=self.segment_bytes,
                run_bytes=self.run_bytes,
                run_bytes_max=RUN_BYTES_MAX,
            )
