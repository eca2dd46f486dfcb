"""How a snapshot travels: the receiver asks, the sender answers, piece by piece.

These messages go beside the group's own, over a stream of their own. A lost one is asked for
again; an answer that nobody waits for is ignored.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from clustor.streams.metadata import NOT_COMPACTED, CompactionMark, Definition


class ManifestWanted(msgspec.Struct, frozen=True, tag="manifest?", array_like=True):
    """Send me the manifest of your snapshot at `base_index`."""

    base_index: int


class ManifestSent(msgspec.Struct, frozen=True, tag="manifest", array_like=True):
    """The manifest's bytes; empty when there is no such snapshot (any more)."""

    base_index: int
    manifest: bytes
    parents: tuple[bytes, ...] = ()  # of a delta: the full one's manifest, then the deltas' between


class ChunkWanted(msgspec.Struct, frozen=True, tag="chunk?", array_like=True):
    """Send me one chunk of a manifest that you sent me."""

    manifest_id: str
    chunk_id: str


class ChunkSent(msgspec.Struct, frozen=True, tag="chunk", array_like=True):
    """The chunk as it is on disk, encrypted; empty when it is gone."""

    manifest_id: str
    chunk_id: str
    sealed: bytes


class StreamsWanted(msgspec.Struct, frozen=True, tag="streams?", array_like=True):
    """Send me batches of streams, of each partition from one index until another, about so much."""

    base_index: int  # of the snapshot whose state speaks of them
    wants: tuple[tuple[int, int, int], ...]  # partition, from, until
    bytes_max: int


class StreamPiece(msgspec.Struct, frozen=True, array_like=True):
    """Batches of one partition from `start` on; what was asked for before that is gone."""

    partition: int
    start: int
    floor: int  # the lowest index that may still be read
    table: bytes  # `clustor.streams.runs.ROW` of each batch
    data: bytes
    crc: int  # CRC32C of both
    definition: Definition | None
    next: int = -1  # all that there is below it came; -1: through the last batch
    compacted: CompactionMark = NOT_COMPACTED  # of the files that these were read from


class StreamsSent(msgspec.Struct, frozen=True, tag="streams", array_like=True):
    """Pieces of some of the partitions that were asked for, in that order; none: come again."""

    base_index: int
    pieces: tuple[StreamPiece, ...]

    @property
    def size_bytes(self) -> int:
        return sum(len(piece.table) + len(piece.data) for piece in self.pieces)


Transfer: TypeAlias = (
    ManifestWanted | ManifestSent | ChunkWanted | ChunkSent | StreamsWanted | StreamsSent
)

_DECODER = msgspec.msgpack.Decoder(Transfer)


def encode_transfer(message: Transfer) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_transfer(data: bytes) -> Transfer:
    """Raises msgspec.DecodeError (or its ValidationError) for anything else."""
    found: Transfer = _DECODER.decode(data)
    return found
