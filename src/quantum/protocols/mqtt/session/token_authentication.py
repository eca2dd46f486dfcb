"""The method `quantum-token`: an MQTT 5 client proves by a signed token who it is (§10.4).

    CONNECT (method) ─► AUTH: a nonce ─► AUTH: a token that names it ─► CONNACK

A client that re-authenticates gets another nonce; a token that ends without that ends the
connection, and its will is not said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from quantum.edge.tokens import (
    NONCE_BYTES,
    Claim,
    TokenRefused,
    check_token,
    encode_base64url,
)
from quantum.protocols.mqtt.codec import Connect, ReasonCode
from quantum.protocols.mqtt.session.authentication import (
    AuthenticationAccepted,
    AuthenticationRefused,
    Challenge,
    Exchange,
    Verdict,
    Who,
)
from quantum.tenants.token_keys import TokenKeys

METHOD: Final = "quantum-token"


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
            return AuthenticationRefused(
                ReasonCode.SERVER_UNAVAILABLE, "the tenant's keys cannot be read"
            )
        claim = replace(claim, auth_epoch=self._keys.auth_epoch(claim.tenant_id))
        try:
            granted = check_token(token, keys, claim, self._now_ms() // 1000)
        except TokenRefused as refusal:
            return AuthenticationRefused(why=refusal.reason, audit=refusal.code)
        who, ends_ms = f"token:{granted.subject}", granted.expires * 1000
        return AuthenticationAccepted(None, who, ends_ms, granted.auth_epoch)


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
