"""A node's part in the cluster's data keys: what is granted goes to disk, and back goes its word.

The control plane's leader draws a key when one is due; every node puts it where `rotation_keys`
finds it (`staged.json`), and says so when its ring can decrypt with it. Each step is durable
before the next is said, and is found again after a crash by looking at the files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from clustor.control import (
    Command,
    DekFacts,
    DekGrant,
    DekReady,
    DraftReading,
    GrantDek,
    ReportDekReady,
    ReportZeroization,
    Zeroization,
    find,
    grant_to_learn,
    plan_deks,
    scan,
)
from clustor.control.key_epochs import KeyEpochs
from clustor.log.errors import KeyUnavailable
from clustor.log.keyfile import (
    WrappedKey,
    decode_keyring,
    kek_fingerprint,
    unwrap_key,
    wrap_key,
)
from clustor.log.keys import KEY_BYTES, KeyRing
from clustor.runtime.data_directory import write_durably
from clustor.runtime.keys.kek_source import ReadKek, kek_in_file
from clustor.runtime.keys.rotation import REGISTRY_FILE
from clustor.runtime.keys.store import (
    KEK_FILE,
    KEYRING_FILE,
    STAGED_FILE,
    StagedFile,
    read_staged,
    unwrap_staged,
)
from clustor.security import KeyRegistry, KeyState, KeyUse, decode_registry

Entropy = Callable[[int], bytes]

journal = logging.getLogger("clustor.keys")


class KeyGrants:
    """One node's key store and the ring in its memory, as the control plane's grants see them."""

    def __init__(
        self,
        directory: Path,
        ring: KeyRing,
        node_id: int,
        period_ms: int,
        entropy: Entropy = os.urandom,
        *,
        read_kek: ReadKek | None = None,
    ) -> None:
        self._directory = directory
        self._ring = ring
        self._node_id = node_id
        self._period_ms = period_ms
        self._entropy = entropy
        self._read_kek = read_kek or kek_in_file(directory / KEK_FILE)

    # Every node.

    def learn(self, store: DraftReading) -> None:
        """Put the next granted key on disk, or the moment from which it encrypts.

        A key that something else staged is left alone. Raises KeyUnavailable for a grant that
        this node's key encryption key does not open: then nothing was written.
        """
        grant = grant_to_learn(store, int(self._ring.dek_epoch))
        if grant is None:
            return
        staged = read_staged(self._directory)
        if staged is not None and (staged.epoch, staged.wrapped) != (grant.epoch, grant.wrapped):
            return  # it is activated first, or it is an operator's: never overwritten
        wanted = StagedFile(
            grant.epoch, grant.wrapped, grant.activates_at, grant.mac_epoch, grant.mac_wrapped
        )
        if staged == wanted:
            return
        self._check(grant)
        write_durably(self._directory / STAGED_FILE, msgspec.json.encode(wanted) + b"\n")

    def reports(self, store: DraftReading) -> list[Command]:
        """Return what this node must say: keys that it has, keys that it has no more."""
        return [*self._ready(store), *self._zeroized(store)]

    def _ready(self, store: DraftReading) -> list[Command]:
        said = find(store, DekReady, self._node_id)
        has = {*self._ring.dek_epochs(), *self._ring.staged_dek_epochs()}
        granted = [each for each in scan(store, DekGrant) if each.epoch in has]
        newest = max(granted, key=lambda each: each.epoch, default=None)
        if newest is None or (said is not None and said.epoch >= newest.epoch):
            return []
        if not self._is_same(newest):
            journal.warning("key epoch %d is not the one that was granted", newest.epoch)
            return []
        return [ReportDekReady(node_id=self._node_id, epoch=newest.epoch)]

    def _zeroized(self, store: DraftReading) -> list[Command]:
        in_force = find(store, KeyEpochs, "newest")
        return [
            ReportZeroization(
                node_id=self._node_id,
                dek_epoch=entry.epoch,
                digest=bytes.fromhex(entry.zeroization_digest),
            )
            for entry in self.registry().of(KeyUse.DEK)
            if entry.state is KeyState.ZEROIZED
            and entry.zeroization_digest is not None
            and in_force is not None
            and entry.epoch < in_force.dek_epoch
            and find(store, Zeroization, self._node_id, entry.epoch) is None
        ]

    def _is_same(self, grant: DekGrant) -> bool:
        """Compare what is on disk under a grant's epoch with the grant: by wrapped bytes."""
        staged = read_staged(self._directory)
        if staged is not None and staged.epoch == grant.epoch:
            return staged.wrapped == grant.wrapped
        ring = decode_keyring((self._directory / KEYRING_FILE).read_bytes())
        return any((each.epoch, each.wrapped) == (grant.epoch, grant.wrapped) for each in ring.deks)

    def _check(self, grant: DekGrant) -> None:
        kek = self._read_kek()
        if kek_fingerprint(kek) != grant.kek_fingerprint:
            raise KeyUnavailable("a granted key is under another KEK", epoch=grant.epoch)
        unwrap_staged(StagedFile(grant.epoch, grant.wrapped), kek)
        if grant.mac_epoch:
            unwrap_key(kek, WrappedKey(grant.mac_epoch, grant.mac_wrapped))

    # Whoever leads the control plane.

    def due(self, store: DraftReading, now_ms: int) -> Command | None:
        """Return the call that the cluster's data keys need next; a new key is drawn here."""
        active = self.registry().active(KeyUse.DEK)
        if active is None or active.activated_at_ms is None:
            return None
        facts = DekFacts(active.epoch, active.activated_at_ms, self._period_ms)
        return plan_deks(store, facts, now_ms, self._new_key)

    def _new_key(self, epoch: int) -> GrantDek:
        kek, mac_epoch = self._read_kek(), int(self._ring.mac_epoch) + 1
        journal.info("key epoch %d is due and granted", epoch)
        return GrantDek(
            epoch=epoch,
            wrapped=wrap_key(kek, epoch, self._entropy(KEY_BYTES)).wrapped,
            kek_fingerprint=kek_fingerprint(kek),
            mac_epoch=mac_epoch,
            mac_wrapped=wrap_key(kek, mac_epoch, self._entropy(KEY_BYTES)).wrapped,
        )

    # Within

    def registry(self) -> KeyRegistry:
        """Read how far this node's keys are; empty before its keeper has looked once."""
        try:
            return decode_registry((self._directory / REGISTRY_FILE).read_bytes())
        except FileNotFoundError:
            return KeyRegistry()
