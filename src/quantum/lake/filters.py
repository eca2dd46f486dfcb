"""What a query wants of the rows, as far as a plan or a decoder can make use of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from quantum.archive.types import LogPiece, PrgId

INDEX_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Filters:
    """Everything must hold at once. `None` asks for nothing.

    `topic_prefixes` are bytes of UTF-8; a topic has to begin with every one of them. Times are
    milliseconds since 1970, both ends included.
    """

    tenants: frozenset[str] | None = None
    prgs: frozenset[int] | None = None
    topics: frozenset[bytes] | None = None
    topic_prefixes: tuple[bytes, ...] = ()
    index_min: int = 0
    index_max: int = INDEX_MAX
    time_min_ms: int = 0
    time_max_ms: int = INDEX_MAX
    stream: bytes | None = None
    """Only what this stream captured, with its offsets."""

    def wants_partition(self, prg: PrgId) -> bool:
        return (self.tenants is None or prg.tenant in self.tenants) and (
            self.prgs is None or prg.number in self.prgs
        )

    def wants_piece(self, piece: LogPiece) -> bool:
        """Say whether a piece may hold anything wanted; without known times it always may."""
        if piece.last < self.index_min or piece.first > self.index_max:
            return False
        if piece.first_time_ms is None or piece.last_time_ms is None:
            return True
        return piece.last_time_ms >= self.time_min_ms and piece.first_time_ms <= self.time_max_ms

    def wants_time(self, now_ms: int) -> bool:
        return self.time_min_ms <= now_ms <= self.time_max_ms

    @property
    def is_about_topics(self) -> bool:
        return self.topics is not None or bool(self.topic_prefixes)

    def wants_topic(self, topic: bytes) -> bool:
        if self.topics is not None and topic not in self.topics:
            return False
        return all(map(topic.startswith, self.topic_prefixes))

    # Each of these narrows.

    def with_tenants(self, names: frozenset[str]) -> Filters:
        return replace(self, tenants=names if self.tenants is None else self.tenants & names)

    def with_prgs(self, numbers: frozenset[int]) -> Filters:
        return replace(self, prgs=numbers if self.prgs is None else self.prgs & numbers)

    def with_topics(self, topics: frozenset[bytes]) -> Filters:
        return replace(self, topics=topics if self.topics is None else self.topics & topics)

    def with_prefix(self, prefix: bytes) -> Filters:
        return replace(self, topic_prefixes=(*self.topic_prefixes, prefix))

    def with_stream(self, name: bytes) -> Filters:
        return replace(self, stream=name)

    def with_indexes(self, first: int = 0, last: int = INDEX_MAX) -> Filters:
        return replace(
            self, index_min=max(self.index_min, first), index_max=min(self.index_max, last)
        )

    def with_times(self, first_ms: int = 0, last_ms: int = INDEX_MAX) -> Filters:
        return replace(
            self,
            time_min_ms=max(self.time_min_ms, first_ms),
            time_max_ms=min(self.time_max_ms, last_ms),
        )


NO_FILTERS: Final = Filters()
