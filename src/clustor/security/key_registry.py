"""Which keys there are, whose they are, and how they age (clustor §§12.2, 12.4).

    STAGED ──► ACTIVE ──► DECRYPT_ONLY ──► ZEROIZING ──► ZEROIZED
    every node  it         a newer one      no file       its digest
    learns it   encrypts   encrypts; 48 h   holds it      is on record

A registry is data; it holds no key. It says what a node's key store must look like, and after a
crash `plan_rotation` says again what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from clustor.security.errors import RegistryUnreadable

DAY_MS: Final = 86_400_000
DEK_PERIOD_MS: Final = 604_800_000  # clustor §12.2: weekly
DECRYPT_ONLY_MS: Final = 172_800_000  # and 48 h

_Millis = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]


class KeyUse(StrEnum):
    """What a key is for. Those of §12.4 are spelled as there."""

    DEK = "DataEncryptionKey"
    MAC = "IntegrityMacKey"
    RELEASE_AUTOMATION = "ReleaseAutomationKey"
    CP_RELEASE = "CPReleaseKey"
    CONTROL_PLANE_PROOF = "ControlPlaneProofKey"
    SNAPSHOT_MANIFEST = "SnapshotManifestKey"
    AUDIT_LOG = "AuditLogKey"
    BREAK_GLASS_CA = "BreakGlassTokenCA"


class KeyState(StrEnum):
    STAGED = "Staged"
    ACTIVE = "Active"
    DECRYPT_ONLY = "DecryptOnly"
    ZEROIZING = "Zeroizing"
    ZEROIZED = "Zeroized"


@dataclass(frozen=True, slots=True)
class KeyRule:
    """How keys of one use age; no period: with something else, or when people ask for it."""

    use: KeyUse
    algorithm: str
    owner: str
    period_ms: int | None
    overlap_ms: int
    signs: str


KEY_RULES: Final[dict[KeyUse, KeyRule]] = {
    rule.use: rule
    for rule in (
        KeyRule(KeyUse.DEK, "AES-256-GCM", "node", DEK_PERIOD_MS, DECRYPT_ONLY_MS,
                "log segments and snapshot chunks, each under a key of its own"),
        KeyRule(KeyUse.MAC, "HMAC-SHA256", "node", None, DECRYPT_ONLY_MS, "sealed segments"),
        KeyRule(KeyUse.RELEASE_AUTOMATION, "Ed25519", "release", 180 * DAY_MS, 0,
                "release manifests; hardware-backed"),
        KeyRule(KeyUse.CP_RELEASE, "Ed25519", "control plane", None, DAY_MS,
                "feature manifests and overrides; with control plane minors"),
        KeyRule(KeyUse.CONTROL_PLANE_PROOF, "Ed25519", "control plane", None, DAY_MS,
                "durability proofs; with control plane minors, staged with overlap"),
        KeyRule(KeyUse.SNAPSHOT_MANIFEST, "Ed25519", "node", 90 * DAY_MS, DAY_MS,
                "snapshot manifests"),
        KeyRule(KeyUse.AUDIT_LOG, "Ed25519", "node", 365 * DAY_MS, 30 * DAY_MS, "audit logs"),
        KeyRule(KeyUse.BREAK_GLASS_CA, "X.509", "control plane", 38 * DAY_MS, 7 * DAY_MS,
                "break-glass SVIDs; an intermediate lives 45 days, the last seven beside its heir"),
    )
}  # fmt: skip
"""The registry of §12.4, with the data keys of §12.2."""


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key of one use."""

    use: KeyUse
    epoch: Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]
    owner: str
    state: KeyState
    created_at_ms: _Millis
    activates_at_ms: _Millis | None = None
    """Of a staged key: from when on it may encrypt; None: not every node has it yet."""
    activated_at_ms: _Millis | None = None
    decrypt_only_at_ms: _Millis | None = None
    zeroized_at_ms: _Millis | None = None
    zeroization_digest: str | None = None

    @property
    def due_at_ms(self) -> int | None:
        """When a newer key should be in force; None: it is no active one, or ages by no period."""
        period_ms = KEY_RULES[self.use].period_ms
        if self.state is not KeyState.ACTIVE or period_ms is None or self.activated_at_ms is None:
            return None
        return self.activated_at_ms + period_ms

    @property
    def ends_at_ms(self) -> int | None:
        """Until when it must be able to decrypt, at least; None: it is not bounded yet."""
        if self.decrypt_only_at_ms is None:
            return None
        return self.decrypt_only_at_ms + KEY_RULES[self.use].overlap_ms


