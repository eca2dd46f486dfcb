"""What is certainly no message, where nobody knows the broker's state: `LooseJudge`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from xxhash import xxh3_128_digest

from quantum.broker.commands import (
    OWN_ORIGIN,
    ChannelItems,
    LeaderStarted,
    Part,
    PublishOnce,
    Release,
    decode_known,
)
from quantum.broker.message import Message
from quantum.broker.parts import Parts
from quantum.lake.filters import NO_FILTERS, Filters
from quantum.lake.judging import (
    ALL,
    CHANNEL_ITEMS_TAG,
    LEADER_STARTED_TAG,
    NOBODY,
    PART_TAG,
    PUBLISH_ONCE_TAG,
    RELEASE_TAG,
    Captured,
    CommandVerdict,
    SaidWill,
    count_records,
    counted_again,
    decoded,
    packed_head,
    tag_of,
)

TopicOwner = Callable[[bytes], int]
Spans = tuple[tuple[int, int], ...]
"""Numbers as spans from first through last, ascending, none overlapping."""
ANY_NUMBER: Final[Spans] = ((0, 1 << 64),)


class LooseJudge:
    """Knows only what it has seen, and drops only what counts nowhere or has counted before.

    Of numbers that a leader passed on it keeps where the broker's counter may stand: anywhere, at
    first. A number is shown wherever it counts for one of these; so one that stood behind a gap
    when it came first is shown again where it may have counted. Where nobody knows the ring, a
    partition may have been closed when anything came first, so that everything is shown.

    A QoS 2 publish whose exchange is open and which says the same is not shown again.
    """

    is_exact = False
    wills: Sequence[SaidWill] = ()
    will_offsets: Sequence[int | None] = ()
    captured: Sequence[Captured] = ()

    def __init__(
        self,
        prg: int,
        topic_partition: TopicOwner | None,
        filters: Filters = NO_FILTERS,
        horizon_ms: int = 259_200_000,
    ) -> None:
        """Without a ring nobody knows which QoS 2 publishes were sent on, so they all stay.

        What a filter left out was not shown, so it is no reason to leave out another.
        """
        self._prg = prg
        self._topic_partition = topic_partition
        self._filters = filters
        self._remembered_ms = horizon_ms // 2  # clocks differ: well before a broker may forget
        self._counters: dict[int, tuple[int, Spans]] = {}
        self._counted: dict[int, int] = {}
        self._open: dict[tuple[bytes, int], tuple[int, bytes, int]] = {}
        """Of each open exchange its epoch, what it says, and when it was seen."""
        self._parts = Parts()
        self.whole: Sequence[bytes] = ()
        self.is_cut = False

    def learn(self, index: int, commands: Sequence[bytes]) -> None:
        """Keep parts of what may end later; what was not shown is no reason to drop anything."""
        del index
        for data in commands:
            self._whole(data)

    def judge(self, index: int, commands: Sequence[bytes]) -> Sequence[CommandVerdict | None]:
        del index
        self.is_cut = False
        self.whole = [self._whole(data) for data in commands]
        return [self._judge(data) for data in self.whole]

    def _whole(self, data: bytes) -> bytes:
        """Return what is applied where a command stands."""
        tag = tag_of(data)
        if tag not in (LEADER_STARTED_TAG, PART_TAG):
            return data
        match decode_known(data):
            case LeaderStarted():
                self._parts.forget()
            case Part() as part:
                whole = self._parts.take(part)
                self.is_cut |= whole is None and part.number + 1 == part.count
                return b"" if whole is None or tag_of(whole) == PART_TAG else whole
        return data

    def _judge(self, data: bytes) -> CommandVerdict | None:
        tag = tag_of(data)
        if tag == 0:
            return self._packed(data)
        if tag not in (PUBLISH_ONCE_TAG, RELEASE_TAG, CHANNEL_ITEMS_TAG):
            return None
        match decode_known(data):
            case PublishOnce(now_ms=now_ms, records=records):
                return CommandVerdict(0, self._once(now_ms, records))
            case Release(releases=releases):
                for release in releases:
                    self._open.pop(release, None)
            case ChannelItems(origin=origin, sequences=sequences):
                if self._topic_partition is None:
                    return ALL
                counted = self._counted.get(origin, 0)
                self._counted[origin] = max([counted, *sequences])
                return CommandVerdict(0, counted_again(sequences, counted))
        return None

    def _packed(self, data: bytes) -> CommandVerdict | None:
        head = packed_head(data)
        if head is None:
            return None
        if head.origin == OWN_ORIGIN or self._topic_partition is None:
            return ALL
        term, counters = self._counters.get(head.origin, (-1, ANY_NUMBER))
        if head.origin_term < term:
            return None  # deposed: its successor was heard
        if head.origin_term > term:
            counters = ANY_NUMBER  # it may have been heard before, too
        first, last = head.first_sequence, head.first_sequence + count_records(data) - 1
        lowest, counters = counted_from(counters, first, last)
        self._counters[head.origin] = (head.origin_term, counters)
        return None if lowest is None else CommandVerdict(lowest + 1 - first, NOBODY)

    def _once(self, now_ms: int, records: list[bytes]) -> set[int]:
        refused: set[int] = set()
        for number, record in enumerate(records):
            message = decoded(record)
            if (
                message is None
                or not self._is_here(message.topic)
                or self._is_again(now_ms, message)
            ):
                refused.add(number)
        return refused

    def _is_again(self, now_ms: int, message: Message) -> bool:
        """Say whether the very message was shown: a refused one may leave its id to another."""
        if self._topic_partition is None or not self._filters.wants_time(now_ms):
            return False
        exchange = (message.client_id, message.packet_id)
        content = xxh3_128_digest(b"\0".join((message.topic, message.properties, message.payload)))
        epoch, known, seen_ms = self._open.get(exchange, (-1, b"", 0))
        if (epoch, known) == (message.epoch, content) and now_ms - seen_ms < self._remembered_ms:
            return True
        self._open[exchange] = (message.epoch, content, now_ms)
        return False

    def _is_here(self, topic: bytes) -> bool:
        return self._topic_partition is None or self._topic_partition(topic) == self._prg


def counted_from(counters: Spans, first: int, last: int) -> tuple[int | None, Spans]:
    """Let numbers from `first` through `last` come where the counter may stand at `counters`.

    It moves to `last` from wherever it stood between `first - 1` and there, and stays elsewhere.
    Return the lowest place that it moved from, None where it cannot have moved; and where it may
    stand now.
    """
    low, high = max(0, first - 1), last - 1
    lowest: int | None = None
    kept: list[tuple[int, int]] = []
    for begin, end in counters:
        if end < low or begin > high:
            kept.append((begin, end))
            continue
        if lowest is None:
            lowest = max(begin, low)
        kept += [(begin, low - 1)] if begin < low else []
        kept += [(high + 1, end)] if end > high else []
    if lowest is None:
        return None, counters
    if not any(begin <= last <= end for begin, end in kept):
        kept = sorted([*kept, (last, last)])
    return lowest, tuple(kept)
