"""The keys that people sign with for a whole cluster: releases, overrides, emergencies.

keys/office.json                how far each key is, and for which release it was made
keys/office/<use>-<epoch>.key   the private halves, where the device is files
keys/rotate-<use>               an operator's wish for a new key; gone when it is fulfilled
pki/break-glass-ca-<epoch>.pem  the certificate of a break-glass authority

They live where the cluster's authority does, and on no node. `tend` does what is due, one step
at a time, and told again after a crash it goes on where it stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol, assert_never

import msgspec

from clustor.control import Command, KeyPurpose, RegisterKey, RetireKey, SigningKey
from clustor.control.signing import Signature, signed_bytes
from clustor.log.errors import KeyUnavailable
from clustor.runtime.data_directory import write_durably
from clustor.runtime.keys.break_glass import GlassCertificates
from clustor.runtime.keys.device import DeviceKey
from clustor.runtime.keys.lifecycle import grant_wish, is_wished, note_step, wish_for
from clustor.runtime.pki.identity import DevelopmentAuthority
from clustor.security import (
    ActivateKey,
    AuditPort,
    HoldKey,
    KeyEntry,
    KeyRegistry,
    KeyState,
    KeyUse,
    StageKey,
    ZeroizeKey,
    zeroization_digest,
)
from clustor.security.key_device import KeyDevice
from clustor.security.key_registry import check_registry
from clustor.security.key_rotation import activated, staged, zeroized, zeroizing
from clustor.security.signer_rotation import (
    OFFICE_USES,
    AnnounceKey,
    RetireSigner,
    SignerFacts,
    SignerStep,
    plan_signer,
)
from clustor.wall_clock import wall_clock_ms

OFFICE_FILE: Final = "office.json"
OFFICE_DIRECTORY: Final = "office"
_STEPS_MAX: Final = 16  # of one use at a time: a plan that never ends is a bug

journal = logging.getLogger("clustor.keys")


class Registrar(Protocol):
    """The control plane, as the office reaches it."""

    def registered(self) -> Iterable[SigningKey]:
        """Return the public keys that are registered."""
        ...

    def call(self, command: Command) -> None:
        """Let the log decide; raises whatever a refusal is to the caller."""
        ...


class OfficeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the keys are."""

    registry: KeyRegistry = KeyRegistry()
    minors: Mapping[str, str] = {}
    """The control plane's minor that a CPReleaseKey was made for, by its epoch."""
    format_version: int = 1


def read_office(directory: Path) -> OfficeFile:
    """Read how far the keys are; raises KeyUnavailable for what cannot be believed."""
    path = directory / OFFICE_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=OfficeFile)
    except FileNotFoundError:
        return OfficeFile()
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise KeyUnavailable("the office's registry cannot be read", file=str(path)) from error
    if found.format_version != 1:
        raise KeyUnavailable("an office's registry of a later release", file=str(path))
    check_registry(found.registry)
    return found


def minor_of(version: str) -> str:
    """Return the part of a version with which release keys rotate: `1.4` of `1.4.2`."""
    return ".".join(version.split(".")[:2])


