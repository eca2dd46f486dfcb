"""Key rings in files: made once for a data directory, read by everything that opens a log."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from clustor.log.errors import KeyUnavailable
from clustor.log.keyfile import (
    KeyRingFile,
    WrappedKey,
    decode_keyring,
    encode_keyring,
    kek_fingerprint,
    open_keyring,
    unwrap_key,
    wrap_key,
)
from clustor.log.keys import KEY_BYTES, KeyRing
from clustor.log.types import DekEpoch
from clustor.runtime.keys.kek_source import ReadKek, kek_in_file

KEYS_DIRECTORY = "keys"
KEYRING_FILE = "keyring.json"
KEK_FILE = "kek.key"
STAGED_FILE = "staged.json"


class StagedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key that every node must know before any node encrypts with it."""

    epoch: int
    wrapped: str  # hex, under the ring's KEK
    activates_at_ms: int | None = None
    """From when on it encrypts; None: not every node has it yet."""
    mac_epoch: int = 0
    """Of the key that seals segments from then on; 0: it stays the same."""
    mac_wrapped: str = ""


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


def load_keyring(
    directory: Path, key_file: Path | None = None, *, read_kek: ReadKek | None = None
) -> KeyRing:
    """Open a directory's ring with the KEK beside it, in `key_file`, or from elsewhere."""
    try:
        ring = decode_keyring((directory / KEYRING_FILE).read_bytes())
    except OSError as error:
        raise KeyUnavailable(f"cannot read {error.filename}: {error.strerror}") from error
    kek = (read_kek or kek_in_file(key_file or directory / KEK_FILE))()
    keys = open_keyring(ring, kek)
    staged = read_staged(directory)
    if staged is not None and staged.epoch > keys.dek_epoch:
        keys.stage_dek(DekEpoch(staged.epoch), unwrap_staged(staged, kek))
    return keys


def read_staged(directory: Path) -> StagedFile | None:
    """Read the key that is going to be activated, if there is one."""
    path = directory / STAGED_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=StagedFile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise KeyUnavailable("cannot read the staged key", file=str(path)) from error


def unwrap_staged_mac(staged: StagedFile, kek: bytes) -> bytes:
    """Open the MAC key that comes with a staged key, or raise KeyUnavailable."""
    return unwrap_key(kek, WrappedKey(staged.mac_epoch, staged.mac_wrapped))


def unwrap_staged(staged: StagedFile, kek: bytes) -> bytes:
    """Open a staged key, or raise KeyUnavailable."""
    return unwrap_key(kek, WrappedKey(staged.epoch, staged.wrapped))


def newest_store(root: Path) -> Path:
    """Return the key store of a cluster's directory whose ring is furthest: a new node gets it.

    Nodes take granted keys by themselves; the cluster's own store learns only of those that an
    operator made. Raises KeyUnavailable where there is none.
    """
    stores = [root / KEYS_DIRECTORY, *sorted(root.glob(f"node-*/{KEYS_DIRECTORY}"))]
    found = [each for each in stores if (each / KEYRING_FILE).is_file()]
    if not found:
        raise KeyUnavailable("no key ring in this directory", directory=str(root))
    return max(found, key=_newest_epoch)


def _newest_epoch(store: Path) -> int:
    return max(each.epoch for each in decode_keyring((store / KEYRING_FILE).read_bytes()).deks)


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
