"""Scrub a partition: is every byte that the metadata vouches for there and authentic?"""

from __future__ import annotations

from dataclasses import dataclass

from clustor.log.errors import AuthenticationFailed, ChecksumMismatch, LogError, MissingFile
from clustor.log.keys import KeyRing
from clustor.log.steps import Storage
from clustor.streams.config import StreamConfig
from clustor.streams.errors import ViewExpired
from clustor.streams.flush import file_header
from clustor.streams.metadata import SegmentMeta
from clustor.streams.reader import StreamFileReader
from clustor.streams.runs import FILE_HEADER_BYTES, decode_file_header, part_file
from clustor.streams.types import StreamPartitionId
from clustor.streams.view import StreamView


@dataclass(frozen=True, slots=True)
class StreamDamage:
    """Where a partition stops being what was written."""

    partition: StreamPartitionId
    first_index: int  # everything below could be read
    problem: LogError


def verify_stream(
    storage: Storage, keys: KeyRing, config: StreamConfig, view: StreamView
) -> StreamDamage | None:
    """Read all files of a view; return the first damage, None where there is none.

    Raises KeyUnavailable and UnsupportedFormat, which are no damage.
    """
    reader = StreamFileReader(storage, keys, config)
    good_next = view.start_index
    for segment in view.segments:
        good_next = segment.first_index  # below the start there may be more, if it is in a file
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
            return StreamDamage(view.partition, good_next, missing)
        except (ChecksumMismatch, AuthenticationFailed) as problem:
            return StreamDamage(view.partition, good_next, problem)
        good_next = segment.next_index
    return None


def _check_header(storage: Storage, view: StreamView, segment: SegmentMeta) -> None:
    name = part_file(view.partition, segment.file_seq)
    try:
        header = decode_file_header(storage.read(name, 0, FILE_HEADER_BYTES))
    except FileNotFoundError:
        raise ViewExpired("a partition file is gone", file=name) from None
    if header != file_header(view.group, view.store_id, view.partition, segment):
        raise AuthenticationFailed("a file of another partition or store", file=name)
