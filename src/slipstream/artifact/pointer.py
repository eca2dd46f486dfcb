"""The pointer object: the manifest that is published, and a nonce.

The nonce is there for stores whose version of an object is a digest of its bytes (S3's ETag is
an MD5): if the same bytes were published again, a writer that saw the first of them would take
the second for it, and its stale condition would pass.
"""

from __future__ import annotations

import msgspec

from slipstream.artifact.manifest import ExportManifest
from slipstream.errors import ArtifactInvalid
from slipstream.protocol import PointerAbsent, PointerPresent, PointerState


class PointerRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bytes of a pointer: `manifest` is the encoded manifest, letter by letter."""

    nonce: str
    manifest: str


def encode_pointer(manifest: bytes, nonce: str) -> bytes:
    """Give a pointer's bytes."""
    return msgspec.json.encode(PointerRecord(nonce, manifest.decode()))


def decode_pointer(raw: bytes) -> tuple[bytes, ExportManifest]:
    """Give the manifest, encoded and read; raises `ArtifactInvalid`."""
    try:
        record = msgspec.json.decode(raw, type=PointerRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtifactInvalid("the pointer cannot be read", cause=str(error)) from error
    encoded = record.manifest.encode()
    return encoded, ExportManifest.decode(encoded)


def pointer_state(raw: bytes | None) -> PointerState:
    """Say what a swap observed, in the words of the guard."""
    if raw is None:
        return PointerAbsent()
    try:
        return PointerPresent(decode_pointer(raw)[1].rank)
    except ArtifactInvalid:
        return PointerPresent(None)
