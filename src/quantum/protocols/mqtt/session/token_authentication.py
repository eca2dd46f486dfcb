"""The method `quantum-token`: an MQTT 5 client proves by a signed token who it is (§10.4).

    CONNECT (method) ─► AUTH: a nonce ─► AUTH: a token that names it ─► CONNACK

A client that re-authenticates gets another nonce; a token that ends without that ends the
connection, and its will is not said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from quantum.edge.tokens import (
    NONCE_BYTES,
    Claim,
    KeysUnreadable,
    PublicKey,
    TokenRefused,
    check_token,
    decode_keys,
    encode_base64url,
)
from quantum.protocols.mqtt.codec import Connect, ReasonCode
from quantum.protocols.mqtt.session.authentication import (
    Accepted,
    Challenge,
    Exchange,
    Refused,
    Verdict,
    Who,
)

METHOD: Final = "quantum-token"
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


class TokenAuthenticator:
    """The method, for all clients of a node."""

    def __init__(
        self, keys: TokenKeys, entropy: Callable[[int], bytes], now_ms: Callable[[], int]
    ) -> None:
        """`now_ms` is the time of day."""
        self._keys = keys
        self._entropy = entropy
        self._now_ms = now_ms

    def begin(self, _connect: Connect | None, who: Who) -> Exchange:
        return _TokenExchange(self, who, self._entropy(NONCE_BYTES))

    def judge(self, token: bytes, claim: Claim) -> Verdict:
        """Say whether a token lets its bearer in."""
        keys = self._keys.of(claim.tenant_id)
        if keys is None:  # what cannot be known is no 'not authorized' (§10.6)
            return Refused(ReasonCode.SERVER_UNAVAILABLE, "the tenant's keys cannot be read")
        claim = replace(claim, auth_epoch=self._keys.auth_epoch(claim.tenant_id))
        try:
            granted = check_token(token, keys, claim, self._now_ms() // 1000)
        except TokenRefused as refusal:
            return Refused(why=refusal.reason, audit=refusal.code)
        who, ends_ms = f"token:{granted.subject}", granted.expires * 1000
        return Accepted(None, who, ends_ms, granted.auth_epoch)


class _TokenExchange:
    def __init__(self, method: TokenAuthenticator, who: Who, nonce: bytes) -> None:
        self._method = method
        self._claim = Claim(who.tenant, who.client_id, nonce)
        self._is_asked = False

    def step(self, data: bytes | None) -> Verdict:
        if not self._is_asked:  # no token that came with the first word can name the nonce
            self._is_asked = True
            return Challenge(encode_base64url(self._claim.nonce).encode())
        return self._method.judge(data or b"", self._claim)
