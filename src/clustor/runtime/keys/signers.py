"""The signing keys of a node, on disk and in use: made, announced, taken up and destroyed.

keys/signer.key                     the first, for every use
keys/signer-<use>-<epoch>.key       its successors, as hex
keys/signer-registry.json           how far each is
keys/signer-trusted.json            public halves that the control plane registered, of all nodes
keys/rotate-<use>                   an operator's wish for a new key; gone when it is fulfilled
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Self, assert_never

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from clustor.control import (
    Command,
    DraftReading,
    KeyPurpose,
    RegisterKey,
    RetireKey,
    SigningKey,
    scan,
)
from clustor.log.errors import KeyUnavailable
from clustor.runtime.control.records import key_id_of
from clustor.runtime.data_directory import sync_directory, write_durably
from clustor.runtime.keys.lifecycle import grant_wish, is_wished, note_step, wish_for
from clustor.runtime.keys.snapshot_key import SIGNER_FILE
from clustor.security import (
    ActivateKey,
    AuditPort,
    HoldKey,
    KeyRegistry,
    KeyState,
    KeyUse,
    StageKey,
    ZeroizeKey,
    decode_registry,
    encode_registry,
    zeroization_digest,
)
from clustor.security.key_rotation import activated, staged, zeroized, zeroizing
from clustor.security.signer_rotation import (
    SIGNER_USES,
    AnnounceKey,
    RetireSigner,
    SignerFacts,
    first_signers,
    plan_signer,
)
from clustor.wall_clock import wall_clock_ms

REGISTRY_FILE: Final = "signer-registry.json"
TRUSTED_FILE: Final = "signer-trusted.json"
_KEY_BYTES: Final = 32
_STEPS_MAX: Final = 16  # of one use in one look: a plan that never ends is a bug

journal = logging.getLogger("clustor.keys")


class RotatingSigner(Ed25519PrivateKey):
    """A signing key that is another one after a rotation, for everybody who holds it."""

    def __init__(self, current: Ed25519PrivateKey) -> None:
        self._current = current

    def replace(self, current: Ed25519PrivateKey) -> None:
        self._current = current

    def sign(self, data: Any) -> bytes:
        return self._current.sign(data)

    def public_key(self) -> Ed25519PublicKey:
        return self._current.public_key()

    def private_bytes(self, *_arguments: Any, **_more: Any) -> bytes:
        raise KeyUnavailable("a signing key in use is not given away")

    def private_bytes_raw(self) -> bytes:
        raise KeyUnavailable("a signing key in use is not given away")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self


class TrustedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Public keys whose snapshots are believed, as hex."""

    keys: tuple[str, ...]


