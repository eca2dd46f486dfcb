"""TLS 1.3 records of one connection whose handshake is over (RFC 8446 §5): seal, open, new keys.

OpenSSL keeps 25 KiB for a session that says nothing: the client's certificates, what the handshake
was chosen from, buffers. What is left to do after the handshake is this file, on 5 KiB. Nothing
is decided here that a handshake decides: no certificates, no versions, no tickets, no resumption.

The cipher is the library's. What must be right here: a nonce is never used twice under one key
(the sequence only grows, and the key changes long before AES-GCM wears out, §5.5), the header is
what is authenticated, and nothing unauthenticated is acted upon, but a length.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from quantum.edge.errors import ClientRefused

PLAIN_BYTES_MAX: Final = 1 << 14
_SEALED_BYTES_MAX: Final = PLAIN_BYTES_MAX + 256
_HEADER_BYTES: Final = 5
_TAG_BYTES: Final = 16
_IV_BYTES: Final = 12
_RECORDS_PER_KEY: Final = 1 << 23
"""AES-GCM bears 2^24.5 full records under one key (§5.5)."""
_USELESS_MAX: Final = 16
"""How many records in a row may bring no data: each of them costs us, and a client nothing."""

_ALERT: Final = 21
_HANDSHAKE: Final = 22
_DATA: Final = 23
_ALERT_BYTE: Final = bytes((_ALERT,))
_HANDSHAKE_BYTE: Final = bytes((_HANDSHAKE,))
_DATA_BYTE: Final = bytes((_DATA,))
_KEY_UPDATE: Final = b"\x18\x00\x00\x01"
_UPDATE_NOT_REQUESTED: Final = b"\x00"
_UPDATE_REQUESTED: Final = b"\x01"

_CLOSE_NOTIFY: Final = 0
_UNEXPECTED_MESSAGE: Final = 10
_BAD_RECORD_MAC: Final = 20
_RECORD_OVERFLOW: Final = 22
_DECODE_ERROR: Final = 50
_USER_CANCELED: Final = 90
_FATAL: Final = 2
_WARNING: Final = 1


@dataclass(frozen=True, slots=True)
class Suite:
    """A cipher suite of TLS 1.3."""

    key_bytes: int
    digest: str
    secret_bytes: int


SUITES: Final = {
    "TLS_AES_128_GCM_SHA256": Suite(16, "sha256", 32),
    "TLS_AES_256_GCM_SHA384": Suite(32, "sha384", 48),
}


def expand_label(suite: Suite, secret: bytes, label: bytes, length: int) -> bytes:
    """HKDF-Expand-Label without a context (§7.1); never longer than the digest, so one block."""
    assert length <= suite.secret_bytes
    name = b"tls13 " + label
    info = length.to_bytes(2, "big") + bytes((len(name),)) + name + b"\x00"
    return hmac.digest(secret, info + b"\x01", suite.digest)[:length]


class RecordKeys:
    """One direction's key: its cipher, and the number that the next record has under it."""

    __slots__ = ("_iv", "_secret", "_suite", "cipher", "sequence")

    def __init__(self, suite: Suite, secret: bytes) -> None:
        assert len(secret) == suite.secret_bytes
        self._suite = suite
        self._take(secret)

    def _take(self, secret: bytes) -> None:
        suite = self._suite
        self._secret = secret
        self._iv = int.from_bytes(expand_label(suite, secret, b"iv", _IV_BYTES), "big")
        self.cipher = AESGCM(expand_label(suite, secret, b"key", suite.key_bytes))
        self.sequence = 0

    def nonce(self) -> bytes:
        """Return the next record's nonce, which nobody gets again."""
        sequence = self.sequence
        self.sequence = sequence + 1
        return (self._iv ^ sequence).to_bytes(_IV_BYTES, "big")

    def renew(self) -> None:
        """Go on under the next secret (§7.2)."""
        suite = self._suite
        self._take(expand_label(suite, self._secret, b"traffic upd", suite.secret_bytes))


