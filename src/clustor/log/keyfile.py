"""A key ring at rest: root keys wrapped under a key-encryption key (AES key wrap, RFC 3394).

keyring.json   epochs with their wrapped keys, and the fingerprint of the KEK that opens them
kek.key        the KEK itself as 64 hex digits; in production it lives elsewhere
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import rfc8785
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from clustor.log.errors import ChecksumMismatch, KeyUnavailable, UnsupportedFormat
from clustor.log.keys import KEY_BYTES, KeyRing
from clustor.log.types import DekEpoch, MacEpoch


class WrappedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One root key under the KEK."""

    epoch: int
    wrapped: str  # hex


class KeyRingFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `keyring.json` says. Epochs stand in rising order."""

    kek_version: int
    kek_fingerprint: str
    deks: tuple[WrappedKey, ...]
    macs: tuple[WrappedKey, ...]
    format_version: int = 1


def wrap_key(kek: bytes, epoch: int, root: bytes) -> WrappedKey:
    """Wrap a root key for keeping."""
    return WrappedKey(epoch, aes_key_wrap(kek, root).hex())


def kek_fingerprint(kek: bytes) -> str:
    """Name a KEK without giving it away."""
    return hashlib.sha256(b"clustor kek fingerprint" + kek).hexdigest()[:16]


def encode_keyring(ring: KeyRingFile) -> bytes:
    members: dict[str, Any] = msgspec.to_builtins(ring)
    return rfc8785.dumps(members) + b"\n"


def decode_keyring(data: bytes) -> KeyRingFile:
    """Raises ChecksumMismatch for a file that is no key ring, UnsupportedFormat for a later one."""
    try:
        ring = msgspec.json.decode(data, type=KeyRingFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ChecksumMismatch("keyring.json cannot be read") from error
    if ring.format_version != 1:
        raise UnsupportedFormat("a key ring of a later release", version=ring.format_version)
    return ring


def parse_kek(text: str) -> bytes:
    """Read a KEK from its 64 hex digits. The message never repeats what was given."""
    try:
        kek = bytes.fromhex(text.strip())
    except ValueError:
        kek = b""
    if len(kek) != KEY_BYTES:
        raise KeyUnavailable("a key file holds 64 hex digits")
    return kek


def open_keyring(ring: KeyRingFile, kek: bytes) -> KeyRing:
    """Unwrap every key. Raises KeyUnavailable with the wrong KEK."""
    if kek_fingerprint(kek) != ring.kek_fingerprint:
        raise KeyUnavailable(
            "this key file does not open this key ring",
            wanted=ring.kek_fingerprint,
            given=kek_fingerprint(kek),
        )
    keys = KeyRing()
    for wrapped in ring.deks:
        keys.add_dek(DekEpoch(wrapped.epoch), unwrap_key(kek, wrapped))
    for wrapped in ring.macs:
        keys.add_mac(MacEpoch(wrapped.epoch), unwrap_key(kek, wrapped))
    return keys


def unwrap_key(kek: bytes, wrapped: WrappedKey) -> bytes:
    """Open a root key, or raise KeyUnavailable."""
    try:
        return aes_key_unwrap(kek, bytes.fromhex(wrapped.wrapped))
    except (InvalidUnwrap, ValueError) as error:
        raise KeyUnavailable("a wrapped key is damaged", epoch=wrapped.epoch) from error
