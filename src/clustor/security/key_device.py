"""The port to whatever keeps private keys: a hardware module, or files where there is none.

A device never gives a private half away. It makes a key under a label, signs with it, destroys it.
"""

from __future__ import annotations

from typing import Protocol


class KeyDevice(Protocol):
    """Ed25519 keys by label. Failures raise KeyUnavailable or OSError."""

    @property
    def is_hardware(self) -> bool:
        """Whether a private half cannot be copied out of it (clustor §12.4 wants that)."""
        ...

    def make(self, label: str) -> bytes:
        """Make a key durable, or find the one that was made; return its public half."""
        ...

    def public_key(self, label: str) -> bytes:
        """Return the public half, 32 bytes."""
        ...

    def sign(self, label: str, data: bytes) -> bytes:
        """Sign with the key of this label."""
        ...

    def destroy(self, label: str) -> None:
        """Overwrite the private half and forget it; nothing happens where it is gone."""
        ...
