"""Which records of a log are messages: what the broker took, once. Pure.

The row of a message stands where its topic's partition took it: that is the one entry that orders
it, and the one that its acknowledgement waited for. Three kinds of records can be it:

- packed publishes (QoS 1, QoS 2 of clean sessions, whatever is retained). Those passed on by
  another partition's leader carry numbers: a number that counted before is a repetition, one
  behind a gap or of a deposed leader was never answered;
- `PublishOnce` (QoS 2 of lasting sessions) in the session's partition, where that owns the topic
  too, and the packet id is not open already;
- the `Forward` items of a stream (the same from another partition), each place counted once.

A publish can also be refused, because a queue is full or a session is gone. All of this follows
from the broker's state, so `ReplayJudge` lets the broker itself apply the log and listens to its
answers. Where no snapshot and no beginning of the log is at hand there is no such state;
`LooseJudge` then drops only what is certainly a repetition, and never a message that was taken.

A QoS 1 publish that its client sends again after a reconnect is a message again: the broker takes
it twice, subscribers get it twice, and it has two rows.

Wills are the broker's own words. One whose topic another partition owns crosses as a `Forward`
without a packet id, and has its place there. One whose topic is here stands nowhere in the log: a
connection ended, or time passed, and the machine said it. `wills` has those of the last entry.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable, Sequence, Set
from typing import Final, NamedTuple, Protocol

import msgspec
from xxhash import xxh3_128_digest

from quantum.broker import Broker, BrokerSettings
from quantum.broker.commands import (
    OWN_ORIGIN,
    PUBLISHES_HEAD,
    ChannelItems,
    Command,
    PublishesHead,
    PublishOnce,
    Release,
    decode_command,
)
from quantum.broker.interest import is_peer, takes_items
from quantum.broker.message import HEAD, LENGTH_BYTES, Message, decode_record
from quantum.broker.refusals import NOT_COUNTED, decode_refusals
from quantum.broker.types import TIME_MAX_MS
from quantum.lake.filters import NO_FILTERS, Filters

PUBLISH_ONCE_TAG: Final = 6
RELEASE_TAG: Final = 7
CHANNEL_ITEMS_TAG: Final = 8


class Verdict(NamedTuple):
    """Of a command's records those from number `first` on are messages, but for `refused`."""

    first: int
    refused: Container[int]


NOBODY: Final[frozenset[int]] = frozenset()
ALL: Final = Verdict(0, NOBODY)

TopicOwner = Callable[[bytes], int]
SaidWill = tuple[int, Message]
"""When a will was said, and what it says."""
Spans = tuple[tuple[int, int], ...]
"""Numbers as spans from first through last, ascending, none overlapping."""
ANY_NUMBER: Final[Spans] = ((0, 1 << 64),)


class Judge(Protocol):
    """Sees every entry in order. For each command a verdict, None where it holds no message."""

    is_exact: bool

    @property
    def wills(self) -> Sequence[SaidWill]:
        """What the machine itself said at the last entry, about topics of this partition."""
        ...

    def judge(self, index: int, commands: Sequence[bytes]) -> Sequence[Verdict | None]: ...


def tag_of(data: bytes) -> int:
    """Return what kind of command the bytes are, 0 for packed publishes, -1 for none."""
    if data[:1] == b"\0":
        return 0
    return data[1] if len(data) > 1 and data[0] & 0xF0 == 0x90 else -1


def packed_head(data: bytes) -> PublishesHead | None:
    """Return the head of packed publishes; None for bytes that the broker would not apply."""
    try:
        head = PublishesHead(*PUBLISHES_HEAD.unpack_from(data))
    except struct.error:
        return None
    return head if head.now_ms <= TIME_MAX_MS else None


def decode_known(data: bytes) -> Command | None:
    """Decode a command; None for bytes that the broker would skip."""
    try:
        return decode_command(data)
    except (msgspec.DecodeError, RecursionError):
        return None


