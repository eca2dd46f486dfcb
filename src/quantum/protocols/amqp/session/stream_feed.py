"""The messages of a stream for one receiver: read from this node's replica, a little at a time.

A replica holds only what is committed, so any node may answer; one that follows may be a little
behind. Only what every transaction has let go of is given, and nothing of one that was aborted.
A feed holds one small read at most, and asks for the next when that is used up: a slow receiver
costs nobody anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from quantum.broker.streams import AbortedRange
from quantum.mesh.topic_views import (
    FetchedBatch,
    PartitionView,
    ReadOutcome,
    TimeOutcome,
    TopicView,
)
from quantum.mesh.topics import Cancel, TenantTopics
from quantum.model.records import Record, RecordReaders, producer_mark
from quantum.protocols.amqp.engine import Condition, ErrorValue
from quantum.protocols.amqp.session.record_messages import message_of
from quantum.protocols.amqp.session.stream_filters import StartKind, StreamStart

READ_BYTES: Final = 64 << 10
"""What is read at once, unless one batch alone has more."""


NO_STREAM: Final = ErrorValue(Condition.NOT_FOUND, "there is no stream of this name")
GONE: Final = ErrorValue(Condition.RESOURCE_DELETED, "the stream was deleted")


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """One message, and where it stands."""

    partition: int
    offset: int
    payload: bytes


@dataclass(slots=True)
class _Cursor:
    """Where a receiver is in one partition."""

    partition: int
    start: StreamStart
    offset: int = -1
    """The next that is wanted; -1: it is not known yet where to begin."""
    since_ms: int = -1
    """What is older is passed over, until something is not; -1: nothing is."""


class StreamFeed:
    """What one receiver is given of a stream, partition by partition in turn."""

    def __init__(
        self,
        topics: TenantTopics,
        readers: Callable[[], RecordReaders],
        soon: Callable[[Callable[[], None]], None],
        wake: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._readers = readers
        self._soon = soon
        self._wake = wake
        self._name = ""
        self._only: int | None = None
        self._uuid = b""
        """Of the stream that is read: another one of the same name is another stream."""
        self._cursors: list[_Cursor] = []
        self._turn = 0
        self._messages: Iterator[StreamMessage] | None = None
        self._is_reading = False
        self._is_over = False
        self._news: list[Cancel] = []
        self.is_at_end = False
        """Whether there was nothing more, when it was last looked."""
        self.failure: ErrorValue | None = None

    @property
    def is_found(self) -> bool:
        """Whether the stream was seen here."""
        return bool(self._uuid)

    def begin(self, name: str, only: int | None, start: StreamStart) -> None:
        """Begin with a stream, or with one partition of it."""
        self._name, self._only = name, only
        topic = self._look(start)
        if topic is not None:
            self._place_all(topic)

    # Where it begins.

    def _look(self, start: StreamStart) -> TopicView | None:
        """Return the stream as it is now; None: it is gone, or this node knows of none yet."""
        topic = self._topics.topic(self._name)
        if topic is None and not self._topics.is_ready():
            return None
        if topic is None or self._uuid not in (b"", topic.uuid):
            self._fail(GONE if self._uuid else NO_STREAM)
            return None
        error = None if self._uuid else misfit(topic, self._only, start)
        if error is not None:
            self._fail(error)
            return None
        self._uuid = topic.uuid
        wanted = range(topic.partitions) if self._only is None else (self._only,)
        known = {each.partition for each in self._cursors}
        self._cursors += [_Cursor(each, start) for each in wanted if each not in known]
        return topic

    def _place_all(self, topic: TopicView) -> None:
        for cursor in self._cursors:
            view = self._topics.partition(topic, cursor.partition)
            if cursor.offset < 0 and view is not None and cursor.start.kind is not StartKind.TIME:
                cursor.offset = _first_of(cursor.start, view)

    def _find_time(self, topic: TopicView, cursor: _Cursor, view: PartitionView) -> None:
        end = view.high_watermark  # what comes while the disk is asked was not looked at

        def found(outcome: TimeOutcome) -> None:
            self._is_reading = False
            if self._is_over or outcome.refusal is not None:
                return  # it is asked again
            batch = outcome.batch
            cursor.offset = end if batch is None else batch.base_offset
            cursor.since_ms = -1 if batch is None else cursor.start.at
            self._soon(self._woken)

        self._is_reading = True
        self._topics.find_time(topic, cursor.partition, cursor.start.at, found)

    # What there is.

    def take(self) -> StreamMessage | None:
        """Return the next message; None: there is none now, and `wake` is called when there is."""
        if self._is_over:
            return None
        if self._messages is not None:
            try:
                found = next(self._messages, None)
            except ValueError as error:
                why = f"a record cannot be read as a message; go on behind it: {error}"
                self._fail(ErrorValue(Condition.INTERNAL_ERROR, why))
                return None
            if found is not None:
                return found
            self._messages = None
        self._ask()
        return None

    def again(self) -> None:
        """Look again whether something can be read: what was refused may be there by now."""
        if not (self._is_over or self._is_reading) and self._messages is None:
            self._drop_news()
            self._ask()

    def _ask(self) -> None:
        """Read on where there is something, in turn; where there is nothing, wait for news."""
        if self._is_reading or self._news:
            return
        topic = self._look(StreamStart(StartKind.FIRST))  # partitions that came later
        if topic is None:
            return
        self._place_all(topic)
        count, self.is_at_end = len(self._cursors), False
        is_waiting = False
        for step in range(count):
            cursor = self._cursors[(self._turn + step) % count]
            view = self._topics.partition(topic, cursor.partition)
            if view is None:
                is_waiting = True
            elif cursor.offset < 0:
                self._find_time(topic, cursor, view)
                return
            elif self._read(topic, cursor, view):
                self._turn = (self._turn + step + 1) % count
                return
        self.is_at_end = not is_waiting
        self._await_news(topic)

    def _read(self, topic: TopicView, cursor: _Cursor, view: PartitionView) -> bool:
        """Read of one partition, if there is something; say whether there is."""
        cursor.offset = max(cursor.offset, view.start)  # retention may have passed it
        if cursor.offset >= view.last_stable:
            return False
        start = cursor.offset

        def found(outcome: ReadOutcome) -> None:
            self._is_reading = False
            if self._is_over or outcome.refusal is not None:
                return  # it is asked again
            batches = [each for each in outcome.batches if each.base_offset < outcome.last_stable]
            if batches:
                end = batches[-1].base_offset + batches[-1].count
                aborted = self._topics.aborted(topic, cursor.partition, start, end)
                self._messages = self._walk(cursor, batches, aborted)
                self._soon(self._woken)

        self._is_reading = True
        self._topics.read(topic, cursor.partition, start, READ_BYTES, found)
        return True

    def _walk(
        self, cursor: _Cursor, batches: list[FetchedBatch], aborted: list[AbortedRange]
    ) -> Iterator[StreamMessage]:
        """Walk messages; the cursor goes on with each, and over what is nobody's to see."""
        for batch in batches:
            try:
                yield from self._walk_batch(cursor, batch, aborted)
            except ValueError as error:
                where = f"offset {cursor.offset} of partition {cursor.partition}"
                raise ValueError(f"{where}: {error}") from None
            cursor.offset = max(cursor.offset, batch.base_offset + batch.count)

    def _walk_batch(
        self, cursor: _Cursor, batch: FetchedBatch, aborted: list[AbortedRange]
    ) -> Iterator[StreamMessage]:
        for record in self._records(batch):
            offset, sender = record.offset, record.origin.sender
            if offset < cursor.offset or _is_aborted(aborted, sender, offset):
                continue
            if record.timestamp_ms < cursor.since_ms:
                continue
            payload = message_of(record, self._name, cursor.partition)
            cursor.offset, cursor.since_ms = offset + 1, -1
            yield StreamMessage(cursor.partition, offset, payload)

    def _records(self, batch: FetchedBatch) -> Iterator[Record]:
        read = self._readers().get(batch.protocol)
        if read is None:
            raise ValueError("its protocol is not known here")
        tagged = bytes((batch.protocol,)) + batch.data
        return read(tagged, batch.base_offset, batch.timestamp_ms)

    # News, and the end.

    def _await_news(self, topic: TopicView) -> None:
        self._news = [
            self._topics.on_news(topic, each.partition, self._on_news) for each in self._cursors
        ]

    def _on_news(self) -> None:
        if self._news:
            self._drop_news()
            self._soon(self._woken)

    def _drop_news(self) -> None:
        self.is_at_end = False
        news, self._news = self._news, []
        for cancel in news:
            cancel()

    def _woken(self) -> None:
        if not self._is_over:
            self._wake()

    def _fail(self, error: ErrorValue) -> None:
        self.failure = error
        self.close()

    def close(self) -> None:
        """Read no more."""
        self._is_over = True
        self._messages = None
        self._drop_news()


def misfit(topic: TopicView, only: int | None, start: StreamStart) -> ErrorValue | None:
    """Say why a receiver cannot begin there; None: it can."""
    count = topic.partitions
    if only is not None and only >= count:
        why = f"the stream has no partition {only}: there are {count}, from 0 on"
        return ErrorValue(Condition.NOT_FOUND, why)
    if only is None and count > 1 and start.kind is StartKind.OFFSET:
        why = f"an offset is one partition's: attach to /streams/{topic.name}/0, or another of "
        return ErrorValue(Condition.INVALID_FIELD, f"{why}its {count} partitions")
    return None


def _first_of(start: StreamStart, view: PartitionView) -> int:
    if start.kind is StartKind.FIRST:
        return view.start
    if start.kind is StartKind.LAST:
        return max(view.start, view.high_watermark - 1)
    return start.at if start.kind is StartKind.OFFSET else view.high_watermark


def _is_aborted(aborted: Iterable[AbortedRange], sender: bytes, offset: int) -> bool:
    return any(
        each.first_offset <= offset <= each.last_offset
        and producer_mark(each.producer_id) == sender
        for each in aborted
    )