class TlsRecords:
    """Both directions. After a ClientRefused, `take_outgoing` has the alert that says so."""

    __slots__ = ("_outgoing", "_read", "_rest", "_useless", "_write")

    def __init__(
        self, suite: Suite, *, read_secret: bytes, write_secret: bytes, rest: bytes = b""
    ) -> None:
        """Begin behind a handshake; `rest` is what the peer sent behind it."""
        self._read = RecordKeys(suite, read_secret)
        self._write = RecordKeys(suite, write_secret)
        self._rest = rest
        """The beginning of a record: never more than one, once something was received."""
        self._useless = 0
        self._outgoing = b""

    @property
    def sequences(self) -> tuple[int, int]:
        """Which numbers the next records have: of those read, and of those written."""
        return self._read.sequence, self._write.sequence

    def receive(self, data: bytes) -> tuple[bytes, bool]:
        """Return the plaintext that the bytes complete, and whether the peer has ended.

        Raises ClientRefused where the bytes are not of this session; then it is over.
        """
        if self._rest:
            data, self._rest = self._rest + data, b""
        pieces: list[bytes] = []
        ended = False
        at, size = 0, len(data)
        while size - at >= _HEADER_BYTES and not ended:
            end = at + _HEADER_BYTES + self._length(data, at)
            if end > size:
                break
            kind, content = self._open(data[at : at + _HEADER_BYTES], data[at + 5 : end])
            at = end
            if kind == _DATA and content:
                self._useless = 0
                pieces.append(content)
            else:
                ended = self._on_useless(kind, content)
        if not ended and at < size:
            self._rest = data[at:] if at else data
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), ended

    def _length(self, data: bytes, at: int) -> int:
        """Return how long a record is; everything has the type of data from the outside."""
        length = data[at + 3] << 8 | data[at + 4]
        if data[at] != _DATA:
            raise self._refusal(_UNEXPECTED_MESSAGE, "a record of another type")
        if length > _SEALED_BYTES_MAX:
            raise self._refusal(_RECORD_OVERFLOW, "a record is too long")
        return length

    def _open(self, header: bytes, sealed: bytes) -> tuple[int, bytes]:
        """Return what is in a record, and of which type it is, without its padding (§5.4)."""
        keys = self._read
        try:
            inner = keys.cipher.decrypt(keys.nonce(), sealed, header)
        except (InvalidTag, ValueError):
            raise self._refusal(_BAD_RECORD_MAC, "a record is not of this session") from None
        if len(inner) > PLAIN_BYTES_MAX + 1:
            raise self._refusal(_RECORD_OVERFLOW, "a record is too long")
        if inner and not inner[-1]:
            inner = inner.rstrip(b"\x00")
        if not inner:
            raise self._refusal(_UNEXPECTED_MESSAGE, "a record without a type")
        return inner[-1], inner[:-1]

    def _on_useless(self, kind: int, content: bytes) -> bool:
        """Take a record that brings no data; return whether it ends the peer's side."""
        self._useless += 1
        if self._useless > _USELESS_MAX:
            raise self._refusal(_UNEXPECTED_MESSAGE, "too many records without data")
        if kind == _ALERT:
            return self._on_alert(content)
        if kind == _HANDSHAKE:
            self._on_handshake(content)
        elif kind != _DATA:
            raise self._refusal(_UNEXPECTED_MESSAGE, "a record of an unknown type")
        return False

    def _on_alert(self, content: bytes) -> bool:
        if len(content) != 2:
            raise self._refusal(_DECODE_ERROR, "an alert of the wrong length")
        if content[1] == _USER_CANCELED:  # it closes next (§6.1)
            return False
        if content[1] != _CLOSE_NOTIFY:
            raise ClientRefused("the client ended with an alert", alert=content[1])
        return True

    def _on_handshake(self, content: bytes) -> None:
        """Take new keys: after the handshake a client may say nothing else of that kind."""
        asked = content[len(_KEY_UPDATE) :]
        is_update = content.startswith(_KEY_UPDATE)
        if not is_update or asked not in (_UPDATE_NOT_REQUESTED, _UPDATE_REQUESTED):
            raise self._refusal(_UNEXPECTED_MESSAGE, "a handshake message out of place")
        self._read.renew()
        if asked == _UPDATE_REQUESTED:
            self._outgoing += self._update_keys()

    def send(self, data: bytes) -> bytes:
        """Return the records that bring `data`; nothing brings nothing."""
        if not data:
            return b""
        if len(data) <= PLAIN_BYTES_MAX:
            return self._seal(data, _DATA_BYTE)
        starts = range(0, len(data), PLAIN_BYTES_MAX)
        return b"".join(
            self._seal(data[start : start + PLAIN_BYTES_MAX], _DATA_BYTE) for start in starts
        )

    def _seal(self, content: bytes, kind: bytes) -> bytes:
        keys = self._write
        update = self._update_keys() if keys.sequence >= _RECORDS_PER_KEY else b""
        length = len(content) + 1 + _TAG_BYTES
        header = b"\x17\x03\x03" + length.to_bytes(2, "big")
        return update + header + keys.cipher.encrypt(keys.nonce(), content + kind, header)

    def _update_keys(self) -> bytes:
        """Say under the old key that the next one comes (§4.6.3)."""
        keys = self._write
        content = _KEY_UPDATE + _UPDATE_NOT_REQUESTED + _HANDSHAKE_BYTE
        header = b"\x17\x03\x03" + (len(content) + _TAG_BYTES).to_bytes(2, "big")
        said = header + keys.cipher.encrypt(keys.nonce(), content, header)
        keys.renew()
        return said

    def end(self) -> bytes:
        """Say goodbye, so that the peer knows that nothing was cut off."""
        return self._seal(bytes((_WARNING, _CLOSE_NOTIFY)), _ALERT_BYTE)

    def take_outgoing(self) -> bytes:
        """Take what must be written beside what is sent."""
        outgoing, self._outgoing = self._outgoing, b""
        return outgoing

    def _refusal(self, alert: int, why: str) -> ClientRefused:
        self._outgoing += self._seal(bytes((_FATAL, alert)), _ALERT_BYTE)
        return ClientRefused(f"broken TLS: {why}", alert=alert)