class KeyRegistry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All keys of one store, by use and rising epoch. Zeroized ones stay, as proof."""

    entries: tuple[KeyEntry, ...] = ()
    format_version: int = 1

    def of(self, use: KeyUse) -> tuple[KeyEntry, ...]:
        return tuple(entry for entry in self.entries if entry.use is use)

    def active(self, use: KeyUse) -> KeyEntry | None:
        return next((each for each in self.of(use) if each.state is KeyState.ACTIVE), None)

    def find(self, use: KeyUse, epoch: int) -> KeyEntry | None:
        return next((each for each in self.of(use) if each.epoch == epoch), None)

    def with_entry(self, entry: KeyEntry) -> KeyRegistry:
        """Return the registry with this entry in the place of an older one of its name."""
        others = [
            each for each in self.entries if (each.use, each.epoch) != (entry.use, entry.epoch)
        ]
        ordered = sorted((*others, entry), key=lambda each: (each.use.value, each.epoch))
        return check_registry(msgspec.structs.replace(self, entries=tuple(ordered)))


def check_registry(registry: KeyRegistry) -> KeyRegistry:
    """Return a registry that can be; raises RegistryUnreadable for another one."""
    for use in KeyUse:
        entries = registry.of(use)
        epochs = [entry.epoch for entry in entries]
        states = [entry.state for entry in entries]
        if epochs != sorted(set(epochs)):
            raise RegistryUnreadable("epochs do not rise", use=use.value)
        if states.count(KeyState.ACTIVE) > 1 or states.count(KeyState.STAGED) > 1:
            raise RegistryUnreadable("two keys of one use in force", use=use.value)
        order = [_AGE[state] for state in states]
        if order != sorted(order):
            raise RegistryUnreadable("a newer key is further on than an older one", use=use.value)
    return registry


_AGE: Final = {
    KeyState.ZEROIZED: 0,
    KeyState.ZEROIZING: 0,
    KeyState.DECRYPT_ONLY: 0,  # epochs may be held one by one
    KeyState.ACTIVE: 1,
    KeyState.STAGED: 2,
}


def first_registry(epochs: Iterable[int], now_ms: int) -> KeyRegistry:
    """Return the registry of a key ring that had none: its newest key is new, its others ended."""
    known = sorted(epochs)
    entries = tuple(
        KeyEntry(
            use=KeyUse.DEK,
            epoch=epoch,
            owner=KEY_RULES[KeyUse.DEK].owner,
            state=KeyState.ACTIVE if epoch == known[-1] else KeyState.DECRYPT_ONLY,
            created_at_ms=now_ms,
            activated_at_ms=now_ms,
            decrypt_only_at_ms=None if epoch == known[-1] else now_ms,
        )
        for epoch in known
    )
    return check_registry(KeyRegistry(entries=entries))


def encode_registry(registry: KeyRegistry) -> bytes:
    return msgspec.json.encode(registry, order="sorted") + b"\n"


def decode_registry(data: bytes) -> KeyRegistry:
    """Read a registry back; raises RegistryUnreadable: no key is touched without one."""
    try:
        registry = msgspec.json.decode(data, type=KeyRegistry)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RegistryUnreadable("the key registry cannot be read") from error
    if registry.format_version != 1:
        raise RegistryUnreadable("a registry of a later release", version=registry.format_version)
    return check_registry(registry)
