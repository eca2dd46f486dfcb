"""The secrets of handshakes that OpenSSL has done for us, out of the one door that it has.

`ssl` tells them to a file (`SSLContext.keylog_filename`). The file here is memory of this process
that has no name in any directory, is read after each step of a handshake and emptied with that.
"""

from __future__ import annotations

import os
import ssl
import weakref
from typing import Final, NamedTuple

_CLIENT: Final = b"CLIENT_TRAFFIC_SECRET_0"
_SERVER: Final = b"SERVER_TRAFFIC_SECRET_0"
_BYTES_MAX: Final = 4096


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

    def take(self) -> list[bytes]:
        """Take what a step of a handshake told of the secrets behind it, line by line."""
        told = os.pread(self._file, _BYTES_MAX, 0) if self._file >= 0 else b""
        if not told:
            return []
        os.ftruncate(self._file, 0)
        return [line for line in told.splitlines() if line.startswith((_CLIENT, _SERVER))]


def read_secrets(told: list[bytes]) -> TrafficSecrets | None:
    """Read lines of `label client_random secret`; None: not one of each, or of two clients."""
    words = sorted(line.split() for line in told)
    if [each[0] for each in words] != [_CLIENT, _SERVER] or words[0][1] != words[1][1]:
        return None
    client, server = (bytes.fromhex(each[2].decode()) for each in words)
    return TrafficSecrets(client, server)
