"""Streams: messages kept by offset beside the sessions, and how they are named and bounded.

A stream belongs to a tenant and has a partition in each of the tenant's PRGs; the partition's
number is the PRG's. The first PRG keeps the catalogue: it numbers streams and tells the others
through the channels, so that each of them begins and ends a stream at one index of its own log. A
**capture** is a stream with topic filters: the apply of a publish in the topic's PRG appends it,
with no second entry, sync or hop.

What a stream holds is not in this state, only how far it reaches. Apply decides each offset; the
replica writes what was appended into files of its own (`take_stream_changes`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NewType

import msgspec

from quantum.broker.commands import Amount, Count, Stamp
from quantum.topics import TopicError, check_topic_filter

StreamNumber = NewType("StreamNumber", int)
"""Counts the streams that a tenant ever had, from 1: no number comes twice."""

CATALOGUE_PRG: Final = 0
"""The PRG that numbers the streams of its tenant."""
NAME_BYTES_MAX: Final = 249
"""What Kafka allows a topic's name."""
FILTERS_MAX: Final = 64
_NAME: Final = re.compile(rb"[A-Za-z0-9._-]{1,%d}" % NAME_BYTES_MAX)
_PARTITION_BITS: Final = 20


class StreamSpec(msgspec.Struct, array_like=True, frozen=True):
    """What was asked for, the same in every PRG."""

    number: Count
    name: bytes
    filters: tuple[bytes, ...]
    retention_ms: Stamp  # 0: for ever
    retention_bytes: Amount  # of all partitions together; 0: any number
    created_ms: Stamp


class Stream:
    """One stream as this PRG has it."""

    __slots__ = ("next_offset", "partition", "spec", "start_offset")

    def __init__(
        self, spec: StreamSpec, partition: int, start_offset: int = 0, next_offset: int = 0
    ) -> None:
        self.spec = spec
        self.partition = partition
        """The number of its partition here."""
        self.start_offset = start_offset
        """The lowest offset that is still there; it never goes back."""
        self.next_offset = next_offset
        """What the next message gets."""

    @property
    def number(self) -> StreamNumber:
        return StreamNumber(self.spec.number)

    @property
    def file_id(self) -> int:
        """Names its partition among all that this PRG keeps in files."""
        return self.spec.number << _PARTITION_BITS | self.partition


class StreamTable:
    """The streams of one PRG, by number and by name. Part of the state."""

    __slots__ = ("_by_name", "_by_number", "last_number")

    def __init__(self) -> None:
        self._by_number: dict[int, Stream] = {}
        self._by_name: dict[bytes, Stream] = {}
        self.last_number = 0
        """The last number that was given; only the catalogue's PRG counts."""

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Stream]:
        """Walk the streams in the order of their numbers."""
        return (self._by_number[number] for number in sorted(self._by_number))

    def get(self, number: int) -> Stream | None:
        return self._by_number.get(number)

    def named(self, name: bytes) -> Stream | None:
        return self._by_name.get(name)

    def put(self, stream: Stream) -> None:
        self._by_number[stream.number] = stream
        self._by_name[stream.spec.name] = stream

    def drop(self, number: int) -> Stream | None:
        stream = self._by_number.pop(number, None)
        if stream is not None:
            del self._by_name[stream.spec.name]
        return stream


class StreamReply(msgspec.Struct, array_like=True):
    """The reply to a CreateStream or DeleteStream: it holds once `awaited` PRGs have it."""

    number: int
    awaited: list[tuple[int, int]]
    refused: str = ""


def refuse_spec(name: bytes, filters: Iterable[bytes]) -> str:
    """Say in one sentence why a stream can't be made like this; empty where it can."""
    if not _NAME.fullmatch(name) or name in (b".", b".."):
        return f"a name has 1 to {NAME_BYTES_MAX} letters, digits, dots, dashes or underscores"
    wanted = list(filters)
    if len(wanted) > FILTERS_MAX:
        return f"a stream captures at most {FILTERS_MAX} filters"
    for topic_filter in wanted:
        try:
            check_topic_filter(topic_filter)
        except TopicError:
            return f"no topic filter: {topic_filter.decode(errors='replace')}"
        if topic_filter.startswith(b"$"):
            return "topics that begin with $ are not captured"
    return ""
