"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, 7677), the server's side, for every protocol.

What is kept of a password is a `ScramCredential`. An exchange (`ScramExchange`) is told each
message and says what goes back; it has no I/O and no chance of its own. There is no channel
binding: a client that insists on one is refused, one that only could do it is not. Passwords are
the bytes that they are (UTF-8): Kafka's clients prepare none (RFC 4013), and most are ASCII.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SCRAM_256: Final = "SCRAM-SHA-256"
SCRAM_512: Final = "SCRAM-SHA-512"
SCRAM_MECHANISMS: Final = (SCRAM_256, SCRAM_512)
ITERATIONS: Final = 16_384
"""What we derive with: the most that KIP-84's tools allow, a few milliseconds for a client."""
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
SALT_BYTES: Final = 16
SALT_BYTES_MAX: Final = 64
_MESSAGE_BYTES_MAX: Final = 4_096
_HASHES: Final = {SCRAM_256: "sha256", SCRAM_512: "sha512"}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What is kept instead of a password: enough to check one, not enough to be one."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def key_bytes(mechanism: str) -> int:
    """Return how long each key of a mechanism is."""
    return hashlib.new(_HASHES[mechanism]).digest_size


def derive_credential(
    mechanism: str, password: bytes, salt: bytes, iterations: int = ITERATIONS
) -> ScramCredential:
    """Derive what is kept from a password."""
    salted = hashlib.pbkdf2_hmac(_HASHES[mechanism], password, salt, iterations)
    return credential_of(mechanism, salted, salt, iterations)


def credential_of(
    mechanism: str, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Make a credential of the salted password that an administrator's client computed."""
    name = _HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    server_key = hmac.digest(salted_password, b"Server Key", name)
    return ScramCredential(salt, iterations, hashlib.new(name, client_key).digest(), server_key)


def is_scram_password(mechanism: str, password: bytes, kept: ScramCredential) -> bool:
    """Say whether a password that was shown in clear is the one of a credential."""
    found = derive_credential(mechanism, password, kept.salt, kept.iterations)
    return hmac.compare_digest(found.stored_key, kept.stored_key)


def decoy_credential(
    mechanism: str, secret: bytes, user: str, like: ScramCredential | None = None
) -> ScramCredential:
    """Make what an unknown user is shown: always the same for it, and no password fits.

    Without it, whoever asks learns by the answer which users there are; `like` is a real one, whose
    iterations and length of salt it takes on.
    """
    salt = hmac.digest(secret, b"salt " + user.encode(), "sha512")
    length, iterations = SALT_BYTES, ITERATIONS
    if like is not None:
        length, iterations = min(len(like.salt), SALT_BYTES_MAX), like.iterations
    keys = bytes(key_bytes(mechanism))
    return ScramCredential(salt[:length], iterations, keys, keys)


class ScramExchange:
    """One exchange: `on_first`, then `on_credential`, then `on_final`; what fails is over."""

    __slots__ = ("_credential", "_first", "_is_known", "_server", "decoy_secret", "mechanism")

    def __init__(self, mechanism: str, decoy_secret: bytes) -> None:
        self.mechanism = mechanism
        self.decoy_secret = decoy_secret
        self._first: _ClientFirst | None = None
        self._server = ""
        self._credential: ScramCredential | None = None
        self._is_known = False

    @property
    def has_begun(self) -> bool:
        """Whether the client has said who it wants to be."""
        return self._first is not None

    @property
    def user(self) -> str:
        """Whom the client says it is."""
        assert self._first is not None
        return self._first.user

    def on_first(self, message: bytes) -> str | None:
        """Take the client's opening; return whose credential to look up, None: it is refused."""
        assert self._first is None, "an exchange begins once"
        self._first = _read_first(message)
        return None if self._first is None else self._first.user

    def on_credential(
        self,
        credential: ScramCredential | None,
        draw_nonce: Callable[[], str],
        like: ScramCredential | None = None,
    ) -> bytes:
        """Take what is kept for the user; return what goes to the client.

        None is an unknown one, who is led on with a decoy like `like`, and refused at the end.
        """
        assert self._first is not None and self._credential is None
        self._is_known = credential is not None
        self._credential = credential or decoy_credential(
            self.mechanism, self.decoy_secret, self._first.user, like
        )
        salt = base64.b64encode(self._credential.salt).decode()
        nonce = f"r={self._first.nonce}{draw_nonce()}"
        self._server = f"{nonce},s={salt},i={self._credential.iterations}"
        return self._server.encode()

    def on_final(self, message: bytes) -> bytes | None:
        """Take the client's proof; return our own, which lets it in, or None: it is refused."""
        assert self._first is not None and self._credential is not None
        proof = self._proof(message)
        if proof is None:
            return None
        name, kept = _HASHES[self.mechanism], self._credential
        auth = f"{self._first.bare},{self._server},{message.decode().rpartition(',p=')[0]}".encode()
        signature = hmac.digest(kept.stored_key, auth, name)
        if len(proof) != len(signature):
            return None
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        fits = hmac.compare_digest(hashlib.new(name, client_key).digest(), kept.stored_key)
        if not fits or not self._is_known:
            return None
        return b"v=" + base64.b64encode(hmac.digest(kept.server_key, auth, name))

    def _proof(self, message: bytes) -> bytes | None:
        """Read the proof of a last message that repeats our nonce and the client's own header."""
        assert self._first is not None
        without, found, proof = (_text(message) or "").rpartition(",p=")
        channel = base64.b64encode(self._first.header.encode()).decode()
        if not found or without.split(",")[:2] != [f"c={channel}", self._server.partition(",")[0]]:
            return None
        try:
            return base64.b64decode(proof, validate=True)
        except (binascii.Error, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class _ClientFirst:
    """The client's opening words; `bare` is what the proof covers."""

    user: str
    nonce: str
    bare: str
    header: str


def _read_first(message: bytes) -> _ClientFirst | None:
    """Read the client's opening, or None where it is not one or wants what we do not do."""
    text = _text(message)
    if text is None or text[:1] not in {"n", "y"}:
        return None
    header, comma, rest = text.partition(",")
    authzid, comma_2, bare = rest.partition(",")
    fields = bare.split(",")
    if not (comma and comma_2) or len(fields) < 2 or fields[0][:2] != "n=":
        return None
    user, nonce = _unescape(fields[0][2:]), fields[1][2:]
    if not user or fields[1][:2] != "r=" or not nonce or (authzid and authzid[:2] != "a="):
        return None
    if authzid and _unescape(authzid[2:]) != user:
        return None  # to act for another is not for this exchange
    return _ClientFirst(user, nonce, bare, f"{header},{authzid},")


def _text(message: bytes) -> str | None:
    if len(message) > _MESSAGE_BYTES_MAX:
        return None
    try:
        return message.decode()
    except UnicodeDecodeError:
        return None


def _unescape(name: str) -> str:
    """Undo RFC 5802's escapes of a name; an empty answer is an illegal one."""
    parts = name.split("=")
    for nth, part in enumerate(parts[1:], 1):
        code = {"2C": ",", "3D": "="}.get(part[:2])
        if code is None:
            return ""
        parts[nth] = code + part[2:]
    return "".join(parts)
