"""ClientHellos byte by byte: what a stranger says that no library would."""

from __future__ import annotations

import struct


def hello(server_name: bytes = b"acme.example", padding: int = 0) -> bytes:
    """A ClientHello that OpenSSL reads, with any server name in it."""
    names = struct.pack("!HBH", len(server_name) + 3, 0, len(server_name)) + server_name
    extensions = [(0, names), (43, b"\x02\x03\x04"), (10, b"\0\2\0\x1d"), (13, b"\0\4\4\3\x08\x04")]
    extensions.append((51, struct.pack("!HHH", 36, 0x1D, 32) + bytes(31) + b"\x09"))
    extensions.append((21, bytes(padding)))
    body = b"".join(struct.pack("!HH", kind, len(each)) + each for kind, each in extensions)
    said = b"\x03\x03" + bytes(32) + b"\0" + b"\0\2\x13\x02" + b"\1\0"
    said += struct.pack("!H", len(body)) + body
    message = b"\x01" + len(said).to_bytes(3, "big") + said
    pieces = [message[at : at + 16_000] for at in range(0, len(message), 16_000)]
    return b"".join(b"\x16\x03\x01" + struct.pack("!H", len(each)) + each for each in pieces)
