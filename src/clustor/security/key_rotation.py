"""What must be done about keys now. Pure: the registry and the time in, steps out.

A key is never zeroized while anything on disk needs it, however long its 48 hours are over: the
text of clustor §12.2 bounds how long it *may* be kept, and lost data cannot be brought back. Then
the plan says `HoldKey`, with what holds it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

import msgspec

from clustor.security.errors import RotationRefused
from clustor.security.key_registry import (
    KEY_RULES,
    KeyEntry,
    KeyRegistry,
    KeyState,
    KeyUse,
)

ROOT_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class StageKey:
    """Make a key, or learn the one that was made, and let every node know it."""

    use: KeyUse
    epoch: int
    activates_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ActivateKey:
    """Let the staged key encrypt, and its predecessor decrypt only."""

    use: KeyUse
    epoch: int


@dataclass(frozen=True, slots=True)
class ZeroizeKey:
    """Take a key out of every file, then out of memory, and record the digest."""

    use: KeyUse
    epoch: int


@dataclass(frozen=True, slots=True)
class HoldKey:
    """Keep a key whose time is over: this still needs it."""

    use: KeyUse
    epoch: int
    needed_by: tuple[str, ...]


RotationStep: TypeAlias = StageKey | ActivateKey | ZeroizeKey | HoldKey

InUse: TypeAlias = Mapping[int, tuple[str, ...]]
"""Which epochs something on disk is sealed with, and what."""


def plan_rotation(
    registry: KeyRegistry,
    now_ms: int,
    in_use: InUse,
    *,
    macs_in_use: InUse | None = None,
    wanted: Set[KeyUse] = frozenset(),
) -> tuple[RotationStep, ...]:
    """Return what is due, in order. `wanted` keys are rotated before their time.

    MAC keys come and go with data keys (`with_mac`); `macs_in_use` is None where nobody looked,
    and then none of them is zeroized.

    Carried out step by step and planned again after a crash at any point, it comes to the same end.
    """
    steps: list[RotationStep] = []
    entries = registry.of(KeyUse.DEK)
    staged = next((each for each in entries if each.state is KeyState.STAGED), None)
    active = registry.active(KeyUse.DEK)
    if staged is not None:
        if staged.activates_at_ms is not None and now_ms >= staged.activates_at_ms:
            steps.append(ActivateKey(KeyUse.DEK, staged.epoch))
    elif active is not None and (KeyUse.DEK in wanted or _is_due(active, now_ms)):
        steps.append(StageKey(KeyUse.DEK, entries[-1].epoch + 1))
    steps += _ends(entries, now_ms, in_use)
    if macs_in_use is not None:
        steps += _ends(registry.of(KeyUse.MAC), now_ms, macs_in_use)
    return tuple(steps)


def _ends(entries: tuple[KeyEntry, ...], now_ms: int, in_use: InUse) -> list[RotationStep]:
    """Say which old keys go, and which are held by what."""
    steps: list[RotationStep] = []
    for entry in entries:
        if entry.state is KeyState.ZEROIZING or _is_over(entry, now_ms):
            needed_by = in_use.get(entry.epoch, ())
            steps.append(
                HoldKey(entry.use, entry.epoch, needed_by)
                if needed_by
                else ZeroizeKey(entry.use, entry.epoch)
            )
    return steps


def next_rotation_ms(registry: KeyRegistry) -> int | None:
    """Return when `plan_rotation` has something to do next; None: never by itself."""
    moments: list[int] = []
    for entry in (*registry.of(KeyUse.DEK), *registry.of(KeyUse.MAC)):
        match entry.state:
            case KeyState.STAGED:
                moments += [entry.activates_at_ms] if entry.activates_at_ms is not None else []
            case KeyState.ACTIVE:
                moments += [_due_ms(entry)] if entry.use is KeyUse.DEK else []
            case KeyState.DECRYPT_ONLY:
                assert entry.ends_at_ms is not None
                moments.append(entry.ends_at_ms)
            case KeyState.ZEROIZING:
                moments.append(0)
            case KeyState.ZEROIZED:
                pass
            case _:
                assert_never(entry.state)
    return min(moments, default=None)


def staged(registry: KeyRegistry, step: StageKey, now_ms: int) -> KeyRegistry:
    """Return the registry once a key is known; said again, it takes a new moment of activation."""
    known = registry.find(step.use, step.epoch)
    if known is not None and known.state is not KeyState.STAGED:
        raise RotationRefused("this epoch was staged before", epoch=step.epoch, state=known.state)
    entry = known or KeyEntry(
        use=step.use,
        epoch=step.epoch,
        owner=KEY_RULES[step.use].owner,
        state=KeyState.STAGED,
        created_at_ms=now_ms,
    )
    return registry.with_entry(msgspec.structs.replace(entry, activates_at_ms=step.activates_at_ms))


def activated(registry: KeyRegistry, step: ActivateKey, now_ms: int) -> KeyRegistry:
    """Return the registry once the staged key encrypts: the window of the old one begins here."""
    entry = registry.find(step.use, step.epoch)
    if entry is None or entry.state is not KeyState.STAGED:
        raise RotationRefused("only a staged key is activated", epoch=step.epoch)
    old = registry.active(step.use)
    if old is not None:
        ended = msgspec.structs.replace(old, state=KeyState.DECRYPT_ONLY, decrypt_only_at_ms=now_ms)
        registry = registry.with_entry(ended)
    return registry.with_entry(
        msgspec.structs.replace(entry, state=KeyState.ACTIVE, activated_at_ms=now_ms)
    )


def with_mac(registry: KeyRegistry, known: int, epoch: int, now_ms: int) -> KeyRegistry:
    """Return the registry once another key seals segments; `known` is the one that did before."""
    if registry.active(KeyUse.MAC) is None:
        first = staged(registry, StageKey(KeyUse.MAC, known, now_ms), now_ms)
        registry = activated(first, ActivateKey(KeyUse.MAC, known), now_ms)
    registry = staged(registry, StageKey(KeyUse.MAC, epoch, now_ms), now_ms)
    return activated(registry, ActivateKey(KeyUse.MAC, epoch), now_ms)


def zeroizing(registry: KeyRegistry, step: ZeroizeKey, now_ms: int) -> KeyRegistry:
    """Return the registry that announces it. Raises RotationRefused before the window's end."""
    entry = registry.find(step.use, step.epoch)
    if entry is None or entry.state not in (KeyState.DECRYPT_ONLY, KeyState.ZEROIZING):
        raise RotationRefused("only an old key is zeroized", epoch=step.epoch)
    if entry.state is not KeyState.ZEROIZING and not _is_over(entry, now_ms):
        raise RotationRefused(
            "the key must decrypt for longer", epoch=step.epoch, until_ms=entry.ends_at_ms
        )
    return registry.with_entry(msgspec.structs.replace(entry, state=KeyState.ZEROIZING))


