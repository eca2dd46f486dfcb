"""Signed access tokens (quantumqtt §10.4): a JWT as a device shows it, and whether it fits. Pure.

A token is for one client of one tenant, for one connection (it names the nonce that the listener
drew for it) and for a few minutes. Signatures are Ed25519 (`EdDSA`) or ECDSA P-256 (`ES256`); a
token says which key signed it, never which algorithm is to be believed: the key decides that.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

AUDIENCE: Final = "quantumqtt"
SCOPE: Final = "mqtt.connect"
BEARER_AUDIENCE: Final = "quantum"
KAFKA_SCOPE: Final = "kafka.connect"
BINDING_MISMATCH: Final = "TOKEN_BINDING_MISMATCH"
TOKEN_BYTES_MAX: Final = 8 << 10
LIFETIME_SECONDS_MAX: Final = 24 * 3600
"""As long as a tenant's certificate at most (§9.2): these are short-lived by their purpose."""
SKEW_SECONDS: Final = 5
NONCE_BYTES: Final = 32
_P256_BYTES: Final = 32
_PIECES: Final = 3

PublicKey: TypeAlias = Ed25519PublicKey | ec.EllipticCurvePublicKey


class TokenRefused(Exception):
    """A token that lets nobody in; `code` is what the audit log calls it."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class KeysUnreadable(Exception):
    """A set of keys (JWKS) that cannot be used."""


@dataclass(frozen=True, slots=True)
class Claim:
    """To what a token must be bound."""

    tenant_id: str
    client_id: str
    nonce: bytes
    auth_epoch: int = 0
    """Tokens of an older epoch of the tenant let nobody in."""


@dataclass(frozen=True, slots=True)
class Granted:
    """Who a token's bearer is, and until when (Unix seconds)."""

    subject: str
    expires: int
    auth_epoch: int = 0
    """Of which epoch of its tenant the token is."""


class _Head(msgspec.Struct, frozen=True):
    alg: str
    kid: str
    typ: str = "JWT"


class _Claims(msgspec.Struct, frozen=True):
    sub: str
    exp: int
    tenant_id: str
    client_id: str
    nonce: str
    scope: str
    aud: str | list[str]
    cnf: dict[str, Any]
    nbf: int = 0
    auth_epoch: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0


class _BearerClaims(msgspec.Struct, frozen=True):
    sub: str
    exp: int
    tenant_id: str
    scope: str
    aud: str | list[str]
    nbf: int = 0
    auth_epoch: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0


class _Jwk(msgspec.Struct, frozen=True):
    kty: str
    kid: str
    crv: str
    x: str
    y: str = ""


class _Jwks(msgspec.Struct, frozen=True):
    keys: list[_Jwk]


def confirmation_of(nonce: bytes) -> str:
    """Return the thumbprint by which a token is tied to a connection (`cnf`, `nonce#S256`).

    The text ties it to the TLS exporter, which Python's TLS does not give. The nonce was drawn for
    this connection and went through its TLS alone, so it tells connections apart as well.
    """
    return encode_base64url(hashlib.sha256(nonce).digest())


def check_bearer(
    token: bytes, keys: Mapping[str, PublicKey], claim: Claim, scope: str, now_seconds: int
) -> Granted:
    """Return whom a bearer's token names (RFC 7628: SASL has no nonce); raises TokenRefused.

    It is for one tenant and one scope; the claim's client and nonce are not looked at, so it is
    only to be asked for under TLS.
    """
    claims = _read_signed(token, keys, _BearerClaims)
    _check_time(claims, now_seconds)
    audience = [claims.aud] if isinstance(claims.aud, str) else claims.aud
    meant = BEARER_AUDIENCE in audience and scope in claims.scope.split() and bool(claims.sub)
    if not meant or claims.tenant_id != claim.tenant_id:
        raise TokenRefused(BINDING_MISMATCH, "the token is not for this tenant and protocol")
    if claims.auth_epoch < claim.auth_epoch:
        raise TokenRefused("TOKEN_EPOCH_OLD", "the tenant asks for newer tokens")
    return Granted(claims.sub, claims.exp, claims.auth_epoch)


def _read_signed(token: bytes, keys: Mapping[str, PublicKey], kind: type[Any]) -> Any:
    if len(token) > TOKEN_BYTES_MAX:
        raise TokenRefused("TOKEN_MALFORMED", "the token is too large")
    pieces = token.split(b".")
    if len(pieces) != _PIECES:
        raise TokenRefused("TOKEN_MALFORMED", "this is no token")
    head, content, signature = (_decode_piece(piece) for piece in pieces)
    _check_signature(_decode(head, _Head), keys, pieces[0] + b"." + pieces[1], signature)
    return _decode(content, kind)


