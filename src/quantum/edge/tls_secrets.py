"""The secrets of handshakes that OpenSSL has done for us, out of the one door that it has.

`ssl` tells them to a file (`SSLContext.keylog_filename`). The file here is memory of this process
that has no name in any directory. All sessions of a server share it, and OpenSSL also tells of
keys that change later: it is emptied before and after every call of OpenSSL, so that what is in
it was told by the call between. Only `tls_records = "own"` makes one.
"""

from __future__ import annotations

import os
import re
import ssl
import weakref
from typing import Final, NamedTuple

_CLIENT: Final = b"CLIENT_TRAFFIC_SECRET_0"
_SERVER: Final = b"SERVER_TRAFFIC_SECRET_0"
_BYTES: Final = 4096
_LINE: Final = re.compile(rb"([A-Z0-9_]+) ([0-9A-Fa-f]{64}) ((?:[0-9A-Fa-f]{2})+)")


class TrafficSecrets(NamedTuple):
    """From which the keys of both directions come, once the handshake is over."""

    client: bytes
    server: bytes


class SecretsFile:
    """Where contexts tell the secrets of their handshakes. Without Linux nobody is told."""

    def __init__(self) -> None:
        self._file = -1
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("handshakes", os.MFD_CLOEXEC)
            weakref.finalize(self, os.close, self._file)

    def listen_to(self, context: ssl.SSLContext) -> None:
        """Let a context tell; it opens the memory once more, and closes that when it ends."""
        if self._file >= 0:
            context.keylog_filename = f"/proc/self/fd/{self._file}"

    def take(self) -> bytes:
        """Take all that was told since it was last emptied, whole, and empty it."""
        pieces: list[bytes] = []
        at = 0
        while self._file >= 0 and (piece := os.pread(self._file, _BYTES, at)):
            pieces.append(piece)
            at += len(piece)
        if pieces:
            os.ftruncate(self._file, 0)
        return b"".join(pieces)


def read_secrets(told: bytes, client_random: bytes, secret_bytes: int) -> TrafficSecrets | None:
    """Read lines of `label client_random secret`.

    None: not exactly one of each, not of this client, of another length, or any line of all that
    was told that is not such a line. Who is told None stays with OpenSSL.
    """
    found: dict[bytes, bytes] = {}
    for line in told.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or bytes.fromhex(match[2].decode()) != client_random:
            return None
        if match[1] in found:
            return None
        found[match[1]] = bytes.fromhex(match[3].decode())
    client, server = found.get(_CLIENT, b""), found.get(_SERVER, b"")
    if not told.endswith(b"\n") or {len(client), len(server)} != {secret_bytes}:
        return None
    return TrafficSecrets(client, server)
