"""The state of a partition's queues as pages: a snapshot has all, a delta those that changed."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from heapq import heapify
from typing import Final

import msgspec

from clustor.streams.changes import StreamExtent
from quantum.broker.errors import SnapshotUnusable
from quantum.broker.queues.commands import QueueSpec
from quantum.broker.queues.lanes import LaneState, LaneTable
from quantum.broker.queues.prepared import PreparedPart
from quantum.broker.queues.queue import BLOCK, Queue, QueueEntry, QueueHead, QueueTotals
from quantum.broker.queues.termini import UNHEARD_MS_MAX, TerminusState, TerminusTable
from quantum.broker.sections import SectionWorld

PAGE_HEAD, PAGE_BLOCK, PAGE_LANE, PAGE_LAST = b"q", b"e", b"l", b"n"
PAGE_TERMINUS: Final = b"t"
PAGE_PREPARED: Final = b"x"
TERMINI_DUE: Final = 0
"""Stands for a queue's number where termini are due."""
TRANSACTIONS_DUE: Final = -1
"""The same of transactions; no queue has this number."""
NUMBER: Final = struct.Struct(">Q")
PLACE: Final = struct.Struct(">QQ")
_UNNAMED: Final = QueueSpec(b"")
_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(QueueHead).decode
_decode_entries = msgspec.msgpack.Decoder(list[QueueEntry]).decode
_decode_lane = msgspec.msgpack.Decoder(LaneState).decode
_decode_terminus = msgspec.msgpack.Decoder(TerminusState).decode
_decode_part = msgspec.msgpack.Decoder(PreparedPart).decode
_decode_last = msgspec.msgpack.Decoder(int).decode


