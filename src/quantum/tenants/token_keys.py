"""Who may issue tokens for a tenant's devices: key files, and what the control plane says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from quantum.edge.tokens import KeysUnreadable, PublicKey, decode_keys

TOKENS_DIRECTORY: Final = "tokens"
_KEYS_BYTES_MAX: Final = 256 << 10


class TokenKeys(Protocol):
    """Who may issue tokens for a tenant's devices."""

    def of(self, tenant: str) -> Mapping[str, PublicKey] | None:
        """Return the tenant's keys by their ids; None: they cannot be known now."""

    def auth_epoch(self, tenant: str) -> int:
        """Return the epoch that a tenant's tokens must at least be of."""


class TokenKeyFiles:
    """`<tenant>.jwks` in a directory, read again when one was replaced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, tuple[tuple[int, int], Mapping[str, PublicKey] | None]] = {}

    def tenants(self) -> frozenset[str]:
        """Name the tenants whose devices may use tokens."""
        return frozenset(file.stem for file in self._directory.glob("*.jwks"))

    def of(self, tenant: str) -> Mapping[str, PublicKey] | None:
        file = self._directory / f"{tenant}.jwks"
        try:
            found = file.stat()
        except OSError:
            return {}
        stamp = (found.st_mtime_ns, found.st_ino)
        known = self._read.get(tenant)
        if known is None or known[0] != stamp:
            known = self._read[tenant] = (stamp, _keys_in(file, found.st_size))
        return known[1]

    def auth_epoch(self, _tenant: str) -> int:
        """Files know no epochs."""
        return 0


class TokenWords(Protocol):
    """What the control plane says of a tenant's tokens, as this node's copy has it."""

    def setting(self, tenant: str, key: str) -> object: ...

    def names(self) -> Iterable[str]:
        """Name the tenants that it knows."""


class ControlledTokenKeys:
    """The keys of the files, then those of the control plane, which win (quantumqtt §10.4).

    A key that no file has is looked for in the copy: what was read there is good for as long as it
    stands there, so a key that is taken away lets nobody in from the next second or two on. While
    the copy is Expired nobody is asked at all (`quantum.partition.gate`).
    """

    def __init__(self, files: TokenKeyFiles) -> None:
        self._files = files
        self._read: dict[str, tuple[str, Mapping[str, PublicKey] | None]] = {}
        self.words: TokenWords | None = None

    def tenants(self) -> frozenset[str]:
        """Name the tenants whose devices may use tokens."""
        known = self.words.names() if self.words is not None else ()
        return self._files.tenants() | {each for each in known if self._said(each) is not None}

    def of(self, tenant: str) -> Mapping[str, PublicKey] | None:
        filed, said = self._files.of(tenant), self._said(tenant)
        if said is None or filed is None:
            return filed
        known = self._read.get(tenant)
        if known is None or known[0] != said:
            known = self._read[tenant] = (said, _keys_of(said.encode()))
        return None if known[1] is None else {**filed, **known[1]}

    def auth_epoch(self, tenant: str) -> int:
        found = self.words.setting(tenant, "token_auth_epoch") if self.words is not None else None
        return found if isinstance(found, int) else 0

    def _said(self, tenant: str) -> str | None:
        found = self.words.setting(tenant, "token_keys") if self.words is not None else None
        return found if isinstance(found, str) else None


def _keys_of(content: bytes) -> Mapping[str, PublicKey] | None:
    try:
        return decode_keys(content)
    except KeysUnreadable:
        return None


def _keys_in(file: Path, size: int) -> Mapping[str, PublicKey] | None:
    if size > _KEYS_BYTES_MAX:
        return None
    try:
        return _keys_of(file.read_bytes())
    except OSError:
        return None