class SignerKeeper:
    """One node's signing keys. `signers` are in use; `take` makes what is due happen."""

    def __init__(
        self,
        directory: Path,
        node_id: int,
        *,
        audit: AuditPort | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Open the keys; raises KeyUnavailable, SecurityError and OSError."""
        self._directory = directory
        self._node_id = node_id
        self.audit = audit
        self._now_ms = now_ms
        self._moved = False  # whether the last plan had a step
        self._registry = self._read()
        registry = self._registry
        self.signers = {
            use: RotatingSigner(self._load(use, self._active(registry, use))) for use in SIGNER_USES
        }

    def registry(self) -> KeyRegistry:
        """Return how far the keys are."""
        return self._registry

    def _read(self) -> KeyRegistry:
        """Read the registry, or begin with the key that a node is made with."""
        try:
            return decode_registry((self._directory / REGISTRY_FILE).read_bytes())
        except FileNotFoundError:
            made = first_signers(self._now_ms())
            self._keep(made)
            return made

    @property
    def proof_key_id(self) -> str:
        """Name the key that signs proofs now, as the control plane's registry does."""
        use = KeyUse.CONTROL_PLANE_PROOF
        return self.key_id(self._active(self.registry(), use))

    def key_id(self, epoch: int) -> str:
        """Name a key of this node; the first keeps the name that it was founded with."""
        first = key_id_of(self._node_id)
        return first if epoch == 1 else f"{first}-{epoch}"

    def wish(self, use: KeyUse) -> None:
        """Let a new key be made before its time."""
        wish_for(self._directory, use)

    def look(self, store: DraftReading) -> list[Command]:
        """Do what is due here, and return what the control plane must be told first.

        Raises KeyUnavailable, SecurityError and OSError: the next look goes on.
        """
        calls: list[Command] = []
        for use in SIGNER_USES:
            for _ in range(_STEPS_MAX):
                call = self._step(use, store)
                if call is not None:
                    calls.append(call)
                if call is not None or not self._moved:
                    break
        return calls

    def _step(self, use: KeyUse, store: DraftReading) -> Command | None:
        registry = self.registry()
        step = plan_signer(registry, use, self._facts(registry, use, store), self._now_ms())
        self._moved = step is not None
        match step:
            case None | HoldKey():
                return None
            case AnnounceKey():
                return self._announcement(use, step.epoch)
            case RetireSigner():
                return RetireKey(
                    purpose=KeyPurpose(use.value),
                    key_id=self.key_id(step.epoch),
                    retires_at=step.retires_at_ms,
                )
            case StageKey():
                self._stage(registry, step)
            case ActivateKey():
                self._activate(registry, step)
            case ZeroizeKey():
                self._zeroize(registry, step)
            case _:
                assert_never(step)
        return None

    def _facts(self, registry: KeyRegistry, use: KeyUse, store: DraftReading) -> SignerFacts:
        mine = {self.key_id(entry.epoch): entry.epoch for entry in registry.of(use)}
        announced = {
            mine[each.key_id]: each.retires_at
            for each in scan(store, SigningKey, use.value)
            if each.key_id in mine
        }
        others = (registry.find(each, 1) for each in SIGNER_USES if each is not use)
        done = (KeyState.ZEROIZING, KeyState.ZEROIZED, KeyState.DECRYPT_ONLY)
        shared = any(entry is not None and entry.state not in done for entry in others)
        wanted = is_wished(self._directory, use)
        return SignerFacts(announced, frozenset({1}) if shared else frozenset(), wanted)

    # Steps

    def _announcement(self, use: KeyUse, epoch: int) -> RegisterKey:
        public = self._load(use, epoch).public_key().public_bytes_raw()
        return RegisterKey(
            purpose=KeyPurpose(use.value), key_id=self.key_id(epoch), public_key=public
        )

    def _stage(self, registry: KeyRegistry, step: StageKey) -> None:
        """Make the private half durable before the registry knows of it; never replace one."""
        path = self._path(step.use, step.epoch)
        if registry.find(step.use, step.epoch) is None:
            if not path.exists():
                fresh = Ed25519PrivateKey.generate()
                write_durably(path, fresh.private_bytes_raw().hex().encode() + b"\n")
            self._note("KeyStaged", step.use, step.epoch)
        self._keep(staged(registry, step, self._now_ms()))
        grant_wish(self._directory, step.use)

    def _activate(self, registry: KeyRegistry, step: ActivateKey) -> None:
        successor = self._load(step.use, step.epoch)
        self._keep(activated(registry, step, self._now_ms()))
        self.signers[step.use].replace(successor)
        self._note("KeyActivated", step.use, step.epoch)

    def _zeroize(self, registry: KeyRegistry, step: ZeroizeKey) -> None:
        """Announce it, overwrite the private half, take the file away, record the proof."""
        registry = zeroizing(registry, step, self._now_ms())
        self._keep(registry)
        path = self._path(step.use, step.epoch)
        if path.exists():
            overwrite(path)
            path.unlink()
            sync_directory(self._directory)
        digest = zeroization_digest(step.epoch)
        self._keep(zeroized(registry, step, digest, self._now_ms()))
        self._note("KeyZeroized", step.use, step.epoch, {"zeroization_digest": digest[:64]})

    # Within

    def _active(self, registry: KeyRegistry, use: KeyUse) -> int:
        active = registry.active(use)
        if active is None:
            raise KeyUnavailable("no signing key is in force", use=use.value)
        return active.epoch

    def _path(self, use: KeyUse, epoch: int) -> Path:
        name = SIGNER_FILE if epoch == 1 else f"signer-{use.value}-{epoch}.key"
        return self._directory / name

    def _load(self, use: KeyUse, epoch: int) -> Ed25519PrivateKey:
        path = self._path(use, epoch)
        try:
            raw = bytes.fromhex(path.read_text(encoding="ascii").strip())
        except (OSError, ValueError) as error:
            raise KeyUnavailable("cannot read a signing key", file=str(path)) from error
        if len(raw) != _KEY_BYTES:
            raise KeyUnavailable("not a signing key", file=str(path))
        return Ed25519PrivateKey.from_private_bytes(raw)

    def _keep(self, registry: KeyRegistry) -> None:
        write_durably(self._directory / REGISTRY_FILE, encode_registry(registry))
        self._registry = registry

    def _note(
        self, what: str, use: KeyUse, epoch: int, facts: dict[str, str] | None = None
    ) -> None:
        journal.info("%s: %s %d", what, use.value, epoch)
        key = f"{use.value}/{epoch}"
        note_step(self.audit, "(key keeper)", what, key, at_ms=self._now_ms(), facts=facts)


def overwrite(path: Path) -> None:
    """Put zeros in the place of a file's bytes, durably."""
    size = path.stat().st_size
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, bytes(size), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Whom to believe.


def snapshot_keys(store: DraftReading) -> list[str]:
    """Return every SnapshotManifestKey that was ever registered: old snapshots are believed."""
    found = scan(store, SigningKey, KeyPurpose.SNAPSHOT_MANIFEST.value)
    return sorted({each.public_key.hex() for each in found})


def read_trusted(directory: Path) -> tuple[str, ...]:
    """Return what was believed before this start, beside the cluster's description."""
    path = directory / TRUSTED_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrustedFile).keys
    except FileNotFoundError:
        return ()
    except msgspec.MsgspecError as error:
        raise KeyUnavailable("the list of signers cannot be read", file=str(path)) from error


def keep_trusted(directory: Path, keys: Iterable[str]) -> None:
    """Remember whom to believe: a start may need it before the control plane is heard."""
    write_durably(directory / TRUSTED_FILE, msgspec.json.encode(TrustedFile(tuple(keys))) + b"\n")