class ReplayJudge(Broker):
    """The broker itself, which notes what it took."""

    is_exact = True

    def __init__(self, settings: BrokerSettings) -> None:
        super().__init__(settings)
        self._verdicts: list[Verdict | None] = []
        self.wills: list[SaidWill] = []

    def judge(self, index: int, commands: Sequence[bytes]) -> Sequence[Verdict | None]:
        self._verdicts = []
        said: list[SaidWill] = []
        self.state.wills = said
        self.apply_batch(index, commands)
        self.wills = said
        return self._verdicts

    def _apply(self, data: bytes) -> bytes:
        tag = tag_of(data)
        if tag == 0:
            return self._apply_packed(data)
        command = decode_known(data) if tag in (PUBLISH_ONCE_TAG, CHANNEL_ITEMS_TAG) else None
        if isinstance(command, PublishOnce):
            known = [self._is_known(record) for record in command.records]
            reply = super()._apply(data)
            self._verdicts.append(self._once(command, known, reply))
            return reply
        verdict = None
        if isinstance(command, ChannelItems) and takes_items(self.state, command.origin):
            counted = self.state.channels.counted.get(command.origin, 0)
            verdict = Verdict(0, counted_again(command.sequences, counted))
        self._verdicts.append(verdict)
        return super()._apply(data)

    def _apply_packed(self, data: bytes) -> bytes:
        head, first = packed_head(data), 0
        if head is not None and head.origin != OWN_ORIGIN:
            if not is_peer(self.state, head.origin):
                head = None
            else:
                before = self.state.channels.forwarded.get(head.origin)
                if before is not None and before.term == head.origin_term:
                    first = max(0, before.number - head.first_sequence + 1)
        reply = super()._apply(data)
        if head is None or reply == NOT_COUNTED:
            self._verdicts.append(None)
        else:
            self._verdicts.append(Verdict(first, _refused(reply)) if reply or first else ALL)
        return reply

    def _is_known(self, record: bytes) -> bool:
        """Say whether a publish of this packet id is open already."""
        message = decoded(record)
        session = None if message is None else self.state.sessions.get(message.client_id)
        return message is not None and session is not None and message.packet_id in session.received

    def _once(self, command: PublishOnce, known: list[bool], reply: bytes) -> Verdict:
        refused = set(_refused(reply))
        taken: set[tuple[bytes, int]] = set()
        for number, record in enumerate(command.records):
            message = decoded(record)
            if message is None or number in refused:
                continue
            exchange = (message.client_id, message.packet_id)
            owner = self.state.owner(message.topic)
            if known[number] or exchange in taken or owner != self.settings.prg:
                refused.add(number)
            taken.add(exchange)
        return Verdict(0, refused)


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

    def judge(self, index: int, commands: Sequence[bytes]) -> Sequence[Verdict | None]:
        del index
        return [self._judge(data) for data in commands]

    def _judge(self, data: bytes) -> Verdict | None:
        tag = tag_of(data)
        if tag == 0:
            return self._packed(data)
        if tag not in (PUBLISH_ONCE_TAG, RELEASE_TAG, CHANNEL_ITEMS_TAG):
            return None
        match decode_known(data):
            case PublishOnce(now_ms=now_ms, records=records):
                return Verdict(0, self._once(now_ms, records))
            case Release(releases=releases):
                for release in releases:
                    self._open.pop(release, None)
            case ChannelItems(origin=origin, sequences=sequences):
                if self._topic_partition is None:
                    return ALL
                counted = self._counted.get(origin, 0)
                self._counted[origin] = max([counted, *sequences])
                return Verdict(0, counted_again(sequences, counted))
        return None

    def _packed(self, data: bytes) -> Verdict | None:
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
        return None if lowest is None else Verdict(lowest + 1 - first, NOBODY)

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


def _refused(reply: bytes) -> Set[int]:
    refused = decode_refusals(reply)
    return {number for number, _ in refused} if refused else NOBODY


def decoded(record: bytes) -> Message | None:
    """Decode a record; None for bytes that are none."""
    try:
        return decode_record(record)[0]
    except ValueError:
        return None


def counted_again(sequences: Iterable[int], counted: int) -> set[int]:
    """Return the numbers of those items that do not count: their places were counted before."""
    again: set[int] = set()
    for number, sequence in enumerate(sequences):
        if sequence <= counted:
            again.add(number)
        else:
            counted = sequence
    return again


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


def count_records(data: bytes) -> int:
    """Count the records of packed publishes by their lengths alone."""
    at, end, count = PUBLISHES_HEAD.size, len(data), 0
    while at + HEAD.size <= end:
        at += LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "little")
        if at > end:
            break
        count += 1
    return count
