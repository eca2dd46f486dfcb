"""SASL: by the RFCs' own examples, by stock clients, and by whatever else may come."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random

import pytest

from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.requests import (
    OAUTHBEARER,
    PLAIN,
    CheckPassword,
    CheckToken,
    KafkaSaslExchange,
    LookUpScram,
    SaslReply,
    SaslStep,
)
from quantum.tenancy import SCRAM_256, SCRAM_512, credential_of, derive_credential

ALL = (PLAIN, SCRAM_256, SCRAM_512, OAUTHBEARER)
FAILED = KafkaCode.sasl_authentication_failed
ILLEGAL = KafkaCode.illegal_sasl_state
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = derive_credential(SCRAM_256, b"pencil", SALT, 4096)
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange(mechanism: str | None = None) -> KafkaSaslExchange:
    made = KafkaSaslExchange(ALL, lambda: NONCE, b"secret")
    if mechanism is not None:
        assert made.on_handshake(mechanism) is KafkaCode.none
    return made


def error_of(step: SaslStep) -> KafkaCode:
    assert isinstance(step, SaslReply), step
    return step.error


def test_scram_as_the_rfc_has_it() -> None:
    """RFC 7677, section 3, word for word."""
    sasl = exchange(SCRAM_256)
    assert sasl.on_message(CLIENT_FIRST) == LookUpScram(SCRAM_256, "user")
    assert sasl.on_credential(PENCIL) == SaslReply(KafkaCode.none, SERVER_FIRST)
    assert sasl.on_message(CLIENT_FINAL) == SaslReply(KafkaCode.none, SERVER_FINAL, "user")
    assert (sasl.principal, sasl.failed) == ("user", False)


def test_a_credential_is_the_same_by_either_way() -> None:
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    assert credential_of(SCRAM_256, salted, SALT, 4096) == PENCIL


def test_an_unknown_user_is_led_on_and_refused() -> None:
    """Twice the same salt, no word that differs, and no proof that fits, not even a forged one."""
    shown = []
    step: SaslStep | None = None
    for _ in range(2):
        sasl = exchange(SCRAM_256)
        sasl.on_message(CLIENT_FIRST)
        reply = sasl.on_credential(None)
        shown.append(reply.data)
        assert reply.error is KafkaCode.none
        step = sasl.on_message(CLIENT_FINAL)
        assert error_of(step) is FAILED
        assert sasl.failed
    assert shown[0] == shown[1]
    wrong = exchange(SCRAM_256)
    wrong.on_message(CLIENT_FIRST)
    wrong.on_credential(derive_credential(SCRAM_256, b"other", SALT, 4096))
    assert wrong.on_message(CLIENT_FINAL) == step


def proven(server: str, without: str, password: bytes = b"pencil") -> bytes:
    """Make a client's last words with a proof that fits them, whatever they say."""
    salted = hashlib.pbkdf2_hmac("sha256", password, SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    auth = f"n=user,r=rOprNGfwEbeRWgbNEkqO,{server},{without}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), auth, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(
    ("without", "code"),
    [
        ("c=biws,{nonce}", KafkaCode.none),
        ("c=biws,{nonce},x=more", KafkaCode.none),
        ("c=eSws,{nonce}", FAILED),
        ("c=biws,r=rOprNGfwEbeRWgbNEkqO", FAILED),
        ("c=biws,{nonce}x", FAILED),
        ("{nonce},c=biws", FAILED),
    ],
)
def test_a_proof_does_not_make_up_for_another_nonce_or_channel(
    without: str, code: KafkaCode
) -> None:
    sasl = exchange(SCRAM_256)
    sasl.on_message(CLIENT_FIRST)
    server = sasl.on_credential(PENCIL).data.decode()
    final = proven(server, without.format(nonce=server.partition(",")[0]))
    assert error_of(sasl.on_message(final)) is code


BAD_FIRST = [
    b"",
    b"n,,",
    b"p=tls-unique,,n=user,r=x",
    b"n,,r=x,n=user",
    b"n,,n=,r=x",
    b"n,,n=user,r=",
    b"n,,n=us=er,r=x",
    b"n,,m=ext,n=user,r=x",
    b"n,a=other,n=user,r=x",
    b"\xff\xfe",
    b"n,,n=user,r=" + b"x" * 5000,
]


@pytest.mark.parametrize("message", BAD_FIRST)
def test_openings_that_are_none_are_refused(message: bytes) -> None:
    assert error_of(exchange(SCRAM_256).on_message(message)) is FAILED


def test_names_are_unescaped() -> None:
    step = exchange(SCRAM_512).on_message(b"n,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=x")
    assert step == LookUpScram(SCRAM_512, "a,b=c")


