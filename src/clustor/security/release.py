"""Is what runs here what was released (quantumqtt §9.7)? Pure: a manifest, keys and digests in.

A release manifest names every file of the packages with its SHA-256; the ReleaseAutomationKey
signs it. What an old key signed in its time stays believed: its private half is destroyed when
that time ends, so nobody dates a manifest back with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PURPOSE: Final = b"ReleaseAutomationKey\0"
_SHOWN_MAX: Final = 5


class ReleaseManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: str
    released_at_ms: int
    files: dict[str, str]
    """Paths below the packages' directory, and the SHA-256 of each, in hex."""


class ReleaseKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A public key that releases are believed for, and its time."""

    key_id: str
    public_key: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    activates_at_ms: int
    retires_at_ms: int | None = None

    def covers(self, at_ms: int) -> bool:
        ended = self.retires_at_ms is not None and at_ms >= self.retires_at_ms
        return at_ms >= self.activates_at_ms and not ended


class SignedRelease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    manifest: ReleaseManifest
    key_id: str
    signature: bytes


def release_bytes(manifest: ReleaseManifest) -> bytes:
    """Return what a release's signature covers."""
    return PURPOSE + msgspec.json.encode(manifest, order="sorted")


def judge_release(
    release: SignedRelease, keys: Iterable[ReleaseKey], found: Mapping[str, str]
) -> str:
    """Say what is wrong with the files that were found; empty: they are the release."""
    manifest = release.manifest
    key = next((each for each in keys if each.key_id == release.key_id), None)
    if key is None:
        return f"no release key is called {release.key_id}"
    if not key.covers(manifest.released_at_ms):
        return f"the key {key.key_id} was not in force when this was released"
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.public_key))
        public.verify(release.signature, release_bytes(manifest))
    except (InvalidSignature, ValueError):
        return f"the signature is not of the key {key.key_id}"
    return _differences(manifest.files, found)


def _differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> str:
    changed = [name for name in wanted.keys() & found.keys() if wanted[name] != found[name]]
    kinds = {
        "changed": sorted(changed),
        "missing": sorted(wanted.keys() - found.keys()),
        "added": sorted(found.keys() - wanted.keys()),
    }
    return "; ".join(
        f"{kind}: {', '.join(names[:_SHOWN_MAX])}{' …' if len(names) > _SHOWN_MAX else ''}"
        for kind, names in kinds.items()
        if names
    )
