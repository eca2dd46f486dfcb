"""Key epochs: which key encrypts, which may still decrypt, and proof that the rest are gone.

The IV of a WAL block names the epoch, the segment and the block (clustor §12.2), but neither
the partition nor the replica. Two logs under one key would therefore repeat IVs with different
plaintexts as soon as both write their first block. So the ring never hands out an epoch's root
key: each log gets its own, derived with the partition's id and the log's random id. A log that
is wiped and made anew draws a new id, which gives it a new key and a fresh counter space.
"""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from clustor.log.errors import KeyEpochReplay, KeyUnavailable, LogMisuse
from clustor.log.types import DekEpoch, LogId, MacEpoch, PartitionId

KEY_BYTES = 32


class KeyRing:
    """The keys of one cluster, by epoch. The newest epoch encrypts; older ones only decrypt."""

    def __init__(self) -> None:
        self._deks = _Epochs("dek_epoch")
        self._macs = _Epochs("integrity_mac_epoch")

    def add_dek(self, epoch: DekEpoch, root: bytes) -> None:
        """Make `epoch` the one that encrypts. It must be newer than every epoch before it."""
        self._deks.add(epoch, root)

    def stage_dek(self, epoch: DekEpoch, root: bytes) -> None:
        """Know a key that will encrypt one day: what a peer seals with it can be opened now."""
        self._deks.stage(epoch, root)

    def activate_dek(self, epoch: DekEpoch) -> None:
        """Let a staged key encrypt; it must be durable in the key ring's file by then."""
        self._deks.activate(epoch)

    def staged_dek_epochs(self) -> tuple[DekEpoch, ...]:
        """Every epoch that is known and does not encrypt yet."""
        return tuple(DekEpoch(epoch) for epoch in sorted(self._deks.staged))

    def add_mac(self, epoch: MacEpoch, root: bytes) -> None:
        """Make `epoch` the one that seals segments. It must be newer than those before it."""
        self._macs.add(epoch, root)

    @property
    def dek_epoch(self) -> DekEpoch:
        """The epoch that encrypts now."""
        return DekEpoch(self._deks.newest())

    @property
    def mac_epoch(self) -> MacEpoch:
        """The epoch that seals segments now."""
        return MacEpoch(self._macs.newest())

    def mac_epochs(self) -> tuple[MacEpoch, ...]:
        """Every epoch that can still verify a sealed segment, oldest first."""
        return tuple(MacEpoch(epoch) for epoch in sorted(self._macs.roots))

    def dek_epochs(self) -> tuple[DekEpoch, ...]:
        """Every epoch that can still decrypt, oldest first."""
        return tuple(DekEpoch(epoch) for epoch in sorted(self._deks.roots))

    def log_key(self, epoch: DekEpoch, partition: PartitionId, log_id: LogId) -> bytes:
        """Derive the WAL key of one log in one epoch."""
        return self._deks.derive(epoch, b"clustor wal v1", partition, log_id)

    def snapshot_key(self, epoch: DekEpoch, partition: PartitionId) -> bytes:
        """Derive a partition's snapshot key: one for all replicas, since they exchange snapshots.

        The manifest's random `iv_salt` keeps the IVs of two snapshots apart.
        """
        return self._deks.derive(epoch, b"clustor snapshot v1", partition, b"")

    def mac_key(self, epoch: MacEpoch, partition: PartitionId, log_id: LogId) -> bytes:
        """Derive the key that seals the segments of one log in one epoch."""
        return self._macs.derive(epoch, b"clustor segment mac v1", partition, log_id)

    def zeroize_dek(self, epoch: DekEpoch) -> str:
        """Overwrite an old epoch's key and forget it; return the digest that proves it.

        The digest (`crypto.zeroization_digest`) is over the overwritten buffer and the epoch,
        so that an auditor can recompute it from zeros.
        """
        return self._deks.zeroize(epoch)

    def zeroize_mac(self, epoch: MacEpoch) -> str:
        """Do the same with an old key that sealed segments."""
        return self._macs.zeroize(epoch)


class _Epochs:
    """The root keys of one purpose. Buffers are mutable, so that they can be overwritten."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.roots: dict[int, bytearray] = {}
        self.staged: dict[int, bytearray] = {}
        self._highest_ever = 0

    def add(self, epoch: int, root: bytes) -> None:
        if len(root) != KEY_BYTES:
            raise LogMisuse("a root key has 32 bytes", given_bytes=len(root))
        if epoch <= self._highest_ever:
            raise KeyEpochReplay(
                "a key epoch must be newer than the last one",
                **{self.name: epoch, "newest": self._highest_ever},
            )
        self._highest_ever = epoch
        self.roots[epoch] = bytearray(root)

    def stage(self, epoch: int, root: bytes) -> None:
        if len(root) != KEY_BYTES:
            raise LogMisuse("a root key has 32 bytes", given_bytes=len(root))
        if epoch <= self._highest_ever or epoch in self.staged:
            raise KeyEpochReplay(
                "a staged epoch must be newer than the last one",
                **{self.name: epoch, "newest": self._highest_ever},
            )
        self.staged[epoch] = bytearray(root)

    def activate(self, epoch: int) -> None:
        root = self.staged.pop(epoch, None)
        if root is None:
            raise KeyUnavailable("no staged key for this epoch", **{self.name: epoch})
        self.add(epoch, bytes(root))

    def newest(self) -> int:
        if not self.roots:
            raise KeyUnavailable("the key ring is empty", purpose=self.name)
        return self._highest_ever

    def derive(self, epoch: int, purpose: bytes, partition: int, log_id: bytes) -> bytes:
        root = self.roots.get(epoch) or self.staged.get(epoch)
        if root is None:
            raise KeyUnavailable("no key for this epoch", **{self.name: epoch})
        info = purpose + partition.to_bytes(8, "little") + log_id
        return HKDFExpand(algorithm=SHA256(), length=KEY_BYTES, info=info).derive(bytes(root))

    def zeroize(self, epoch: int) -> str:
        if epoch == self._highest_ever:
            raise LogMisuse("the epoch that encrypts cannot be zeroized", **{self.name: epoch})
        root = self.roots.pop(epoch, None)
        if root is None:
            raise KeyUnavailable("no key for this epoch", **{self.name: epoch})
        root[:] = bytes(len(root))
        return hashlib.sha256(
            b"crypto.zeroize_context" + epoch.to_bytes(4, "little") + root
        ).hexdigest()
