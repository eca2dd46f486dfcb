"""The keys of a node's audit log: one that signs, and the public halves of all that ever did.

keys/audit.key         the private key that signs now, as hex
keys/audit-keys.json   public keys with their times: what a verifier trusts. Keep a copy elsewhere
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.log.errors import KeyUnavailable
from clustor.runtime.data_directory import write_durably
from clustor.runtime.keys.snapshot_key import public_hex
from clustor.security import KeyId, TrustedKey, key_id_of

AUDIT_KEY_FILE: Final = "audit.key"
AUDIT_KEYS_FILE: Final = "audit-keys.json"
OVERLAP_MS: Final = 30 * 86_400_000
"""How long an old key still counts after its successor began to sign (clustor §12.4)."""

_HexKey = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]


class PublicKeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key that a verifier trusts."""

    public_key: _HexKey
    activates_at_ms: int
    retires_at_ms: int | None = None


class AuditKeysFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `audit-keys.json` says, oldest key first."""

    keys: tuple[PublicKeyEntry, ...]
    format_version: int = 1


@dataclass(frozen=True, slots=True)
class AuditKeys:
    """The key that signs, and those whose seals count."""

    signer: Ed25519PrivateKey
    trusted: dict[KeyId, TrustedKey]


def open_audit_keys(directory: Path, now_ms: int) -> AuditKeys:
    """Return the keys of a node, made where it never had any. Raises KeyUnavailable.

    What an interrupted rotation left is finished: the key that signs is trusted, and the ones
    before it have an end.
    """
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    path = directory / AUDIT_KEY_FILE
    known = read_audit_keys(directory / AUDIT_KEYS_FILE) if _has(directory) else ()
    if not path.exists():
        if known:
            raise KeyUnavailable("the audit log's signing key is gone", file=str(path))
        signer = Ed25519PrivateKey.generate()
        # The public half goes first: a seal of an unknown key would be worse than an unused key.
        _write(directory, (PublicKeyEntry(public_hex(signer), now_ms),))
        write_durably(path, signer.private_bytes_raw().hex().encode() + b"\n")
        return AuditKeys(signer, load_trusted(directory / AUDIT_KEYS_FILE))
    signer = _load(path)
    if public_hex(signer) not in {entry.public_key for entry in known}:
        raise KeyUnavailable("the signing key is not among the trusted ones", file=str(path))
    _end_older(directory, known, signer, now_ms)
    return AuditKeys(signer, load_trusted(directory / AUDIT_KEYS_FILE))


def rotate_audit_key(directory: Path, now_ms: int) -> AuditKeys:
    """Begin a new key; the old one counts for `OVERLAP_MS` more. Whoever signs must reopen.

    Each step is durable before the next: first the new key is trusted, then it signs, then the
    old one gets its end.
    """
    open_audit_keys(directory, now_ms)
    known = read_audit_keys(directory / AUDIT_KEYS_FILE)
    signer = Ed25519PrivateKey.generate()
    known = (*known, PublicKeyEntry(public_hex(signer), now_ms))
    _write(directory, known)
    write_durably(directory / AUDIT_KEY_FILE, signer.private_bytes_raw().hex().encode() + b"\n")
    _end_older(directory, known, signer, now_ms)
    return AuditKeys(signer, load_trusted(directory / AUDIT_KEYS_FILE))


def read_audit_keys(path: Path) -> tuple[PublicKeyEntry, ...]:
    """Read the public keys; raises KeyUnavailable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=AuditKeysFile).keys
    except OSError as error:
        raise KeyUnavailable("cannot read the audit log's public keys", file=str(path)) from error
    except msgspec.MsgspecError as error:
        raise KeyUnavailable("not a list of audit keys", file=str(path), cause=error) from error


def load_trusted(path: Path) -> dict[KeyId, TrustedKey]:
    """Return what a verifier trusts."""
    trusted: dict[KeyId, TrustedKey] = {}
    for entry in read_audit_keys(path):
        public = bytes.fromhex(entry.public_key)
        key = TrustedKey(public, entry.activates_at_ms, entry.retires_at_ms)
        trusted[key_id_of(public)] = key
    return trusted


def _has(directory: Path) -> bool:
    return (directory / AUDIT_KEYS_FILE).exists()


def _end_older(
    directory: Path, known: tuple[PublicKeyEntry, ...], signer: Ed25519PrivateKey, now_ms: int
) -> None:
    mine = public_hex(signer)
    place = [entry.public_key for entry in known].index(mine)
    ended = tuple(
        msgspec.structs.replace(entry, retires_at_ms=now_ms + OVERLAP_MS)
        if number < place and entry.retires_at_ms is None
        else entry
        for number, entry in enumerate(known)
    )
    if ended != known:
        _write(directory, ended)


def _write(directory: Path, keys: tuple[PublicKeyEntry, ...]) -> None:
    content = rfc8785.dumps(msgspec.to_builtins(AuditKeysFile(keys)))
    write_durably(directory / AUDIT_KEYS_FILE, content + b"\n", 0o644)


def _load(path: Path) -> Ed25519PrivateKey:
    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text().strip()))
    except (OSError, ValueError) as error:
        raise KeyUnavailable("cannot read the audit log's key", file=str(path)) from error