def check_token(
    token: bytes, keys: Mapping[str, PublicKey], claim: Claim, now_seconds: int
) -> Granted:
    """Return whom a token names, if everything about it fits; raises TokenRefused."""
    claims = _read_signed(token, keys, _Claims)
    _check_time(claims, now_seconds)
    _check_binding(claims, claim)
    if claims.auth_epoch < claim.auth_epoch:
        raise TokenRefused("TOKEN_EPOCH_OLD", "the tenant asks for newer tokens")
    return Granted(claims.sub, claims.exp, claims.auth_epoch)


def _check_signature(
    head: _Head, keys: Mapping[str, PublicKey], signed: bytes, signature: bytes
) -> None:
    key = keys.get(head.kid)
    if key is None:
        raise TokenRefused("TOKEN_KEY_UNKNOWN", "the token is signed by an unknown key")
    try:
        if isinstance(key, Ed25519PublicKey):
            _require(head.alg == "EdDSA")
            key.verify(signature, signed)
        else:
            _require(head.alg == "ES256" and len(signature) == 2 * _P256_BYTES)
            numbers = (signature[:_P256_BYTES], signature[_P256_BYTES:])
            encoded = encode_dss_signature(*(int.from_bytes(each, "big") for each in numbers))
            key.verify(encoded, signed, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise TokenRefused("TOKEN_FORGED", "the token's signature is not its key's") from error


def _require(holds: bool) -> None:
    if not holds:
        raise InvalidSignature


def _check_time(claims: _Claims | _BearerClaims, now_seconds: int) -> None:
    if now_seconds >= claims.exp:
        raise TokenRefused("TOKEN_EXPIRED", "the token has ended")
    if now_seconds + SKEW_SECONDS < claims.nbf:
        raise TokenRefused("TOKEN_EARLY", "the token is not valid yet")
    if claims.exp - now_seconds > LIFETIME_SECONDS_MAX:
        raise TokenRefused("TOKEN_TOO_LONG", "the token lives too long")


def _check_binding(claims: _Claims, claim: Claim) -> None:
    """Refuse a token that lacks any of its binds (§10.4)."""
    audience = [claims.aud] if isinstance(claims.aud, str) else claims.aud
    nonce = encode_base64url(claim.nonce)
    confirmed = claims.cnf.get("nonce#S256")
    bound = (
        AUDIENCE in audience
        and SCOPE in claims.scope.split()
        and bool(claims.sub)
        and claims.tenant_id == claim.tenant_id
        and claims.client_id == claim.client_id
        and hmac.compare_digest(claims.nonce.encode(), nonce.encode())
        and confirmed == confirmation_of(claim.nonce)
    )
    if not bound:
        raise TokenRefused(BINDING_MISMATCH, "the token is not bound to this connection")


def decode_keys(content: bytes) -> dict[str, PublicKey]:
    """Read a set of public keys (JWKS); raises KeysUnreadable."""
    try:
        found = msgspec.json.decode(content, type=_Jwks)
        return {each.kid: _public_key(each) for each in found.keys}
    except (msgspec.MsgspecError, ValueError, TokenRefused) as error:
        raise KeysUnreadable(str(error)) from error


def _public_key(found: _Jwk) -> PublicKey:
    if (found.kty, found.crv) == ("OKP", "Ed25519"):
        return Ed25519PublicKey.from_public_bytes(_decode_piece(found.x.encode()))
    if (found.kty, found.crv) == ("EC", "P-256"):
        x, y = (int.from_bytes(_decode_piece(each.encode()), "big") for each in (found.x, found.y))
        return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    raise ValueError(f"a key of another kind: {found.kty} {found.crv}")


def encode_key(key: Ed25519PublicKey, kid: str) -> dict[str, str]:
    """Return a key as a JWKS lists it."""
    x = encode_base64url(key.public_bytes_raw())
    return {"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x}


def sign_token(claims: Mapping[str, Any], key: Ed25519PrivateKey, kid: str) -> bytes:
    """Make a token, as an issuer does."""
    head = {"alg": "EdDSA", "kid": kid, "typ": "JWT"}
    pieces = [encode_base64url(msgspec.json.encode(each)) for each in (head, dict(claims))]
    signed = ".".join(pieces).encode()
    return signed + b"." + encode_base64url(key.sign(signed)).encode()


def encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode_piece(piece: bytes) -> bytes:
    try:
        return base64.b64decode(piece + b"=" * (-len(piece) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise TokenRefused("TOKEN_MALFORMED", "this is no token") from error


def _decode(content: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # A claim that is missing is a bind that is missing.
        code = BINDING_MISMATCH if kind is _Claims else "TOKEN_MALFORMED"
        raise TokenRefused(code, "the token lacks what it must say") from error
