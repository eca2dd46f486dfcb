"""A small machine with streams for the simulator, and the book of what it appended.

Every append that any replica applies is written down here; whatever a replica's files hold, now or
after any crash, must be just that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from xxhash import xxh3_128_digest

from clustor.sim.errors import PromiseBroken
from clustor.sim.judge import GroupJudge
from clustor.streams import (
    StoredBatch,
    StreamAppend,
    StreamChange,
    StreamDefine,
    StreamExtent,
    StreamRemove,
    StreamTrim,
)

REFUSED: Final = b"refused"


class SimStreamCommand(msgspec.Struct, array_like=True, frozen=True):
    """What a client asks: `request` makes its bytes unlike those of any other."""

    request: int
    kind: str  # define, append, trim, remove
    partition: int
    number: int = 0  # how many records, or where to trim to by thousandths of what there is
    payload: bytes = b""


_COMMAND: Final = msgspec.msgpack.Decoder(SimStreamCommand)


class _State(msgspec.Struct, array_like=True):
    applied_index: int
    extents: dict[int, list[int]]
    ended: list[int]


_STATE: Final = msgspec.msgpack.Decoder(_State)


def encode_stream_command(command: SimStreamCommand) -> bytes:
    return msgspec.msgpack.encode(command)


@dataclass(frozen=True, slots=True)
class RecordAppended:
    """One batch as it was decided."""

    first: int
    count: int
    timestamp: int
    payload: bytes


class StreamBook:
    """What was appended in one group, by whoever applied it first."""

    def __init__(self) -> None:
        self.batches: dict[int, dict[int, RecordAppended]] = {}
        self.decided: dict[int, int] = {}  # request → first index

    def on_append(self, request: int, change: StreamAppend) -> None:
        batch = RecordAppended(change.first, change.count, change.timestamp, change.payload)
        known = self.batches.setdefault(change.partition, {})
        if known.setdefault(change.first, batch) != batch:
            raise PromiseBroken(f"offset {change.first} of {change.partition} was given twice")
        if self.decided.setdefault(request, change.first) != change.first:
            raise PromiseBroken(f"request {request} was appended twice")

    def check(
        self, partition: int, from_index: int, until: int | None, found: Iterable[StoredBatch]
    ) -> int:
        """What was read is what was appended, without a gap, up to `until`; return its end."""
        known = self.batches.get(partition, {})
        index = from_index
        for batch in found:
            expected = known.get(batch.first_index)
            seen = RecordAppended(batch.first_index, batch.count, batch.timestamp, batch.payload)
            if seen != expected:
                raise PromiseBroken(f"{partition} at {batch.first_index}: {seen} for {expected}")
            if batch.first_index > index:
                raise PromiseBroken(f"{partition} has a gap from {index} to {batch.first_index}")
            index = batch.next_index
        if until is not None and index < until:
            raise PromiseBroken(f"{partition} ends at {index}, not at {until}")
        return index


class SimStreamMachine:
    """Partitions with a first and a next index; what they hold is in the replica's files."""

    def __init__(self, judge: GroupJudge | None = None, book: StreamBook | None = None) -> None:
        self._judge = judge
        self._book = book
        self._state = _State(0, {}, [])
        self._changes: list[StreamChange] = []
        self._marks: list[int] = []

    @property
    def applied_index(self) -> int:
        return self._state.applied_index

    def apply_batch(self, index: int, commands: Sequence[bytes]) -> list[bytes]:
        previous = self._state.applied_index
        replies = [self._apply(_COMMAND.decode(command)) for command in commands]
        self._state.applied_index = index
        if self._judge is not None:
            self._judge.on_apply(index, previous, commands, replies, self.digest())
        return replies

    def _apply(self, command: SimStreamCommand) -> bytes:
        state, partition = self._state, command.partition
        extent = state.extents.get(partition)
        if command.kind == "define":
            if extent is not None or partition in state.ended:
                return REFUSED
            state.extents[partition] = [0, 0]
            self._changes.append(StreamDefine(partition))
            return b"defined"
        if extent is None:
            return REFUSED
        match command.kind:
            case "append":
                change = StreamAppend(
                    partition, extent[1], command.number, command.request, command.payload
                )
                extent[1] += command.number
                self._changes.append(change)
                if self._book is not None:
                    self._book.on_append(command.request, change)
                return b"%d" % change.first
            case "trim":
                start = extent[0] + (extent[1] - extent[0]) * command.number // 1000
                extent[0] = start
                self._changes.append(StreamTrim(partition, start))
                return b"trimmed"
            case _:
                del state.extents[partition]
                state.ended.append(partition)
                self._changes.append(StreamRemove(partition))
                return b"removed"

    def take_stream_changes(self) -> list[StreamChange]:
        changes, self._changes = self._changes, []
        return changes

    def stream_extents(self) -> Iterable[StreamExtent]:
        return [StreamExtent(at, *extent) for at, extent in self._state.extents.items()]

    def snapshot(self) -> Iterator[bytes]:
        return iter((msgspec.msgpack.encode(self._state),))

    def restore(self, chunks: Iterable[bytes]) -> None:
        self._state = _STATE.decode(b"".join(chunks))
        self._changes = []
        if self._judge is not None:
            self._judge.on_restore(self.applied_index, self.digest())

    # Its deltas are whole states: what is tried is the chain, not the saving.

    def mark(self, base_index: int) -> None:
        self._marks = [*self._marks[-3:], base_index]

    def delta(self, base_index: int) -> Iterator[bytes] | None:
        return self.snapshot() if base_index in self._marks else None

    def restore_delta(self, chunks: Iterable[bytes]) -> None:
        self.restore(chunks)

    def digest(self) -> bytes:
        return xxh3_128_digest(msgspec.msgpack.encode(self._state))
