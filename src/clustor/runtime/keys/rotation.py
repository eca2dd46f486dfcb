"""Carrying out key rotation on a node's key store: each step durable before the next.

keyring.json         the keys that encrypt and decrypt, wrapped
staged.json          the key that comes next, known to every node before any node uses it
key-registry.json    how far each key is; written by the keeper alone
key-holds.json       who needs old keys for what is not below `state/`: archives, copies

A crash between any two steps leaves a store from which every segment can be read that could be
read before, and the next look goes on where the last one ended.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never

import msgspec

from clustor.log.errors import KeyUnavailable, LogError
from clustor.log.keyfile import (
    KeyRingFile,
    decode_keyring,
    encode_keyring,
    wrap_key,
)
from clustor.log.keys import KEY_BYTES, KeyRing
from clustor.log.types import DekEpoch, MacEpoch
from clustor.runtime.data_directory import sync_directory, write_durably
from clustor.runtime.keys.holds import read_holds
from clustor.runtime.keys.kek_source import ReadKek, kek_in_file
from clustor.runtime.keys.lifecycle import note_step
from clustor.runtime.keys.store import (
    KEK_FILE,
    KEYRING_FILE,
    STAGED_FILE,
    StagedFile,
    read_staged,
    unwrap_staged,
    unwrap_staged_mac,
)
from clustor.security import (
    ActivateKey,
    AuditPort,
    HoldKey,
    InUse,
    KeyRegistry,
    KeyState,
    KeyUse,
    RotationRefused,
    SecurityError,
    StageKey,
    ZeroizeKey,
    decode_registry,
    encode_registry,
    first_registry,
    next_rotation_ms,
    plan_rotation,
    zeroization_digest,
)
from clustor.security.key_rotation import activated, staged, with_mac, zeroized, zeroizing
from clustor.wall_clock import wall_clock_ms

REGISTRY_FILE: Final = "key-registry.json"
ACTIVATE_AFTER_MS: Final = 10_000
"""From the moment every node has a key on disk to the moment it encrypts: ten looks."""
_HELD_LOOK_MS: Final = 600_000

journal = logging.getLogger("clustor.keys")


class KeyKeeper:
    """One key store. With `ring` it also changes the keys in memory, which logs look at."""

    def __init__(
        self,
        directory: Path,
        ring: KeyRing | None,
        in_use: Callable[[], InUse],
        *,
        macs_in_use: Callable[[], InUse] | None = None,
        audit: AuditPort | None = None,
        stages: bool = False,
        granted: bool = False,
        read_kek: ReadKek | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`stages`: new keys are made here when they are due: for a node that has no peers.

        `granted`: they come from the control plane (`rotation_grants`), and nobody need be told.
        """
        self._directory = directory
        self._ring = ring
        self._in_use = in_use
        self._macs_in_use = macs_in_use
        self._audit = audit
        self._stages = stages
        self._granted = granted
        self._read_kek = read_kek or kek_in_file(directory / KEK_FILE)
        self._now_ms = now_ms
        self._look_again_ms = 0
        self._said: set[str] = set()

    def registry(self) -> KeyRegistry:
        """Read the registry, or make the first one of a store that has none."""
        try:
            return decode_registry((self._directory / REGISTRY_FILE).read_bytes())
        except FileNotFoundError:
            ring = decode_keyring((self._directory / KEYRING_FILE).read_bytes())
            made = first_registry((each.epoch for each in ring.deks), self._now_ms())
            self._keep(made)
            return made

    def look(self) -> None:
        """Do what is due. Raises SecurityError, LogError and OSError: then no key was touched that
        something needs, and the next look tries again.

        Cheap while nothing is due: one stat, and no file is read.
        """
        now_ms = self._now_ms()
        has_staged = (self._directory / STAGED_FILE).exists()
        if now_ms < self._look_again_ms and not has_staged:
            return
        registry = self._learn_staged(self.registry())
        for step in plan_rotation(
            registry,
            now_ms,
            self._needed(registry, KeyUse.DEK, now_ms),
            macs_in_use=self._needed_macs(registry, now_ms),
        ):
            match step:
                case StageKey():
                    registry = self._stage_due(registry, step)
                case ActivateKey():
                    registry = self._activate(registry, step)
                case ZeroizeKey():
                    registry = self._zeroize(registry, step)
                case HoldKey():
                    self._hold(step)
                case _:
                    assert_never(step)
        soonest = next_rotation_ms(registry)
        later = now_ms + _HELD_LOOK_MS
        self._look_again_ms = later if soonest is None else max(min(soonest, later), now_ms + 1)
        if soonest is not None and soonest <= now_ms:  # held, or due and not ours to do
            self._look_again_ms = later

    def stage(self, root: bytes | None = None, *, activates_at_ms: int | None = None) -> int:
        """Put a new key on disk and return its epoch; it encrypts when its moment has come."""
        registry = self._learn_staged(self.registry())
        for step in plan_rotation(registry, self._now_ms(), {}, wanted={KeyUse.DEK}):
            if isinstance(step, StageKey):
                file = StagedFile(
                    step.epoch,
                    wrap_key(self._read_kek(), step.epoch, root or os.urandom(KEY_BYTES)).wrapped,
                    activates_at_ms,
                )
                self._learn(registry, file, write=True)
                return step.epoch
        raise RotationRefused("a key is staged already: let it be activated first")

    # Steps

    def _learn_staged(self, registry: KeyRegistry) -> KeyRegistry:
        file = read_staged(self._directory)
        if file is None:
            return registry
        known = registry.find(KeyUse.DEK, file.epoch)
        if known is not None and known.state is not KeyState.STAGED:
            self._forget_staged(file)  # a crash came between its activation and this
            return registry
        return self._learn(registry, file, write=False)

    def _learn(self, registry: KeyRegistry, file: StagedFile, *, write: bool) -> KeyRegistry:
        """Know a staged key: on disk, in the registry, in memory."""
        if write:
            write_durably(self._directory / STAGED_FILE, msgspec.json.encode(file) + b"\n")
        step = StageKey(KeyUse.DEK, file.epoch, file.activates_at_ms)
        known = registry.find(KeyUse.DEK, file.epoch)
        if known is None or known.activates_at_ms != file.activates_at_ms:
            registry = staged(registry, step, self._now_ms())
            self._keep(registry)
            if known is None:
                self._note("KeyStaged", file.epoch)
        ring = self._ring
        if ring is not None and file.epoch not in (*ring.staged_dek_epochs(), *ring.dek_epochs()):
            ring.stage_dek(DekEpoch(file.epoch), unwrap_staged(file, self._read_kek()))
        return registry

    def _stage_due(self, registry: KeyRegistry, step: StageKey) -> KeyRegistry:
        if not self._stages:
            if not self._granted:
                self.say(f"key epoch {step.epoch} is due: `quantum keys rotate`")
            return registry
        wrapped = wrap_key(self._read_kek(), step.epoch, os.urandom(KEY_BYTES)).wrapped
        file = StagedFile(step.epoch, wrapped, self._now_ms())
        return self._learn(registry, file, write=True)

    def _activate(self, registry: KeyRegistry, step: ActivateKey) -> KeyRegistry:
        file = read_staged(self._directory)
        path = self._directory / KEYRING_FILE
        ring = decode_keyring(path.read_bytes())
        if file is not None and all(each.epoch != step.epoch for each in ring.deks):
            new = wrap_key(self._read_kek(), step.epoch, unwrap_staged(file, self._read_kek()))
            write_durably(
                path, encode_keyring(msgspec.structs.replace(ring, deks=(*ring.deks, new)))
            )
        elif all(each.epoch != step.epoch for each in ring.deks):
            raise KeyUnavailable("the staged key is gone", epoch=step.epoch)
        registry = activated(registry, step, self._now_ms())
        if file is not None and file.mac_epoch:
            registry = self._activate_mac(registry, file)
        self._keep(registry)
        if self._ring is not None and step.epoch in self._ring.staged_dek_epochs():
            self._ring.activate_dek(DekEpoch(step.epoch))
        if file is not None:
            self._forget_staged(file)
        self._note("KeyActivated", step.epoch)
        return registry

    def _activate_mac(self, registry: KeyRegistry, file: StagedFile) -> KeyRegistry:
        """Let the key that came with it seal segments: it is durable in the ring's file before."""
        path = self._directory / KEYRING_FILE
        ring = decode_keyring(path.read_bytes())
        known = max(each.epoch for each in ring.macs if each.epoch != file.mac_epoch)
        root = unwrap_staged_mac(file, self._read_kek())
        if all(each.epoch != file.mac_epoch for each in ring.macs):
            macs = (*ring.macs, wrap_key(self._read_kek(), file.mac_epoch, root))
            write_durably(path, encode_keyring(msgspec.structs.replace(ring, macs=macs)))
        if self._ring is not None and file.mac_epoch not in self._ring.mac_epochs():
            self._ring.add_mac(MacEpoch(file.mac_epoch), root)
        if registry.find(KeyUse.MAC, file.mac_epoch) is None:
            registry = with_mac(registry, known, file.mac_epoch, self._now_ms())
        return registry

    def _zeroize(self, registry: KeyRegistry, step: ZeroizeKey) -> KeyRegistry:
        """Announce, take it out of the file, overwrite it in memory, record the proof."""
        registry = zeroizing(registry, step, self._now_ms())
        self._keep(registry)
        path = self._directory / KEYRING_FILE
        ring = decode_keyring(path.read_bytes())
        kept = _without(ring, step)
        if kept != ring:
            write_durably(path, encode_keyring(kept))
        digest = self._forget(step)
        registry = zeroized(registry, step, digest, self._now_ms())
        self._keep(registry)
        facts = {"zeroization_digest": digest[:64]}
        self._note("KeyZeroized", step.epoch, facts, use=step.use)
        return registry

    def _forget(self, step: ZeroizeKey) -> str:
        """Overwrite the key in memory, where it is; return the digest that proves it."""
        ring = self._ring
        if ring is not None and step.use is KeyUse.MAC and step.epoch in ring.mac_epochs():
            return ring.zeroize_mac(MacEpoch(step.epoch))
        if ring is not None and step.use is KeyUse.DEK and step.epoch in ring.dek_epochs():
            return ring.zeroize_dek(DekEpoch(step.epoch))
        return zeroization_digest(step.epoch)

    def _hold(self, step: HoldKey) -> None:
        needed = ", ".join(step.needed_by[:3])
        name = "MAC key" if step.use is KeyUse.MAC else "key"
        self.say(f"{name} epoch {step.epoch} is kept: {len(step.needed_by)} need it ({needed})")

    # Within

    def _needed_macs(self, registry: KeyRegistry, now_ms: int) -> InUse | None:
        return None if self._macs_in_use is None else self._needed(registry, KeyUse.MAC, now_ms)

    def _needed(self, registry: KeyRegistry, use: KeyUse, now_ms: int) -> InUse:
        """Ask what is in use, when the answer matters; who holds keys, holds all of them."""
        old = (KeyState.DECRYPT_ONLY, KeyState.ZEROIZING)
        ends = [
            each.ends_at_ms
            for each in registry.of(use)
            if each.state in old and each.ends_at_ms is not None
        ]
        if not ends or min(ends) > now_ms:
            return {}
        holders = tuple(sorted(read_holds(self._directory)))
        if holders:
            return {each.epoch: holders for each in registry.of(use)}
        if use is KeyUse.MAC and self._macs_in_use is not None:
            return self._macs_in_use()
        return self._in_use()

    def _keep(self, registry: KeyRegistry) -> None:
        write_durably(self._directory / REGISTRY_FILE, encode_registry(registry))

    def _forget_staged(self, file: StagedFile) -> None:
        ring = decode_keyring((self._directory / KEYRING_FILE).read_bytes())
        assert file.epoch <= max(each.epoch for each in ring.deks), "the ring must hold it first"
        if read_staged(self._directory) != file:
            return  # another one was put there meanwhile
        (self._directory / STAGED_FILE).unlink(missing_ok=True)
        sync_directory(self._directory)

    def _note(
        self,
        what: str,
        epoch: int,
        facts: dict[str, str] | None = None,
        *,
        use: KeyUse = KeyUse.DEK,
    ) -> None:
        name = "mac" if use is KeyUse.MAC else "dek"
        journal.info("%s: %s epoch %d", what, name.upper(), epoch)
        key = f"{name}/{epoch}"
        note_step(self._audit, "(key keeper)", what, key, at_ms=self._now_ms(), facts=facts)

    def say(self, line: str) -> None:
        """Say something once."""
        if line not in self._said:
            self._said.add(line)
            journal.warning("%s", line)


