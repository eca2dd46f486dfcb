"""Private keys in files: what stands in for a hardware module, and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from clustor.log.errors import KeyUnavailable
from clustor.runtime.data_directory import sync_directory, write_durably
from clustor.runtime.keys.signers import overwrite
from clustor.security.key_device import KeyDevice

_KEY_BYTES: Final = 32


class FileKeyDevice:
    """A `KeyDevice` whose keys are files of mode 0600. Whoever reads them has them."""

    is_hardware: Final = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def make(self, label: str) -> bytes:
        path = self._path(label)
        if not path.exists():
            self._directory.mkdir(parents=True, mode=0o700, exist_ok=True)
            fresh = Ed25519PrivateKey.generate()
            write_durably(path, fresh.private_bytes_raw().hex().encode() + b"\n")
        return self.public_key(label)

    def public_key(self, label: str) -> bytes:
        return self._load(label).public_key().public_bytes_raw()

    def sign(self, label: str, data: bytes) -> bytes:
        return self._load(label).sign(data)

    def destroy(self, label: str) -> None:
        path = self._path(label)
        if path.exists():
            overwrite(path)
            path.unlink()
            sync_directory(self._directory)

    def _path(self, label: str) -> Path:
        return self._directory / f"{label}.key"

    def _load(self, label: str) -> Ed25519PrivateKey:
        path = self._path(label)
        try:
            raw = bytes.fromhex(path.read_text(encoding="ascii").strip())
        except (OSError, ValueError) as error:
            raise KeyUnavailable("cannot read a signing key", file=str(path)) from error
        if len(raw) != _KEY_BYTES:
            raise KeyUnavailable("not a signing key", file=str(path))
        return Ed25519PrivateKey.from_private_bytes(raw)


class DeviceKey(Ed25519PrivateKey):
    """A key of a device, for whoever signs certificates and lists with a key object."""

    def __init__(self, device: KeyDevice, label: str) -> None:
        self._device = device
        self._label = label

    def sign(self, data: Any) -> bytes:
        return self._device.sign(self._label, bytes(data))

    def public_key(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self._device.public_key(self._label))

    def private_bytes(self, *_arguments: Any, **_more: Any) -> bytes:
        raise KeyUnavailable("a device gives no key away", label=self._label)

    def private_bytes_raw(self) -> bytes:
        raise KeyUnavailable("a device gives no key away", label=self._label)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self
