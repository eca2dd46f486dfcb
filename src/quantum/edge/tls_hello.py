"""What a ClientHello asks for that binds the server's records (RFC 6066 §4, RFC 8449)."""

from __future__ import annotations

from typing import Final

_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_VERSION_AND_RANDOM_BYTES: Final = 34
_RECORD_HEAD_BYTES: Final = 5
_BINDING: Final = frozenset({1, 28})
"""max_fragment_length and record_size_limit."""


class RecordBounds:
    """Where records end in a stream of them, by their heads alone; only the last are known."""

    __slots__ = ("_ends", "_fed", "_head", "_left")

    def __init__(self) -> None:
        self._fed = 0
        self._head = b""
        self._left = 0
        self._ends: list[int] = []

    def feed(self, piece: bytes) -> None:
        """Take the next bytes, a few: only ends in the last piece are known afterwards."""
        self._ends = []
        at = 0
        while at < len(piece):
            if self._left:
                step = min(self._left, len(piece) - at)
                self._left -= step
                at += step
            else:
                self._head += piece[at : at + 1]
                at += 1
                if len(self._head) == _RECORD_HEAD_BYTES:
                    self._left = int.from_bytes(self._head[3:], "big")
                    self._head = b""
            if not self._left and not self._head:
                self._ends.append(self._fed + at)
        self._fed += len(piece)

    def is_bound(self, at: int) -> bool:
        """Say whether a record ends behind so many bytes."""
        return at in self._ends


def client_random(said: bytes) -> bytes | None:
    """Return by which number a client's secrets are told; None: what it said cannot be read."""
    try:
        return _client_hello(said)[2:_VERSION_AND_RANDOM_BYTES]
    except (IndexError, ValueError):
        return None


def limits_records(said: bytes) -> bool:
    """Say whether a client may have been promised records shorter than the standard's.

    `said` is all that it said so far, at least its whole ClientHello. What cannot be read may ask
    for anything.
    """
    try:
        return bool(_BINDING & _extensions(_client_hello(said)))
    except (IndexError, ValueError):
        return True


def _client_hello(said: bytes) -> bytes:
    """Take the body of the first message out of its records."""
    message = bytearray()
    at = 0
    while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4], "big"):
        if said[at] != _HANDSHAKE:
            raise ValueError("no handshake")
        end = at + 5 + int.from_bytes(said[at + 3 : at + 5], "big")
        if end > len(said):
            raise ValueError("not whole")
        message += said[at + 5 : end]
        at = end
    if message[0] != _CLIENT_HELLO:
        raise ValueError("no ClientHello")
    return bytes(message[4 : 4 + int.from_bytes(message[1:4], "big")])


def _extensions(hello: bytes) -> set[int]:
    at = _VERSION_AND_RANDOM_BYTES
    at += 1 + hello[at]  # the session's id
    at += 2 + int.from_bytes(hello[at : at + 2], "big")  # cipher suites
    at += 1 + hello[at]  # compression methods
    end = at + 2 + int.from_bytes(hello[at : at + 2], "big")
    if end > len(hello):
        raise ValueError("not whole")
    at += 2
    found: set[int] = set()
    while at < end:
        found.add(int.from_bytes(hello[at : at + 2], "big"))
        at += 4 + int.from_bytes(hello[at + 2 : at + 4], "big")
    return found
