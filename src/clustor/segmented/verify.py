"""Scrub a partition: is every byte that the metadata vouches for there and authentic?"""

from __future__ import annotations

from dataclasses import dataclass

from clustor.log.errors import AuthenticationFailed, ChecksumMismatch, LogError, MissingFile
from clustor.log.keys import KeyRing
from clustor.log.steps import Storage
from clustor.log.types import LogState
from clustor.segmented.config import SegmentedConfig
from clustor.segmented.errors import ViewExpired
from clustor.segmented.flush import file_header
from clustor.segmented.metadata import SegmentMeta
from clustor.segmented.reader import PartitionReader
from clustor.segmented.runs import FILE_HEADER_BYTES, decode_file_header, part_file
from clustor.segmented.types import TopicPartitionId
from clustor.segmented.view import PartitionView


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a partition stops being what was written."""

    partition: TopicPartitionId
    first_index: int  # everything below could be read
    problem: LogError

    @property
    def state(self) -> LogState:
        """How clustor §9.4 classifies it."""
        if isinstance(self.problem, ChecksumMismatch):
            return LogState.NEEDS_REPAIR
        return LogState.QUARANTINED


def verify_partition(
    storage: Storage, keys: KeyRing, config: SegmentedConfig, view: PartitionView
) -> Damage | None:
    """Read all files of a view; return the first damage, None where there is none.

    Raises KeyUnavailable and UnsupportedFormat, which are no damage.
    """
    reader = PartitionReader(storage, keys, config)
    good_next = view.start_index
    for segment in view.segments:
        good_next = max(good_next, segment.first_index)
        try:
            _check_header(storage, view, segment)
            for chunk in reader.segment_chunks(view, segment):
                if chunk.first_index < good_next or chunk.next_index > segment.next_index:
                    raise AuthenticationFailed(
                        "a run stands where another was", first_index=chunk.first_index
                    )
                good_next = chunk.next_index
        except ViewExpired as problem:
            missing = MissingFile("a partition file is gone", **problem.facts)
            return Damage(view.partition, good_next, missing)
        except (ChecksumMismatch, AuthenticationFailed) as problem:
            return Damage(view.partition, good_next, problem)
        good_next = segment.next_index
    return None


def _check_header(storage: Storage, view: PartitionView, segment: SegmentMeta) -> None:
    name = part_file(view.partition, segment.file_seq)
    try:
        header = decode_file_header(storage.read(name, 0, FILE_HEADER_BYTES))
    except FileNotFoundError:
        raise ViewExpired("a partition file is gone", file=name) from None
    if header != file_header(view.group, view.store_id, view.partition, segment):
        raise AuthenticationFailed("a file of another partition or store", file=name)
