"""Rewrite a partition's files by somebody's rule: read and judged in a thread, written in the lane.

The loop is never held up: the thread gives it pieces of about a MiB, each is on the disk before the
next is made, and half of the time the thread rests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar

from clustor.log.errors import AuthenticationFailed, ChecksumMismatch
from clustor.replica.stream_rewriting import RewritePlans, when_rewrite_begun
from clustor.replica.streams import ReplicaStreams
from clustor.runtime.errors import NodeError
from clustor.runtime.group import HostedGroup
from clustor.runtime.stream_reads import StreamStorage
from clustor.streams import StreamChunk, StreamFileReader, StreamView
from clustor.streams.metadata import CompactionMark, SegmentMeta
from clustor.streams.piece import BatchPiece
from clustor.streams.rewriting import StreamRewrite
from clustor.streams.runs import ROW

T = TypeVar("T")
_PIECE_BYTES: Final = 1 << 20
_LOOK_SECONDS: Final = 1.0
_REST_SECONDS_MAX: Final = 0.5


class RewriteStopped(NodeError):
    """The replica is not what it was when this began: nothing was changed."""


class RewriteRule(Protocol):
    """What is left of batches: asked in a thread, in order."""

    @property
    def mark(self) -> CompactionMark:
        """How far all of this is compacted when every batch was asked for."""
        ...

    @property
    def since(self) -> int:
        """From which index on batches are to be noted."""
        ...

    def note(self, payload: memoryview) -> bool:
        """Take in a batch; False: no more."""
        ...

    def left_of(self, timestamp: int, payload: memoryview) -> tuple[int, bytes | memoryview] | None:
        """Return the time and the bytes that stay; the very payload as it is where all does."""
        ...


async def rewrite_stream(
    group: HostedGroup, pool: ThreadPoolExecutor, partition: int, rule: RewriteRule
) -> bool:
    """Put what a rule leaves in the place of a partition's files; False where there are none.

    Raises RewriteStopped where the replica stops meanwhile.
    """
    streams = group.replica.streams
    if streams is None:
        return False
    rewriting = _Rewriting(group, streams, pool)
    try:
        return await rewriting.run(partition, rule)
    except (ChecksumMismatch, AuthenticationFailed) as damage:
        group.replica.damaged("a stream", str(damage))
        raise


class _Rewriting:
    def __init__(
        self, group: HostedGroup, streams: ReplicaStreams, pool: ThreadPoolExecutor
    ) -> None:
        self._group = group
        self._streams = streams
        self._pool = pool
        self._loop = asyncio.get_running_loop()

    async def run(self, partition: int, rule: RewriteRule) -> bool:
        begin: Callable[[Callable[[StreamRewrite | None], None]], None] = partial(
            when_rewrite_begun, self._streams, partition
        )
        rewrite = await self._told(begin)
        if rewrite is None:
            return False
        plans = RewritePlans(self._streams, rewrite)
        view = self._streams.whole_view(partition)
        pin = self._streams.pin(view)
        settings = self._group.replica.settings
        storage = StreamStorage(self._group.directory)
        try:
            reader = StreamFileReader(storage, settings.keys, settings.stream_config)
            work = _Work(reader, view, rewrite.segments, rule)
            await self._write(work, plans, rewrite)
            await self._done(partial(plans.finish, rule.mark))
        except BaseException:
            plans.abandon(lambda: None)
            raise
        finally:
            self._streams.unpin(pin)
            storage.close()
        return True

    async def _write(self, work: _Work, plans: RewritePlans, rewrite: StreamRewrite) -> None:
        async for _ in self._pieces(work.notes()):
            pass
        for segment in rewrite.segments:
            is_whole = True
            async for is_same in self._pieces(work.looks(segment)):
                is_whole = is_whole and is_same
            if is_whole:
                await self._done(partial(plans.keep, segment))
                continue
            async for piece in self._pieces(work.left(segment)):
                await self._done(partial(plans.write, piece))

    async def _pieces(self, found: Iterator[T]) -> AsyncIterator[T]:
        """Take one piece after another in the thread, and rest as long as each took."""
        while True:
            begun = self._loop.time()
            piece = await self._loop.run_in_executor(self._pool, next, found, None)
            if piece is None:
                return
            await asyncio.sleep(min(self._loop.time() - begun, _REST_SECONDS_MAX))
            yield piece

    async def _done(self, ask: Callable[[Callable[[], None]], None]) -> None:
        def asked(told: Callable[[None], None]) -> None:
            ask(lambda: told(None))

        await self._told(asked)

    async def _told(self, ask: Callable[[Callable[[T], None]], None]) -> T:
        """Wait for the answer to a question that a replica which stops never answers."""
        told: asyncio.Future[T] = self._loop.create_future()
        ask(lambda answer: None if told.done() else told.set_result(answer))
        while not told.done():
            await asyncio.wait((told,), timeout=_LOOK_SECONDS)
            replica = self._group.replica
            if replica.streams is not self._streams or replica.failed is not None:
                raise RewriteStopped("the replica stopped")
        return told.result()


class _Work:
    """What the thread does, in pieces."""

    def __init__(
        self,
        reader: StreamFileReader,
        view: StreamView,
        segments: tuple[SegmentMeta, ...],
        rule: RewriteRule,
    ) -> None:
        self._reader = reader
        self._view = view
        self._segments = segments
        self._rule = rule

    def _chunks(self, segment: SegmentMeta) -> Iterator[StreamChunk]:
        return self._reader.segment_chunks(self._view, segment)

    def notes(self) -> Iterator[bool]:
        """Show the rule every batch."""
        since = self._rule.since
        for segment in self._segments:
            if segment.next_index <= since:
                continue
            for chunk in self._chunks(segment):
                for (first, count, _, _), payload in _batches(chunk):
                    if first + count > since and not self._rule.note(payload):
                        return
                yield True

    def looks(self, segment: SegmentMeta) -> Iterator[bool]:
        """Say of one run after another whether all of it stays; end at the first that does not."""
        for chunk in self._chunks(segment):
            for (_, _, _, stamp), payload in _batches(chunk):
                left = self._rule.left_of(stamp, payload)
                if left is None or left[1] is not payload:
                    yield False
                    return
            yield True

    def left(self, segment: SegmentMeta) -> Iterator[BatchPiece]:
        """Yield what stays of a file."""
        piece = BatchPiece()
        for chunk in self._chunks(segment):
            for (first, count, _, stamp), payload in _batches(chunk):
                left = self._rule.left_of(stamp, payload)
                if left is not None:
                    newest, data = left
                    piece.add_row(ROW.pack(first, count, len(data), newest), bytes(data))
            if piece and piece.size_bytes >= _PIECE_BYTES:
                yield piece
                piece = BatchPiece()
        if piece:
            yield piece


def _batches(chunk: StreamChunk) -> Iterator[tuple[tuple[int, int, int, int], memoryview]]:
    position = 0
    for row in chunk.rows():
        yield row, chunk.payloads[position : position + row[2]]
        position += row[2]