def zeroized(registry: KeyRegistry, step: ZeroizeKey, digest: str, now_ms: int) -> KeyRegistry:
    """Return the registry with the proof."""
    entry = registry.find(step.use, step.epoch)
    if entry is None or entry.state is not KeyState.ZEROIZING:
        raise RotationRefused("it was not announced", epoch=step.epoch)
    if digest != zeroization_digest(step.epoch):
        raise RotationRefused("the digest is not of an overwritten key", epoch=step.epoch)
    return registry.with_entry(
        msgspec.structs.replace(
            entry,
            state=KeyState.ZEROIZED,
            zeroized_at_ms=now_ms,
            zeroization_digest=digest,
        )
    )


def zeroization_digest(epoch: int) -> str:
    """Recompute `crypto.zeroization_digest` of an epoch, as an auditor does: from zeros."""
    zeros = bytes(ROOT_KEY_BYTES)
    content = b"crypto.zeroize_context" + epoch.to_bytes(4, "little") + zeros
    return hashlib.sha256(content).hexdigest()


def _due_ms(active: KeyEntry) -> int:
    period = KEY_RULES[active.use].period_ms
    assert period is not None and active.activated_at_ms is not None
    return active.activated_at_ms + period


def _is_due(active: KeyEntry, now_ms: int) -> bool:
    return now_ms >= _due_ms(active)


def _is_over(entry: KeyEntry, now_ms: int) -> bool:
    ends_at_ms = entry.ends_at_ms
    is_old = entry.state is KeyState.DECRYPT_ONLY
    return is_old and ends_at_ms is not None and now_ms >= ends_at_ms
