"""What was flushed and is still kept in memory, for who reads the newest: bounded, oldest out.

A consumer that keeps up never touches the disk. The bound is one for all groups of a node; each
partition has a bound of its own within it, so that one busy stream does not push all others out.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from clustor.streams.files import StreamFiles
from clustor.streams.piece import BatchPiece


@dataclass(slots=True)
class StreamMemory:
    """How much the groups of one node keep together; they share this object."""

    window_bytes_max: int = 64 << 20
    window_bytes: int = 0


class StreamWindow:
    """The pieces of one store that are kept though they are on the disk."""

    def __init__(self, memory: StreamMemory, partition_bytes_max: int) -> None:
        self._memory = memory
        self._partition_bytes_max = partition_bytes_max
        self._held: OrderedDict[int, tuple[StreamFiles, int]] = OrderedDict()

    def add(self, files: StreamFiles, piece: BatchPiece) -> None:
        """Keep the newest of a piece that the disk has, behind what is kept of its partition."""
        kept = piece.newest(self._partition_bytes_max)
        if kept is not piece:
            self.drop(files)  # what stood before it does not join it
        if not kept:
            return
        pieces, size = (*files.window, kept), self._size_of(files) + kept.size_bytes
        while size > self._partition_bytes_max and len(pieces) > 1:
            size -= pieces[0].size_bytes
            pieces = pieces[1:]
        self._keep(files, pieces, size)
        while self._memory.window_bytes > self._memory.window_bytes_max and self._held:
            self.drop(next(iter(self._held.values()))[0])

    def drop(self, files: StreamFiles) -> None:
        """Keep nothing of a partition."""
        _, size = self._held.pop(files.partition, (files, 0))
        self._memory.window_bytes -= size
        files.window = ()

    def close(self) -> None:
        """Keep nothing of this store."""
        for files, _ in list(self._held.values()):
            self.drop(files)

    def _keep(self, files: StreamFiles, pieces: tuple[BatchPiece, ...], size: int) -> None:
        self._memory.window_bytes += size - self._size_of(files)
        files.window = pieces
        self._held[files.partition] = (files, size)
        self._held.move_to_end(files.partition)

    def _size_of(self, files: StreamFiles) -> int:
        return self._held.get(files.partition, (files, 0))[1]
