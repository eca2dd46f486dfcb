"""Signatures of the control plane, and the registry of the keys that make them (clustor §12.4).

The leader signs before it proposes, and every replica verifies with the keys of its own state:
the private key is not part of the machine, and a replay verifies as the first run did.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, ClassVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from clustor.control.calls import Command
from clustor.control.draft import Draft, DraftReading, Refuse, find
from clustor.control.objects import ControlObject, canonical, key_of
from clustor.control.rbac import CallerAuthority
from clustor.control.types import Count, Digest, KeyPurpose, Name, RefusalCode
from clustor.kv import Key


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    key_id: Name
    signature: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]


class SigningKey(ControlObject, frozen=True, kw_only=True):
    """A public key with its purpose and its time; keys of one purpose may overlap."""

    PREFIX: ClassVar[str] = "key/"
    purpose: KeyPurpose
    key_id: Name
    public_key: Digest
    activates_at: Count
    retires_at: Count | None = None

    def key(self) -> Key:
        return key_of(SigningKey, self.purpose.value, self.key_id)

    def is_active(self, now_ms: int) -> bool:
        retired = self.retires_at is not None and now_ms >= self.retires_at
        return now_ms >= self.activates_at and not retired


def signed_bytes(purpose: KeyPurpose, content: object) -> bytes:
    """Return what a signature of this purpose covers: no two purposes share a byte string."""
    return purpose.value.encode() + b"\0" + canonical(content)


def sign(
    private_key: Ed25519PrivateKey, key_id: str, purpose: KeyPurpose, content: object
) -> Signature:
    signature = private_key.sign(signed_bytes(purpose, content))
    return Signature(key_id=key_id, signature=signature)


@lru_cache(maxsize=256)
def _public_key(raw: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(raw)


def verifies(
    store: DraftReading, purpose: KeyPurpose, content: object, signature: Signature, signed_at: int
) -> bool:
    """Say whether a registered key of this purpose, active at `signed_at`, made the signature."""
    held = find(store, SigningKey, purpose.value, signature.key_id)
    if held is None or not held.is_active(signed_at):
        return False
    try:
        _public_key(held.public_key).verify(signature.signature, signed_bytes(purpose, content))
    except InvalidSignature:
        return False
    return True


def require_signature(
    draft: Draft, purpose: KeyPurpose, content: object, signature: Signature
) -> None:
    if not verifies(draft.store, purpose, content, signature, draft.now_ms):
        raise Refuse(
            RefusalCode.BAD_SIGNATURE,
            "no active key of the registry made this signature",
            purpose=purpose.value,
            key_id=signature.key_id,
        )


class RegisterKey(Command, frozen=True, kw_only=True):
    """Add a public key to the registry; it overlaps the older ones until they are retired."""

    purpose: KeyPurpose
    key_id: Name
    public_key: Digest
    activates_at: Count = 0


class RetireKey(Command, frozen=True, kw_only=True):
    """End a key's time. The last active key of a purpose stays until another one is active."""

    purpose: KeyPurpose
    key_id: Name
    retires_at: Count


def on_register_key(
    draft: Draft, _authority: CallerAuthority, command: RegisterKey
) -> dict[str, Any]:
    draft.absent(SigningKey, command.purpose.value, command.key_id)
    try:
        Ed25519PublicKey.from_public_bytes(command.public_key)
    except ValueError as error:
        raise Refuse(RefusalCode.INVALID, "not an Ed25519 public key") from error
    draft.put(
        SigningKey(
            purpose=command.purpose,
            key_id=command.key_id,
            public_key=command.public_key,
            activates_at=command.activates_at,
        )
    )
    return {"key_id": command.key_id}


def on_retire_key(draft: Draft, _authority: CallerAuthority, command: RetireKey) -> dict[str, Any]:
    held = draft.need(SigningKey, command.purpose.value, command.key_id)
    others = [
        each
        for each in draft.scan(SigningKey, command.purpose.value)
        if each.key_id != command.key_id and each.is_active(command.retires_at)
    ]
    if not others:
        raise Refuse(RefusalCode.IN_USE, "register its successor first", key_id=command.key_id)
    draft.put(msgspec.structs.replace(held, retires_at=command.retires_at))
    return {"retires_at": command.retires_at}