class Office:
    """One cluster's office. Raises KeyUnavailable, SecurityError, NodeError and OSError."""

    def __init__(
        self,
        directory: Path,
        device: KeyDevice,
        glass: GlassCertificates,
        *,
        version: str,
        audit: AuditPort | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._directory = directory
        self._device = device
        self._glass = glass
        self._minor = minor_of(version)
        self._audit = audit
        self._now_ms = now_ms
        self._file = read_office(directory)

    @property
    def registry(self) -> KeyRegistry:
        return self._file.registry

    # What it is for.

    def sign(self, purpose: KeyPurpose, content: object) -> Signature:
        """Sign what a control plane record or a release manifest holds, with the key in force."""
        key_id, signed = self.sign_bytes(KeyUse(purpose.value), signed_bytes(purpose, content))
        return Signature(key_id=key_id, signature=signed)

    def sign_bytes(self, use: KeyUse, content: bytes) -> tuple[str, bytes]:
        """Sign with the key in force; return its name and the signature."""
        entry = self._in_force(use)
        return self.key_id(entry), self._device.sign(_label(entry), content)

    def public_key(self, entry: KeyEntry) -> bytes:
        return self._device.public_key(_label(entry))

    def glass_authority(self, lifetime: timedelta) -> DevelopmentAuthority | None:
        """Return who signs break-glass certificates of this lifetime; None: nobody was made."""
        if not self.registry.of(KeyUse.BREAK_GLASS_CA):
            return None
        entry = self._in_force(KeyUse.BREAK_GLASS_CA)
        ends_by = datetime.fromtimestamp(self._now_ms() / 1000, UTC) + lifetime
        return self._glass.authority(entry.epoch, self._key(entry), ends_by)

    def key_id(self, entry: KeyEntry) -> str:
        """Name a key as the control plane's registry does; no two offices share a name."""
        return f"office-{entry.epoch}-{self._device.public_key(_label(entry)).hex()[:16]}"

    # How keys age.

    def wish(self, use: KeyUse) -> None:
        """Let a new key be made before its time; one that is under way is that one."""
        if not any(each.state is KeyState.STAGED for each in self.registry.of(use)):
            wish_for(self._directory, use)

    def tend(self, registrar: Registrar, uses: Iterable[KeyUse] = OFFICE_USES) -> list[SignerStep]:
        """Do everything that is due; return what was done."""
        done: list[SignerStep] = []
        for use in uses:
            for _ in range(_STEPS_MAX):
                step = self._next(use, registrar)
                if step is None or isinstance(step, HoldKey):
                    break
                self._carry_out(step, registrar)
                done.append(step)
        return done

    def _next(self, use: KeyUse, registrar: Registrar) -> SignerStep | None:
        gone = (KeyState.ZEROIZING, KeyState.ZEROIZED)
        entries = self.registry.of(use)
        mine = {self.key_id(each): each.epoch for each in entries if each.state not in gone}
        announced = {
            mine[each.key_id]: each.retires_at
            for each in registrar.registered()
            if each.purpose.value == use.value and each.key_id in mine
        }
        # Of these the public half may be gone; their end was told before it was.
        announced |= {each.epoch: each.ends_at_ms for each in entries if each.state in gone}
        facts = SignerFacts(announced, wanted=self._is_wanted(use))
        return plan_signer(self.registry, use, facts, self._now_ms())

    def _is_wanted(self, use: KeyUse) -> bool:
        if is_wished(self._directory, use):
            return True
        active = self.registry.active(use)
        if use is not KeyUse.CP_RELEASE or active is None:
            return False
        return self._file.minors.get(str(active.epoch)) != self._minor

    def _carry_out(self, step: SignerStep, registrar: Registrar) -> None:
        match step:
            case StageKey():
                self._stage(step)
            case AnnounceKey():
                self._announce(step, registrar)
            case ActivateKey():
                self._activate(step)
            case RetireSigner():
                registrar.call(
                    RetireKey(
                        purpose=KeyPurpose(step.use.value),
                        key_id=self.key_id(self._entry(step.use, step.epoch)),
                        retires_at=step.retires_at_ms,
                    )
                )
            case ZeroizeKey():
                self._zeroize(step)
            case HoldKey():
                pass
            case _:
                assert_never(step)

    def _stage(self, step: StageKey) -> None:
        """Make the private half durable before the registry knows of it."""
        minors = dict(self._file.minors)
        if self.registry.find(step.use, step.epoch) is None:
            self._device.make(f"{step.use.value}-{step.epoch}")
            minors |= {str(step.epoch): self._minor} if step.use is KeyUse.CP_RELEASE else {}
            self._note("KeyStaged", step.use, step.epoch)
        self._keep(staged(self.registry, step, self._now_ms()), minors)
        grant_wish(self._directory, step.use)

    def _announce(self, step: AnnounceKey, registrar: Registrar) -> None:
        entry = self._entry(step.use, step.epoch)
        if step.use is KeyUse.BREAK_GLASS_CA:
            self._glass.certify(step.epoch, self._key(entry), self._now_ms())
            self._give_glass(frozenset())
        registrar.call(
            RegisterKey(
                purpose=KeyPurpose(step.use.value),
                key_id=self.key_id(entry),
                public_key=self._device.public_key(_label(entry)),
            )
        )

    def _activate(self, step: ActivateKey) -> None:
        self._keep(activated(self.registry, step, self._now_ms()))
        self._note("KeyActivated", step.use, step.epoch)

    def _zeroize(self, step: ZeroizeKey) -> None:
        """Announce it, let nobody believe it, destroy the private half, record the proof."""
        self._keep(zeroizing(self.registry, step, self._now_ms()))
        if step.use is KeyUse.BREAK_GLASS_CA:
            self._give_glass(frozenset({step.epoch}))
            self._glass.forget(step.epoch)
        self._device.destroy(f"{step.use.value}-{step.epoch}")
        digest = zeroization_digest(step.epoch)
        self._keep(zeroized(self.registry, step, digest, self._now_ms()))
        self._note("KeyZeroized", step.use, step.epoch, {"zeroization_digest": digest})

    def _give_glass(self, without: frozenset[int]) -> None:
        gone = (KeyState.ZEROIZING, KeyState.ZEROIZED)
        entries = self.registry.of(KeyUse.BREAK_GLASS_CA)
        kept = [each for each in entries if each.state not in gone and each.epoch not in without]
        self._glass.give(((each.epoch, self._key(each)) for each in kept), self._now_ms())

    # Within.

    def _in_force(self, use: KeyUse) -> KeyEntry:
        """Return the key to sign with; a staged one is taken up when its moment is over."""
        for each in self.registry.of(use):
            moment_ms = each.activates_at_ms if each.state is KeyState.STAGED else None
            if moment_ms is not None and self._now_ms() >= moment_ms:
                self._activate(ActivateKey(use, each.epoch))
        active = self.registry.active(use)
        if active is None:
            raise KeyUnavailable("no such key is in force: `quantum keys rotate`", use=use.value)
        return active

    def _entry(self, use: KeyUse, epoch: int) -> KeyEntry:
        found = self.registry.find(use, epoch)
        assert found is not None, "a step for a key that nobody knows"
        return found

    def _key(self, entry: KeyEntry) -> DeviceKey:
        return DeviceKey(self._device, _label(entry))

    def _keep(self, registry: KeyRegistry, minors: Mapping[str, str] | None = None) -> None:
        made = OfficeFile(registry=registry, minors=minors or self._file.minors)
        content = msgspec.json.encode(made, order="sorted") + b"\n"
        write_durably(self._directory / OFFICE_FILE, content)
        self._file = made

    def _note(
        self, what: str, use: KeyUse, epoch: int, facts: dict[str, str] | None = None
    ) -> None:
        journal.info("%s: %s %d", what, use.value, epoch)
        key = f"{use.value}/{epoch}"
        note_step(self._audit, "(office)", what, key, at_ms=self._now_ms(), facts=facts)


def _label(entry: KeyEntry) -> str:
    return f"{entry.use.value}-{entry.epoch}"
