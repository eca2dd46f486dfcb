"""The sizes that streams are run with."""

from __future__ import annotations

from dataclasses import dataclass

from clustor.streams.errors import StreamMisuse
from clustor.streams.runs import RUN_BYTES_MAX


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """Sizes. Tests and small machines use less."""

    segment_bytes: int = 256 << 20  # a partition file is closed before it grows over this
    run_bytes: int = 256 << 10  # what is sealed, and read, at once; one batch may be longer
    index_interval_bytes: int = 256 << 10  # one row of the sparse index for so many bytes
    metadata_rewrite_bytes: int = 8 << 20
    flush_bytes: int = 4 << 20  # what waits in memory before it is written
    checkpoint_bytes: int = 64 << 20  # what was written before it is made durable
    checkpoint_ms: int = 10_000  # after so long it is made durable whatever it is
    checkpoint_partitions: int = 256  # made durable at once: each has a file open until then
    writers_max: int = 256  # partitions whose cipher and index are kept for the next flush
    window_partition_bytes: int = 1 << 20  # of a partition, kept in memory for readers
    fetch_bytes: int = 1 << 20  # asked of a peer at once
    fetch_partitions: int = 256

    def __post_init__(self) -> None:
        if self.segment_bytes < 256 or not 64 <= self.run_bytes <= RUN_BYTES_MAX:
            raise StreamMisuse(
                "a file has at least 256 bytes, a run 64, and no more than a reader takes",
                segment_bytes=self.segment_bytes,
                run_bytes=self.run_bytes,
                run_bytes_max=RUN_BYTES_MAX,
            )
