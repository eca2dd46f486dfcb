"""Fetch what a snapshot's state speaks of and this replica's own files do not hold.

Files hold only what was committed, so the own beginning of a partition is right, however old it
is: only what is missing behind it is asked for, in bounded pieces. A piece that came is kept
whatever becomes of the installation; the next one asks for less. When the source has trimmed
meanwhile, its later start is taken: that is a committed trim, and comes with the log again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from crc32c import crc32c

from clustor.log.errors import LogError
from clustor.log.keys import KeyRing
from clustor.log.steps import Storage
from clustor.replica.streams import ReplicaStreams
from clustor.replica.transfer import StreamPiece, StreamsSent, StreamsWanted
from clustor.streams.changes import StreamAppend, StreamExtent
from clustor.streams.config import StreamConfig
from clustor.streams.errors import StreamOutOfOrder
from clustor.streams.files import StreamFiles
from clustor.streams.metadata import NOT_COMPACTED, CompactionMark, Definition
from clustor.streams.reader import StreamFileReader
from clustor.streams.runs import ROW, ROW_BYTES
from clustor.streams.store import StreamStore
from clustor.streams.view import StreamChunk, StreamView, take_view

ANSWER_MS_MAX = 2_000
"""After so long a question or its answer is taken for lost."""

ASKS_MAX = 4


# The source.


@dataclass(frozen=True, slots=True)
class _Part:
    """What of one partition is asked for; without a view there is nothing of it."""

    partition: int
    begin: int
    until: int
    floor: int
    definition: Definition | None
    view: StreamView | None
    compacted: CompactionMark = NOT_COMPACTED


@dataclass(frozen=True, slots=True)
class ReadStreams:
    """Read batches of some partitions for a peer, in their order, until so many bytes are full."""

    parts: tuple[_Part, ...]
    keys: KeyRing
    config: StreamConfig
    bytes_max: int

    def run(self, storage: Storage) -> tuple[StreamPiece, ...]:
        reader = StreamFileReader(storage, self.keys, self.config)
        pieces: list[StreamPiece] = []
        room = self.bytes_max
        for part in self.parts:
            piece = _read_part(reader, part, room, is_first=not pieces)
            if piece is None:
                break
            room -= len(piece.table) + len(piece.data)
            pieces.append(piece)
        return tuple(pieces)


def _read_part(
    reader: StreamFileReader, part: _Part, room: int, *, is_first: bool
) -> StreamPiece | None:
    """Read what fits, at least one run for the first part; None where nothing does."""
    chunks: list[StreamChunk] = []
    is_all = True
    found = reader.chunks(part.view, part.begin, max(room, 1)) if part.view is not None else ()
    for chunk in found:
        if chunk.size_bytes > room and (chunks or not is_first):
            if not chunks:
                return None
            is_all = False
            break
        chunks.append(chunk)
        room -= chunk.size_bytes
    if part.view is not None and not chunks and part.compacted[0] <= part.begin:
        raise StreamOutOfOrder("a partition has nothing where it has", partition=part.partition)
    table = b"".join(bytes(chunk.table) for chunk in chunks)
    data = b"".join(bytes(chunk.payloads) for chunk in chunks)
    start = chunks[0].first_index if chunks else part.until
    crc = crc32c(data, crc32c(table))
    following = part.until if is_all else chunks[-1].next_index
    facts = (part.definition, following, part.compacted)
    return StreamPiece(part.partition, start, part.floor, table, data, crc, *facts)


def parts_of(store: StreamStore, wanted: StreamsWanted) -> tuple[_Part, ...]:
    """Look up what a peer asks for; what this store does not reach yet is left out."""
    found = []
    for partition, begin, until in wanted.wants:
        files = store.partitions.get(partition)
        if files is None:
            if partition in store.gone:
                found.append(_Part(partition, until, until, until, None, None))
        elif files.next_index >= until:
            floor = min(files.start_index, until)
            begin = max(begin, floor)  # noqa: PLW2901  # what is below is gone
            view = None
            if begin < until:
                view = take_view(store, partition, begin, wanted.bytes_max, until)
            facts = (files.definition, view, files.compacted)
            found.append(_Part(partition, begin, until, floor, *facts))
    return tuple(found)


# The receiver.


class StreamFetch:
    """Brings the files up to a state's extents. `done` is called once, or `failed`."""

    def __init__(
        self,
        streams: ReplicaStreams,
        base_index: int,
        ask: Callable[[StreamsWanted], None],
        done: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        self._streams = streams
        self._store = streams.store
        self._base_index = base_index
        self._ask = ask
        self._done = done
        self._failed = failed
        self._missing: dict[int, StreamExtent] = {}
        self._asked: tuple[int, ...] = ()
        self._asked_ms: int | None = None
        self._asks = 0
        self._over = False

    def begin(self, extents: Iterable[StreamExtent], now_ms: int) -> None:
        """See what is missing; `advance` asks for it."""
        for extent in extents:
            if self._store.lacking((extent,)):
                self._missing[extent.partition] = extent
            else:
                self._trim(extent)
        self.advance(now_ms)

    @property
    def missing(self) -> int:
        """How many partitions still lack something."""
        return len(self._missing)

    @property
    def has_question(self) -> bool:
        """Whether `advance` would ask, or end: no piece is on its way, and the disk has room."""
        return not (self._over or self._asked_ms is not None or self._streams.overdue_bytes)

    def advance(self, now_ms: int) -> None:
        """Ask for the next piece, unless one is on its way or the disk has enough to do."""
        if not self.has_question:
            return
        if not self._missing:
            self._over = True
            self._store.applied(self._base_index)
            self._streams.when_durable(self._base_index, self._done)
            return
        config = self._store.config
        wants = []
        for extent in self._missing.values():
            files = self._store.partitions.get(extent.partition)
            wants.append((extent.partition, files.next_index if files else 0, extent.next))
            if len(wants) == config.fetch_partitions:
                break
        self._asked = tuple(want[0] for want in wants)
        self._asked_ms = now_ms
        self._asks += 1
        self._ask(StreamsWanted(self._base_index, tuple(wants), config.fetch_bytes))

    def tick(self, now_ms: int) -> None:
        """Ask again for what did not come, and give up at last; what is there stays."""
        if self._asked_ms is not None and self._asked_ms <= now_ms - ANSWER_MS_MAX:
            self._asked_ms = None
            if self._asks >= ASKS_MAX:
                self._give_up()
        self.advance(now_ms)

    def on_sent(self, message: StreamsSent, now_ms: int) -> None:
        """Take an answer; one that nobody waits for brings nothing wrong, and is not taken."""
        if self._over or self._asked_ms is None or message.base_index != self._base_index:
            return
        self._asked_ms = None
        try:
            moved = [self._take(piece) for piece in message.pieces]
        except LogError:
            self._give_up()
            return
        if any(moved):
            self._asks = 0
        elif self._asks >= ASKS_MAX:
            self._give_up()
            return
        self.advance(now_ms)

    def _take(self, piece: StreamPiece) -> bool:
        """Append the batches of a piece; say whether it brought the partition further."""
        extent = self._missing.get(piece.partition)
        if extent is None or piece.partition not in self._asked:
            return False
        if crc32c(piece.data, crc32c(piece.table)) != piece.crc or len(piece.table) % ROW_BYTES:
            return False
        store, index = self._store, self._store.applied_index + 1
        store.define_as(index, piece.partition, piece.definition, self._base_index)
        files = store.files(piece.partition)
        before = files.next_index
        self._join(files, piece)
        if piece.start > before:
            if piece.floor > before:
                store.skip_to(index, piece.partition, min(piece.start, extent.next))
            elif piece.compacted[0] <= before:
                raise StreamOutOfOrder("a gap that no trim explains", partition=piece.partition)
        position = 0
        for first, count, length, timestamp in ROW.iter_unpack(piece.table):
            payload = piece.data[position : position + length]
            position += length
            if len(payload) < length or first + count > extent.next:
                return False
            if files.next_index < first < piece.compacted[0]:
                store.pass_over(index, files, first)
            store.take(index, StreamAppend(piece.partition, first, count, timestamp, payload))
        if piece.compacted[0] > before:
            reached = min(piece.next, extent.next)
            store.pass_over(index, files, max(files.next_index, reached))
        floor = min(max(piece.floor, extent.start), files.next_index)
        store.trim(index, piece.partition, floor)
        if not store.lacking((extent,)):
            del self._missing[piece.partition]
            self._trim(extent)
            return True
        return files.next_index > before

    def _join(self, files: StreamFiles, piece: StreamPiece) -> None:
        """See that what comes may stand behind what is here, and note how far both are compacted.

        A source that dropped the last word on a key, which would have come now, has dropped what
        it was about too; the beginning that is here has not, and would bring it back to life.
        """
        (through, purged), (its_through, its_purged) = files.compacted, piece.compacted
        here = files.next_index
        if files.start_index == here:
            files.compacted = piece.compacted
        elif its_purged > here and purged < its_purged:
            self._streams.on_damage(f"partition {files.partition} lacks what a peer has compacted")
            raise StreamOutOfOrder("compacted beyond what is here", partition=files.partition)
        else:
            # What it was compacted for and did not come in that form is raw again.
            files.compacted = (
                min(through, its_through) if through > here else through,
                min(purged, its_purged) if purged > here else purged,
            )

    def _trim(self, extent: StreamExtent) -> None:
        if extent.partition in self._store.partitions:
            self._store.trim(self._store.applied_index + 1, extent.partition, extent.start)

    def _give_up(self) -> None:
        if not self._over:
            self._over = True
            self._failed()
