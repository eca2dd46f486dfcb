"""What a ClientHello asks for that binds the server's records (RFC 6066 §4, RFC 8449)."""

from __future__ import annotations

from typing import Final

_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_VERSION_AND_RANDOM_BYTES: Final = 34
_BINDING: Final = frozenset({1, 28})
"""max_fragment_length and record_size_limit."""


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
