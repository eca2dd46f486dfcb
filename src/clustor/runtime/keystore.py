"""Key rings in files: made once for a data directory, read by everything that opens a log."""

from __future__ import annotations

import os
from pathlib import Path

from clustor.log.errors import KeyUnavailable
from clustor.log.keyfile import (
    KeyRingFile,
    decode_keyring,
    encode_keyring,
    kek_fingerprint,
    open_keyring,
    parse_kek,
    wrap_key,
)
from clustor.log.keys import KEY_BYTES, KeyRing

KEYS_DIRECTORY = "keys"
KEYRING_FILE = "keyring.json"
KEK_FILE = "kek.key"


def create_keyring(data: Path) -> KeyRing:
    """Make the keys of a new data directory. What is already there is never replaced."""
    directory = data / KEYS_DIRECTORY
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    kek = os.urandom(KEY_BYTES)
    ring = KeyRingFile(
        kek_version=1,
        kek_fingerprint=kek_fingerprint(kek),
        deks=(wrap_key(kek, 1, os.urandom(KEY_BYTES)),),
        macs=(wrap_key(kek, 1, os.urandom(KEY_BYTES)),),
    )
    # The KEK goes first: a ring that nothing opens would be worse than a KEK without a ring.
    _write_new(directory / KEK_FILE, kek.hex().encode() + b"\n")
    _write_new(directory / KEYRING_FILE, encode_keyring(ring))
    _sync_directory(directory)
    _sync_directory(data)
    return open_keyring(ring, kek)


def load_keyring(directory: Path, key_file: Path | None = None) -> KeyRing:
    """Open the ring in `directory` with its own KEK or the one in `key_file`."""
    kek_path = key_file or directory / KEK_FILE
    try:
        ring = decode_keyring((directory / KEYRING_FILE).read_bytes())
        kek = parse_kek(kek_path.read_text(encoding="ascii", errors="replace"))
    except OSError as error:
        raise KeyUnavailable(f"cannot read {error.filename}: {error.strerror}") from error
    return open_keyring(ring, kek)


def find_keyring(path: Path) -> Path:
    """Find the keys that belong to a log: in its directory or in the nearest one above it."""
    start = path.resolve()
    for directory in (start, *start.parents):
        if (directory / KEYS_DIRECTORY / KEYRING_FILE).is_file():
            return directory / KEYS_DIRECTORY
        if (directory / KEYRING_FILE).is_file():
            return directory
    raise KeyUnavailable("no key ring in this directory or above it", directory=str(path))


def _write_new(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