def keep_keys(keeper: KeyKeeper) -> None:
    """Look after a running node's keys: what goes wrong is said, and the node goes on."""
    try:
        keeper.look()
    except (SecurityError, LogError, OSError) as error:
        keeper.say(f"the keys are left as they are: {error}")


def _without(ring: KeyRingFile, step: ZeroizeKey) -> KeyRingFile:
    if step.use is KeyUse.MAC:
        macs = tuple(each for each in ring.macs if each.epoch != step.epoch)
        return msgspec.structs.replace(ring, macs=macs)
    deks = tuple(each for each in ring.deks if each.epoch != step.epoch)
    return msgspec.structs.replace(ring, deks=deks)


def _catch_up(root: Path, nodes: list[Path]) -> None:
    """Give the cluster's own store the keys that its nodes were granted meanwhile.

    A new key must have an epoch above all of theirs. The registry is begun anew: it belongs to
    the ring that was there. A rotation of the store's own that was interrupted goes on instead.
    """
    newest, staged_here = max(nodes, key=_newest_epoch, default=root), read_staged(root)
    if staged_here is not None and staged_here.epoch >= _newest_epoch(newest):
        return
    if _newest_epoch(newest) > _newest_epoch(root):
        write_durably(root / KEYRING_FILE, (newest / KEYRING_FILE).read_bytes())
        (root / REGISTRY_FILE).unlink(missing_ok=True)
        sync_directory(root)


