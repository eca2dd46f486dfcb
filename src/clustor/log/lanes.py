"""CRC lanes: four CRC32C over every fourth word of a byte stream (clustor §7.1, ruling C4)."""

from __future__ import annotations

import struct

import numpy as np
from crc32c import crc32c

LANES_BYTES = 16
_FOUR_WORDS = 16
# numpy costs microseconds a call, so small pieces wait for company; and what is folded at once
# should stay in the cache.
_FOLD_BYTES = 65_536


class CrcLanes:
    """Fold a stream into its lanes, whatever the pieces in which it arrives."""

    __slots__ = ("_crcs", "_waiting", "_waiting_bytes")

    def __init__(self) -> None:
        self._crcs = [0, 0, 0, 0]
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def update(self, pieces: list[bytes]) -> None:
        """Append pieces to the stream."""
        waiting = self._waiting
        for piece in pieces:
            waiting.append(piece)
            self._waiting_bytes += len(piece)
            if self._waiting_bytes >= _FOLD_BYTES:
                self._fold()
                waiting = self._waiting

    def packed(self) -> bytes:
        """Return the 16 bytes for the stream so far: lane 0 to lane 3, little-endian."""
        self._fold()
        tail = b"".join(self._waiting)
        tail += bytes(-len(tail) % 4)
        crcs = list(self._crcs)
        for lane in range(len(tail) // 4):
            crcs[lane] = crc32c(tail[lane * 4 : lane * 4 + 4], crcs[lane])
        return struct.pack("<4I", *crcs)

    def _fold(self) -> None:
        """Fold the whole rows of four words that wait; fewer than 16 bytes stay behind."""
        stream = b"".join(self._waiting)
        rows = len(stream) // _FOUR_WORDS
        if rows:
            words = np.frombuffer(stream, dtype="<u4", count=rows * 4).reshape(rows, 4)
            for lane in range(4):
                column = np.ascontiguousarray(words[:, lane]).data
                self._crcs[lane] = crc32c(column, self._crcs[lane])
        rest = stream[rows * _FOUR_WORDS :]
        self._waiting = [rest]
        self._waiting_bytes = len(rest)
