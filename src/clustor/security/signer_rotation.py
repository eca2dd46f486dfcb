"""How signing keys age (clustor §12.4). Pure: registry, store and time in, steps out.

    Stage ──► Announce ──► the moment is set ──► Activate ──► Retire ──► Zeroize
    private    public half   every node has       it signs     its end     the private half
    half       registered    read it by then                   is known    is overwritten

A verifier must know a key before anything is signed with it. What an old key signed is believed
after its end too: only its private half goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final, TypeAlias

from clustor.security.key_registry import KEY_RULES, KeyEntry, KeyRegistry, KeyState, KeyUse
from clustor.security.key_rotation import ActivateKey, HoldKey, StageKey, ZeroizeKey

SIGNER_USES: Final = (KeyUse.SNAPSHOT_MANIFEST, KeyUse.CONTROL_PLANE_PROOF)
"""What nodes sign with keys of their own, and the control plane's registry knows."""

OFFICE_USES: Final = (
    KeyUse.CP_RELEASE,
    KeyUse.RELEASE_AUTOMATION,
    KeyUse.BREAK_GLASS_CA,
)
"""What people sign with for the whole cluster; no node has these keys."""

READ_BY_ALL_MS: Final = 10_000
"""From a key's registration to its first signature: every copy is refreshed by then."""


@dataclass(frozen=True, slots=True)
class AnnounceKey:
    """Register the public half: others believe it from then on."""

    use: KeyUse
    epoch: int


@dataclass(frozen=True, slots=True)
class RetireSigner:
    """Tell the registry from when on the key signs nothing any more."""

    use: KeyUse
    epoch: int
    retires_at_ms: int


SignerStep: TypeAlias = StageKey | AnnounceKey | ActivateKey | RetireSigner | ZeroizeKey | HoldKey


@dataclass(frozen=True, slots=True)
class SignerFacts:
    """What stands elsewhere: registered epochs, and the end of each that has one."""

    announced: Mapping[int, int | None]
    held: Set[int] = frozenset()  # epochs whose private half another use still signs with
    wanted: bool = False  # an operator asks for a new key before its time


def plan_signer(
    registry: KeyRegistry, use: KeyUse, facts: SignerFacts, now_ms: int
) -> SignerStep | None:
    """Return the next step for one use; None: nothing is due.

    One step at a time: carried out and planned again, it comes to the same end after any crash.
    """
    entries = registry.of(use)
    if not entries:
        return StageKey(use, 1) if facts.wanted else None
    for entry in entries:
        if entry.state is not KeyState.ZEROIZED and entry.epoch not in facts.announced:
            return AnnounceKey(use, entry.epoch)
    staged = next((each for each in entries if each.state is KeyState.STAGED), None)
    if staged is not None:
        if staged.activates_at_ms is None:
            return StageKey(use, staged.epoch, now_ms + READ_BY_ALL_MS)
        if now_ms >= staged.activates_at_ms:
            return ActivateKey(use, staged.epoch)
    elif (active := registry.active(use)) is not None and (facts.wanted or _is_due(active, now_ms)):
        return StageKey(use, entries[-1].epoch + 1)
    return _end_of_old(entries, facts, now_ms)


def _end_of_old(
    entries: tuple[KeyEntry, ...], facts: SignerFacts, now_ms: int
) -> SignerStep | None:
    for entry in entries:
        ends_at_ms = entry.ends_at_ms
        if entry.state not in (KeyState.DECRYPT_ONLY, KeyState.ZEROIZING) or ends_at_ms is None:
            continue
        if facts.announced.get(entry.epoch) is None:
            return RetireSigner(entry.use, entry.epoch, ends_at_ms)
        if entry.state is KeyState.ZEROIZING or now_ms >= ends_at_ms:
            if entry.epoch in facts.held:
                continue
            return ZeroizeKey(entry.use, entry.epoch)
    return None


def first_signers(now_ms: int) -> KeyRegistry:
    """Return the registry of a node that never rotated: one key, for every use the first."""
    entries = tuple(
        KeyEntry(
            use=use,
            epoch=1,
            owner=KEY_RULES[use].owner,
            state=KeyState.ACTIVE,
            created_at_ms=now_ms,
            activated_at_ms=now_ms,
        )
        for use in sorted(SIGNER_USES)
    )
    return KeyRegistry(entries=entries)


def _is_due(active: KeyEntry, now_ms: int) -> bool:
    due_at_ms = active.due_at_ms
    return due_at_ms is not None and now_ms >= due_at_ms