def _newest_epoch(directory: Path) -> int:
    ring = decode_keyring((directory / KEYRING_FILE).read_bytes())
    return max(each.epoch for each in ring.deks)


def _check_free(directory: Path, file: StagedFile) -> None:
    """Refuse to put a key in the place of another one: some node may encrypt with it already."""
    there = read_staged(directory)
    if there is not None and (there.epoch, there.wrapped) != (file.epoch, file.wrapped):
        raise RotationRefused("another key is on its way", epoch=there.epoch, at=str(directory))
    for key in decode_keyring((directory / KEYRING_FILE).read_bytes()).deks:
        if key.epoch == file.epoch and key.wrapped != file.wrapped:  # wrapping is deterministic
            raise RotationRefused("another key has its epoch", epoch=key.epoch, at=str(directory))


def rotate_everywhere(
    root: Path, nodes: list[Path], in_use: Callable[[], InUse], *, after_ms: int = ACTIVATE_AFTER_MS
) -> tuple[int, int]:
    """Give the key stores of all nodes one new key; return its epoch and when it encrypts.

    First every node has the key on disk; only then every node gets the moment from which it
    encrypts. `root` is the cluster's own store, from which new nodes get theirs: it comes last,
    so that an interrupted rotation goes on with the same key.
    """
    _catch_up(root, nodes)
    keeper = KeyKeeper(root, None, in_use)
    keeper.look()
    if read_staged(root) is None:
        keeper.stage()
    file = read_staged(root)
    assert file is not None
    for directory in nodes:
        _check_free(directory, file)
    for directory in nodes:
        write_durably(directory / STAGED_FILE, msgspec.json.encode(file) + b"\n")
    at_ms = wall_clock_ms() + after_ms
    timed = msgspec.structs.replace(file, activates_at_ms=at_ms)
    for directory in nodes:
        write_durably(directory / STAGED_FILE, msgspec.json.encode(timed) + b"\n")
    now = msgspec.structs.replace(file, activates_at_ms=wall_clock_ms())
    write_durably(root / STAGED_FILE, msgspec.json.encode(now) + b"\n")
    keeper.look()
    return file.epoch, at_ms
