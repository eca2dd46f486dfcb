"""Why no nonce seals two plaintexts, whatever crashes, is rewritten or is compacted.

A nonce is `(writer_seq, block_counter)` under a key that belongs to one partition of one store.

- A start writes the next *incarnation* durably into the store's record, by a rename, before it
  plans anything else. Two starts therefore never share an incarnation, even when the first one's
  files were lost, torn or half written.
- `writer_seq` is `incarnation << 32 | n`, and `n` counts up in memory. Each writer draws its own:
  one for all appends of this start, one for every key compaction.
- A writer's counter only counts up. Nobody continues another's counter, and a writer is never
  taken up again: what is rewritten is sealed anew by a new one.

So nothing about nonces has to be reserved, given up, or read back from a damaged file. A store
that is wiped draws a new random id, and with it new keys.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from clustor.streams.errors import StreamMisuse
from clustor.streams.types import FileSeq, WriterSeq

INCARNATION_MAX: Final = 2**32 - 1
_PER_INCARNATION: Final = 2**32


class Sequences:
    """Numbers that no other start and no earlier call has handed out."""

    def __init__(self, incarnation: int) -> None:
        if not 0 < incarnation <= INCARNATION_MAX:
            raise StreamMisuse("no such incarnation", incarnation=incarnation)
        self._base = incarnation << 32
        # A counter of the interpreter's own: no two threads are ever given the same number.
        self._numbers = count()

    def _draw(self) -> int:
        number = next(self._numbers)
        if number >= _PER_INCARNATION:
            raise StreamMisuse("this start has used up its numbers: start anew")
        return self._base | number

    def file_seq(self) -> FileSeq:
        """Draw a number for a file name."""
        return FileSeq(self._draw())

    def writer(self) -> Writer:
        """Draw a writer, with all of its counters unused."""
        return Writer(WriterSeq(self._draw()))


class Writer:
    """Hands out each of its counters once."""

    __slots__ = ("_next_counter", "writer_seq")

    def __init__(self, writer_seq: WriterSeq) -> None:
        self.writer_seq = writer_seq
        self._next_counter = 0

    def take_counter(self) -> int:
        counter = self._next_counter
        self._next_counter += 1
        return counter