@pytest.mark.parametrize(
    "final",
    [
        b"",
        CLIENT_FINAL.replace(b"biws", b"eSws"),
        CLIENT_FINAL.replace(b"hvYD", b"hvYE"),
        CLIENT_FINAL.replace(b"p=dHzb", b"p=dHzc"),
        CLIENT_FINAL.replace(b"p=dHzb", b"p=!!!!"),
        CLIENT_FINAL[:-8],
        CLIENT_FINAL.partition(b",p=")[0],
    ],
)
def test_proofs_that_do_not_fit_are_refused(final: bytes) -> None:
    sasl = exchange(SCRAM_256)
    sasl.on_message(CLIENT_FIRST)
    sasl.on_credential(PENCIL)
    assert error_of(sasl.on_message(final)) is FAILED
    assert error_of(sasl.on_message(CLIENT_FINAL)) is ILLEGAL, "there is no second try"


def test_plain() -> None:
    for message in (b"\0user\0pw", b"user\0user\0pw"):
        sasl = exchange(PLAIN)
        assert sasl.on_message(message) == CheckPassword("user", b"pw")
        assert sasl.on_password(matches=True) == SaslReply(KafkaCode.none, b"", "user")
    sasl = exchange(PLAIN)
    sasl.on_message(b"\0user\0pw")
    assert error_of(sasl.on_password(matches=False)) is FAILED
    assert "pw" not in repr(CheckPassword("user", b"pw"))


@pytest.mark.parametrize(
    "message",
    [b"", b"user", b"\0user", b"\0user\0", b"\0\0pw", b"\0a\0b\0c", b"x\0user\0pw", b"\0\xff\0pw"],
)
def test_plain_that_is_none_is_refused(message: bytes) -> None:
    assert error_of(exchange(PLAIN).on_message(message)) is FAILED


def test_bearer_tokens() -> None:
    sasl = exchange(OAUTHBEARER)
    step = sasl.on_message(b"n,,\x01auth=Bearer abc.def\x01ext=1\x01\x01")
    assert step == CheckToken("abc.def")
    assert "abc" not in repr(step)
    assert sasl.on_token("alice", 60_000) == SaslReply(KafkaCode.none, b"", "alice", 60_000)
    sasl = exchange(OAUTHBEARER)
    sasl.on_message(b"n,,\x01auth=Bearer abc\x01\x01")
    refused = sasl.on_token(None)
    assert (refused.error, refused.data) == (KafkaCode.none, b'{"status":"invalid_token"}')
    assert error_of(sasl.on_message(b"\x01")) is FAILED
    for message in (
        b"",
        b"n,,",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"\xff",
    ):
        assert error_of(exchange(OAUTHBEARER).on_message(message)) is FAILED


def test_the_order_of_things() -> None:
    assert exchange().on_handshake("GSSAPI") is KafkaCode.unsupported_sasl_mechanism
    assert error_of(exchange().on_message(b"x")) is ILLEGAL
    twice = exchange(PLAIN)
    assert twice.on_handshake(PLAIN) is ILLEGAL
    assert error_of(twice.on_message(b"\0u\0p")) is ILLEGAL
    done = exchange(PLAIN)
    done.on_message(b"\0u\0p")
    assert error_of(done.on_message(b"\0u\0p")) is ILLEGAL, "a question is open"
    done = exchange(PLAIN)
    done.on_message(b"\0u\0p")
    done.on_password(matches=True)
    assert error_of(done.on_message(b"\0u\0p")) is ILLEGAL


@pytest.mark.parametrize("seed", range(8))
def test_whatever_comes_is_a_reply_or_a_question(seed: int) -> None:
    rng = random.Random(seed)
    real = [CLIENT_FIRST, CLIENT_FINAL, b"\0user\0pw", b"n,,\x01auth=Bearer abc\x01\x01"]
    let_in = 0
    for _ in range(400):
        sasl = exchange(rng.choice(ALL))
        for _ in range(3):
            message = bytearray(rng.choice(real))
            for _ in range(rng.choice([0, 0, 1, 2])):
                message[rng.randrange(len(message))] = rng.choice(b"\0\x01,=nrp\xff")
            step = sasl.on_message(bytes(message))
            if isinstance(step, LookUpScram):
                step = sasl.on_credential(PENCIL if step.user == "user" else None)
            elif isinstance(step, CheckPassword):
                step = sasl.on_password(matches=(step.user, step.password) == ("user", b"pw"))
            elif isinstance(step, CheckToken):
                step = sasl.on_token("user" if step.token == "abc" else None)
            if step.principal is not None:
                let_in += 1
                assert step.principal == "user"
    assert let_in > 10