class QueuePages:
    """All queues of one partition, and how they are written down."""

    def __init__(self, world: SectionWorld) -> None:
        self._world = world
        self.queues: dict[bytes, Queue] = {}
        self.totals = QueueTotals()
        self._by_number: dict[int, Queue] = {}
        self._last_number = 0
        self._lanes = LaneTable()
        self._termini = TerminusTable()
        self._prepared: dict[bytes, PreparedPart] = {}
        """Parts of transactions that are not decided, by the transaction."""
        self._due: list[tuple[int, int, int]] = []
        """A heap of (when, queue, message); what is gone by then does no harm."""

    def _head_changed(self, queue: Queue) -> None:
        self._world.page_changed(PAGE_HEAD + NUMBER.pack(queue.number))

    def _block_changed(self, queue: Queue, number: int) -> None:
        self._world.page_changed(PAGE_BLOCK + PLACE.pack(queue.number, number // BLOCK))

    def page_keys(self) -> Iterable[bytes]:
        keys = [PAGE_HEAD + NUMBER.pack(number) for number in self._by_number]
        keys += [PAGE_LANE + lane for lane in self._lanes.lanes]
        keys += [PAGE_TERMINUS + link for link in self._termini.termini]
        keys += [PAGE_PREPARED + transaction for transaction in self._prepared]
        for number, queue in self._by_number.items():
            keys += [PAGE_BLOCK + PLACE.pack(number, block) for block in queue.blocks()]
        if self._last_number:
            keys.append(PAGE_LAST)
        return sorted(keys)

    def page(self, key: bytes) -> bytes | None:
        kind, rest = key[:1], key[1:]
        if kind == PAGE_LAST:
            return _encode(self._last_number) if self._last_number else None
        if kind == PAGE_LANE:
            lane = self._lanes.lanes.get(rest)
            return None if lane is None else _encode(lane)
        if kind == PAGE_TERMINUS:
            terminus = self._termini.termini.get(rest)
            return None if terminus is None else _encode(terminus)
        if kind == PAGE_PREPARED:
            part = self._prepared.get(rest)
            return None if part is None else _encode(part)
        queue = self._by_number.get(NUMBER.unpack_from(rest)[0])
        if queue is None:
            return None
        if kind == PAGE_HEAD:
            return _encode(queue.head())
        entries = queue.block(PLACE.unpack(rest)[1])
        return _encode(entries) if entries else None

    def put_page(self, key: bytes, data: bytes) -> None:
        try:
            self._put_page(key[:1], key[1:], data)
        except (msgspec.DecodeError, struct.error, UnicodeDecodeError, RecursionError) as error:
            raise SnapshotUnusable("a page of queues cannot be read", cause=error) from error

    def _put_page(self, kind: bytes, rest: bytes, data: bytes) -> None:
        if kind == PAGE_LAST:
            self._last_number = _decode_last(data)
        elif kind == PAGE_LANE:
            self._lanes.lanes[rest] = _decode_lane(data)
        elif kind == PAGE_TERMINUS:
            self._termini.put(rest, _decode_terminus(data))
        elif kind == PAGE_PREPARED:
            self._prepared[rest] = _decode_part(data)
        elif kind == PAGE_HEAD:
            self._put_head(_decode_head(data))
        elif kind == PAGE_BLOCK:
            number, block = PLACE.unpack(rest)
            queue = self._placeholder(number)
            self._drop_block(queue, block)
            for entry in _decode_entries(data):
                queue.put(entry)
        else:
            raise SnapshotUnusable("a page of queues that a later release wrote", kind=kind)

    def _put_head(self, head: QueueHead) -> None:
        queue = self._placeholder(head.number)
        self.queues.pop(queue.name, None)
        queue.spec, queue.start, queue.next = head.spec, head.start, head.next
        queue.created_ms, queue.dropped = head.created_ms, head.dropped
        self.queues[queue.name] = queue

    def _placeholder(self, number: int) -> Queue:
        """Return a queue whose head may come behind its messages."""
        queue = self._by_number.get(number)
        if queue is None:
            queue = self._by_number[number] = Queue(number, _UNNAMED, 0, self.totals)
        return queue

    def drop_page(self, key: bytes) -> None:
        kind, rest = key[:1], key[1:]
        if kind == PAGE_LANE:
            self._lanes.lanes.pop(rest, None)
        elif kind == PAGE_TERMINUS:
            self._termini.forget(rest)
        elif kind == PAGE_PREPARED:
            self._prepared.pop(rest, None)
        elif kind == PAGE_HEAD:
            queue = self._by_number.pop(NUMBER.unpack(rest)[0], None)
            if queue is not None:
                queue.close_all()
                if self.queues.get(queue.name) is queue:
                    del self.queues[queue.name]
        elif kind == PAGE_BLOCK:
            number, block = PLACE.unpack(rest)
            queue = self._by_number.get(number)
            if queue is not None:
                self._drop_block(queue, block)

    def _drop_block(self, queue: Queue, block: int) -> None:
        for entry in queue.block(block):
            queue.close(entry.number)

    def restored(self) -> None:
        staged: dict[int, list[QueueEntry]] = {}
        locked: dict[int, list[int]] = {}
        for part in self._prepared.values():
            for number, entries in part.staged:
                staged.setdefault(number, []).extend(entries)
            for number, said in part.settles:
                locked.setdefault(number, []).extend(each.number for each in said)
        for number, queue in self._by_number.items():
            queue.rebuild(staged.get(number, []), locked.get(number, ()))
        self._due = [
            (entry.expires_ms, number, entry.number)
            for number, queue in self._by_number.items()
            for entry in queue.live.values()
            if entry.expires_ms
        ]
        oldest = self._termini.oldest()
        if oldest is not None:
            self._due.append((oldest[0] + UNHEARD_MS_MAX, TERMINI_DUE, 0))
        self._due += [(part.due_ms, TRANSACTIONS_DUE, 0) for part in self._prepared.values()]
        heapify(self._due)

    def stream_extents(self) -> Iterator[StreamExtent]:
        for _, queue in sorted(self._by_number.items()):
            yield StreamExtent(queue.file_id, queue.start, queue.next)
