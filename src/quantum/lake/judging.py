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
from collections.abc import Container, Iterable, Sequence, Set
from typing import Final, NamedTuple, Protocol

from quantum.broker import Broker, BrokerSettings
from quantum.broker.commands import (
    OWN_ORIGIN,
    PUBLISHES_HEAD,
    ChannelItems,
    PublishesHead,
    PublishOnce,
    decode_known,
)
from quantum.broker.interest import is_peer, takes_items
from quantum.broker.message import HEAD, LENGTH_BYTES, Message, decode_record
from quantum.broker.refusals import NOT_COUNTED, decode_refusals
from quantum.broker.types import TIME_MAX_MS

PUBLISH_ONCE_TAG: Final = 6
RELEASE_TAG: Final = 7
CHANNEL_ITEMS_TAG: Final = 8
LEADER_STARTED_TAG: Final = 10
PART_TAG: Final = 16
PARTS_ENTRIES_MAX: Final = 64
"""Over how many entries the parts of one message go, at the most."""


class CommandVerdict(NamedTuple):
    """Of a command's records those from number `first` on are messages, but for `refused`."""

    first: int
    refused: Container[int]


NOBODY: Final[frozenset[int]] = frozenset()
ALL: Final = CommandVerdict(0, NOBODY)

SaidWill = tuple[int, Message]
"""When a will was said, and what it says."""


class Captured:
    """What a stream kept of one command, in its order."""

    __slots__ = ("_first", "_nth", "_records")

    def __init__(self, first: int, records: Sequence[bytes] = ()) -> None:
        self._first = first
        self._records = records
        self._nth = 0

    def place(self, record: bytes) -> int | None:
        """Return the offset of the next message, None for one that the stream did not keep."""
        if self._nth < len(self._records) and self._records[self._nth] == record:
            self._nth += 1
            return self._first + self._nth - 1
        return None


NOT_CAPTURED: Final = Captured(0)


class Judge(Protocol):
    """Sees every entry in order. For each command a verdict, None where it holds no message."""

    is_exact: bool

    @property
    def captured(self) -> Sequence[Captured]:
        """What the stream that is asked for kept of each command of the last entry."""
        ...

    @property
    def will_offsets(self) -> Sequence[int | None]:
        """Where that stream has each of `wills`."""
        ...

    @property
    def wills(self) -> Sequence[SaidWill]:
        """What the machine itself said at the last entry, about topics of this partition."""
        ...

    @property
    def whole(self) -> Sequence[bytes]:
        """The commands of the last entry as they were judged: where the last part of a large one
        stood is the whole of it, where another part stood is nothing.
        """
        ...

    @property
    def is_cut(self) -> bool:
        """Whether the last entry ends a large command that began where nobody has read."""
        ...

    def learn(self, index: int, commands: Sequence[bytes]) -> None:
        """See an entry before the first that is shown."""
        ...

    def judge(self, index: int, commands: Sequence[bytes]) -> Sequence[CommandVerdict | None]: ...


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


class ReplayJudge(Broker):
    """The broker itself, which notes what it took."""

    is_exact = True
    is_cut = False  # a snapshot has what was there of it

    def __init__(self, settings: BrokerSettings) -> None:
        super().__init__(settings)
        self._verdicts: list[CommandVerdict | None] = []
        self.whole: list[bytes] = []
        self.wills: list[SaidWill] = []
        self.stream: bytes | None = None
        """The stream whose offsets are asked for."""
        self.captured: list[Captured] = []
        self.will_offsets: list[int | None] = []

    def learn(self, index: int, commands: Sequence[bytes]) -> None:
        self.judge(index, commands)

    def judge(self, index: int, commands: Sequence[bytes]) -> Sequence[CommandVerdict | None]:
        self._verdicts, self.whole = [], []
        self.captured, self.will_offsets = [], []
        said: list[SaidWill] = []
        self.state.wills = said
        self.apply_batch(index, commands)
        self.wills = said
        return self._verdicts

    def _apply(self, data: bytes) -> bytes:
        tag = tag_of(data)
        if tag == PART_TAG:  # with the last one, the whole command is applied in its place
            judged = len(self.whole)
            reply = super()._apply(data)
            if len(self.whole) == judged:
                self._note(b"", None)
            return reply
        verdict, reply = self._packed(data) if tag == 0 else self._command(tag, data)
        self._note(data, verdict)
        return reply

    def _note(self, data: bytes, verdict: CommandVerdict | None) -> None:
        self.whole.append(data)
        self._verdicts.append(verdict)
        captured = NOT_CAPTURED if self.stream is None else self._captured_of(self.stream)
        self.captured.append(captured)
        for _, message in (self.state.wills or ())[len(self.will_offsets) :]:
            self.will_offsets.append(captured.place(message.record))

    def _captured_of(self, name: bytes) -> Captured:
        """Look at what the last command brought for a stream; its offsets follow at once."""
        stream = self.state.streams.named(name)
        records = None if stream is None else self.state.captured.get(stream)
        if stream is None or records is None:
            return NOT_CAPTURED
        return Captured(stream.next_offset, records)

    def _command(self, tag: int, data: bytes) -> tuple[CommandVerdict | None, bytes]:
        command = decode_known(data) if tag in (PUBLISH_ONCE_TAG, CHANNEL_ITEMS_TAG) else None
        if isinstance(command, PublishOnce):
            known = [self._is_known(record) for record in command.records]
            reply = super()._apply(data)
            return self._once(command, known, reply), reply
        verdict = None
        if isinstance(command, ChannelItems) and takes_items(self.state, command.origin):
            counted = self.state.channels.counted.get(command.origin, 0)
            verdict = CommandVerdict(0, counted_again(command.sequences, counted))
        return verdict, super()._apply(data)

    def _packed(self, data: bytes) -> tuple[CommandVerdict | None, bytes]:
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
            return None, reply
        return CommandVerdict(first, _refused(reply)) if reply or first else ALL, reply

    def _is_known(self, record: bytes) -> bool:
        """Say whether a publish of this packet id is open already."""
        message = decoded(record)
        session = None if message is None else self.state.sessions.get(message.client_id)
        return message is not None and session is not None and message.packet_id in session.received

    def _once(self, command: PublishOnce, known: list[bool], reply: bytes) -> CommandVerdict:
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
        return CommandVerdict(0, refused)


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


def count_records(data: bytes) -> int:
    """Count the records of packed publishes by their lengths alone."""
    at, end, count = PUBLISHES_HEAD.size, len(data), 0
    while at + HEAD.size <= end:
        at += LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "little")
        if at > end:
            break
        count += 1
    return count
