"""How a snapshot travels: the receiver asks, the sender answers, piece by piece.

These messages go beside the group's own, over a stream of their own. A lost one is asked for
again; an answer that nobody waits for is ignored.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


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


Transfer: TypeAlias = ManifestWanted | ManifestSent | ChunkWanted | ChunkSent

_DECODER = msgspec.msgpack.Decoder(Transfer)


def encode_transfer(message: Transfer) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_transfer(data: bytes) -> Transfer:
    """Raises msgspec.DecodeError (or its ValidationError) for anything else."""
    found: Transfer = _DECODER.decode(data)
    return found
