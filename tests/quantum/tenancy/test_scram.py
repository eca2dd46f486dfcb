"""SCRAM by the RFCs' own examples, by a client written from the RFC, and by what is none."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random

import pytest

from quantum.tenancy import (
    SCRAM_256,
    SCRAM_512,
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramExchange,
    derive_credential,
    is_scram_password,
    key_bytes,
)

HASH = {SCRAM_256: "sha256", SCRAM_512: "sha512"}
RFC_SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


class Client:
    """The client's side, from RFC 5802 section 3, and nothing of ours."""

    def __init__(self, mechanism: str, user: str, password: bytes) -> None:
        self.name, self.password = HASH[mechanism], password
        self.bare = f"n={user},r=clientnonce"

    def first(self) -> bytes:
        return f"n,,{self.bare}".encode()

    def final(self, server: bytes) -> bytes:
        fields = dict(each.split("=", 1) for each in server.decode().split(","))
        salt, count = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac(self.name, self.password, salt, count)
        client_key = hmac.digest(salted, b"Client Key", self.name)
        stored = hashlib.new(self.name, client_key).digest()
        without = f"c=biws,r={fields['r']}"
        auth = f"{self.bare},{server.decode()},{without}".encode()
        signature = hmac.digest(stored, auth, self.name)
        self.expected = hmac.digest(hmac.digest(salted, b"Server Key", self.name), auth, self.name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without},p={base64.b64encode(proof).decode()}".encode()


def talk(
    mechanism: str, kept: ScramCredential | None, password: bytes = b"pencil"
) -> tuple[bytes | None, Client]:
    client, server = Client(mechanism, "ann", password), ScramExchange(mechanism, b"secret")
    assert server.on_first(client.first()) == "ann"
    shown = server.on_credential(kept, lambda: "servernonce")
    return server.on_final(client.final(shown)), client


def test_the_example_of_rfc_7677() -> None:
    exchange = ScramExchange(SCRAM_256, b"secret")
    assert exchange.on_first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == "user"
    shown = exchange.on_credential(
        derive_credential(SCRAM_256, b"pencil", RFC_SALT, 4096),
        lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    )
    nonce = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert shown == nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = exchange.on_final(
        b"c=biws," + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_a_right_password_lets_in_and_the_server_proves_itself(mechanism: str) -> None:
    kept = derive_credential(mechanism, b"pencil", b"0123456789abcdef", 4096)
    final, client = talk(mechanism, kept)
    assert final == b"v=" + base64.b64encode(client.expected)
    assert talk(mechanism, kept, b"pencil ")[0] is None
    assert talk(mechanism, None)[0] is None
    assert is_scram_password(mechanism, b"pencil", kept)
    assert not is_scram_password(mechanism, b"Pencil", kept)


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_nobody_can_prove_the_keys_of_a_decoy(mechanism: str) -> None:
    """Its stored key is known (zeros): whoever finds a proof for it is refused all the same."""
    zeros = bytes(key_bytes(mechanism))
    assert talk(mechanism, ScramCredential(b"salt", 4096, zeros, zeros))[0] is None


def test_a_decoy_looks_like_a_real_one_and_is_always_the_same() -> None:
    like = derive_credential(SCRAM_256, b"x", b"s" * 26, 4096)

    def shown(user: str, like: ScramCredential | None) -> dict[str, str]:
        exchange = ScramExchange(SCRAM_256, b"secret")
        assert exchange.on_first(f"n,,n={user},r=x".encode()) == user
        said = exchange.on_credential(None, lambda: "y", like).decode()
        return dict(each.split("=", 1) for each in said.split(","))

    assert shown("eve", like) == shown("eve", like)
    assert shown("eve", like)["i"] == "4096"
    assert len(base64.b64decode(shown("eve", like)["s"])) == 26
    assert shown("eve", like)["s"] != shown("mallory", like)["s"]
    assert (shown("eve", None)["i"], len(base64.b64decode(shown("eve", None)["s"]))) == (
        "16384",
        16,
    )


@pytest.mark.parametrize("seed", range(6))
def test_mutated_messages_are_refused_and_raise_nothing(seed: int) -> None:
    rng = random.Random(seed)
    kept = derive_credential(SCRAM_256, b"pencil", b"salt", 4096)
    for _ in range(500):
        client, server = Client(SCRAM_256, "ann", b"pencil"), ScramExchange(SCRAM_256, b"secret")
        first = bytearray(client.first())
        if rng.random() < 0.5:
            first[rng.randrange(len(first))] = rng.choice(b"\0,=nyp\xff")
        if server.on_first(bytes(first)) is None:
            continue
        final = bytearray(client.final(server.on_credential(kept, lambda: "n")))
        place = rng.randrange(len(final))
        was, final[place] = final[place], rng.choice(b"\0,=cprA\xff")
        if final[place] != was:
            assert server.on_final(bytes(final)) is None, bytes(final)
