"""Access tokens (quantumqtt §10.4): every bind must be there, and the key decides the algorithm."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from hypothesis import given
from hypothesis import strategies as st

from quantum.edge.tokens import (
    BINDING_MISMATCH,
    Claim,
    Granted,
    KeysUnreadable,
    TokenRefused,
    check_token,
    confirmation_of,
    decode_keys,
    encode_base64url,
    encode_key,
    sign_token,
)

NOW = 1_800_000_000
NONCE = bytes(range(32))
CLAIM = Claim("acme", "lamp-7", NONCE)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
EC_KEY = ec.derive_private_key(7, ec.SECP256R1())


def coordinate(number: int) -> str:
    return encode_base64url(number.to_bytes(32, "big"))


def key_set() -> bytes:
    numbers = EC_KEY.public_key().public_numbers()
    curve = {"kty": "EC", "crv": "P-256", "kid": "k2"}
    curve |= {"x": coordinate(numbers.x), "y": coordinate(numbers.y)}
    return json.dumps({"keys": [encode_key(KEY.public_key(), "k1"), curve]}).encode()


KEYS = decode_keys(key_set())


def claims(**changed: Any) -> dict[str, Any]:
    whole = {
        "sub": "device-7",
        "exp": NOW + 300,
        "aud": "quantumqtt",
        "scope": "mqtt.connect",
        "tenant_id": "acme",
        "client_id": "lamp-7",
        "nonce": encode_base64url(NONCE),
        "cnf": {"nonce#S256": confirmation_of(NONCE)},
    }
    return {name: value for name, value in (whole | changed).items() if value is not None}


def refused(token: bytes) -> str:
    with pytest.raises(TokenRefused) as raised:
        check_token(token, KEYS, CLAIM, NOW)
    return raised.value.code


def test_a_token_that_fits_names_its_bearer() -> None:
    assert check_token(sign_token(claims(), KEY, "k1"), KEYS, CLAIM, NOW) == Granted(
        "device-7", NOW + 300
    )
    several = claims(aud=["else", "quantumqtt"], scope="other mqtt.connect", nbf=NOW + 5)
    check_token(sign_token(several, KEY, "k1"), KEYS, CLAIM, NOW)


def es256(content: dict[str, Any], head: dict[str, str]) -> bytes:
    pieces = [encode_base64url(json.dumps(each).encode()) for each in (head, content)]
    signed = ".".join(pieces).encode()
    r, s = decode_dss_signature(EC_KEY.sign(signed, ec.ECDSA(hashes.SHA256())))
    raw = r.to_bytes(32, "big") + s.to_bytes(32, "big")
    return signed + b"." + encode_base64url(raw).encode()


def test_es256_is_believed_where_the_key_is_of_that_kind() -> None:
    token = es256(claims(), {"alg": "ES256", "kid": "k2"})
    assert check_token(token, KEYS, CLAIM, NOW).subject == "device-7"
    assert refused(es256(claims(), {"alg": "EdDSA", "kid": "k2"})) == "TOKEN_FORGED"
    assert refused(es256(claims(), {"alg": "ES256", "kid": "k1"})) == "TOKEN_FORGED"
    assert refused(es256(claims(), {"alg": "none", "kid": "k2"})) == "TOKEN_FORGED"


UNBOUND = {
    "another tenant": claims(tenant_id="other"),
    "another client": claims(client_id="lamp-8"),
    "another connection": claims(nonce=encode_base64url(bytes(32))),
    "another thumbprint": claims(cnf={"nonce#S256": confirmation_of(bytes(32))}),
    "no thumbprint": claims(cnf={}),
    "another audience": claims(aud="else"),
    "another scope": claims(scope="mqtt.connects"),
    "nobody": claims(sub=""),
    **{
        f"without {name}": claims(**{name: None})
        for name in ("sub", "aud", "scope", "tenant_id", "client_id", "nonce", "cnf", "exp")
    },
}


@pytest.mark.parametrize("content", UNBOUND.values(), ids=UNBOUND.keys())
def test_a_missing_bind_is_a_binding_mismatch(content: dict[str, Any]) -> None:
    assert refused(sign_token(content, KEY, "k1")) == BINDING_MISMATCH


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (claims(exp=NOW), "TOKEN_EXPIRED"),
        (claims(nbf=NOW + 6), "TOKEN_EARLY"),
        (claims(exp=NOW + 86_401), "TOKEN_TOO_LONG"),
    ],
)
def test_time_is_checked(content: dict[str, Any], code: str) -> None:
    assert refused(sign_token(content, KEY, "k1")) == code


def test_what_somebody_else_signed_is_refused() -> None:
    other = Ed25519PrivateKey.generate()
    assert refused(sign_token(claims(), other, "k1")) == "TOKEN_FORGED"
    assert refused(sign_token(claims(), KEY, "k9")) == "TOKEN_KEY_UNKNOWN"
    head, _, signature = sign_token(claims(), KEY, "k1").split(b".")
    swapped = base64.urlsafe_b64encode(json.dumps(claims(client_id="x")).encode()).rstrip(b"=")
    assert refused(b".".join((head, swapped, signature))) == "TOKEN_FORGED"


@given(st.binary(max_size=200))
def test_garbage_is_refused_in_our_words(garbage: bytes) -> None:
    with pytest.raises(TokenRefused):
        check_token(garbage, KEYS, CLAIM, NOW)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_signed_garbage_is_refused_in_our_words(head: bytes, content: bytes) -> None:
    pieces = [encode_base64url(each).encode() for each in (head, content, b"x" * 64)]
    with pytest.raises(TokenRefused):
        check_token(b".".join(pieces), KEYS, CLAIM, NOW)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b'{"keys":[{"kty":"RSA","kid":"a","crv":"","x":""}]}', key_set()[:-3],
     b'{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"AA"}]}'],
)  # fmt: skip
def test_keys_that_cannot_be_used_are_refused(content: bytes) -> None:
    with pytest.raises(KeysUnreadable):
        decode_keys(content)


@pytest.mark.parametrize(
    ("of_token", "of_tenant", "lets_in"),
    [(None, 0, True), (None, 1, False), (1, 1, True), (2, 1, True), (1, 2, False)],
)
def test_a_token_of_an_older_epoch_lets_nobody_in(
    of_token: int | None, of_tenant: int, lets_in: bool
) -> None:
    token = sign_token(claims(auth_epoch=of_token), KEY, "k1")
    claim = replace(CLAIM, auth_epoch=of_tenant)
    if lets_in:
        assert check_token(token, KEYS, claim, NOW).auth_epoch == (of_token or 0)
        return
    with pytest.raises(TokenRefused) as raised:
        check_token(token, KEYS, claim, NOW)
    assert raised.value.code == "TOKEN_EPOCH_OLD"
