"""The key with which a node signs its snapshots: made once, kept beside its key ring."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.log.errors import KeyUnavailable
from clustor.runtime.data_directory import write_durably

SIGNER_FILE: Final = "signer.key"
_KEY_BYTES: Final = 32


def create_signer(directory: Path) -> Ed25519PrivateKey:
    """Make the key. What is already there is never replaced."""
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    path = directory / SIGNER_FILE
    if path.exists():
        raise KeyUnavailable("it is there already", file=str(path))
    signer = Ed25519PrivateKey.generate()
    write_durably(path, signer.private_bytes_raw().hex().encode() + b"\n")
    return signer


def load_signer(directory: Path) -> Ed25519PrivateKey:
    """Read the key, or raise KeyUnavailable."""
    path = directory / SIGNER_FILE
    try:
        raw = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise KeyUnavailable("cannot read the signing key", file=str(path)) from error
    if len(raw) != _KEY_BYTES:
        raise KeyUnavailable("not a signing key", file=str(path))
    return Ed25519PrivateKey.from_private_bytes(raw)


def public_hex(signer: Ed25519PrivateKey) -> str:
    """Return the public half, as `cluster.json` keeps it."""
    return signer.public_key().public_bytes_raw().hex()
