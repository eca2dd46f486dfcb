"""TLS without a socket: bytes of the network in, plaintext out, and the other way round.

The loops' own TLS says nothing when an accepted connection fails its handshake; here each failure
has a name. Both sides demand a certificate; who it names is the caller's to check.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from clustor.runtime.pki.identity import refusal_of
from clustor.runtime.pki.peer_trust import ChainReader, Shown

_READ_BYTES: Final = 16 << 10  # OpenSSL gives one record at a time, and none is longer
_SEND_BYTES: Final = 64 << 10


class TlsPipe:
    """One side of one connection."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "ended", "established", "server_side")

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self.server_side = server_side
        self.established = False
        """Whether this side has finished its handshake, and believes the other's certificate."""
        self.ended = False
        """Whether the other side has said that nothing more comes; it waits for the same word."""

    def start(self) -> None:
        """Begin the handshake; the side that opened the connection speaks first."""
        self._shake_hands()

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the network; return the plaintext they complete. Raises PeerRefused."""
        self._incoming.write(data)
        if not self.established:
            self._shake_hands()
        return self._read() if self.established else b""

    def send(self, data: bytes) -> None:
        """Encrypt; the result waits in the outgoing bytes."""
        self._tls.write(data)

    def send_pieces(self, pieces: Iterable[bytes | memoryview]) -> list[bytes]:
        """Encrypt what follows each other, and take all that must be written to the network.

        OpenSSL's buffer is emptied again and again: to grow it costs more than to encrypt.
        """
        out: list[bytes] = []
        for piece in _merged(pieces):
            with memoryview(piece) as view:
                for at in range(0, len(view), _SEND_BYTES):
                    self._tls.write(view[at : at + _SEND_BYTES])
                    out.append(self._outgoing.read())
        return out

    def end(self) -> None:
        """Say that nothing more comes, as far as the other side still listens."""
        if self.established:
            with suppress(ssl.SSLError):
                self._tls.unwrap()  # it says so, and raises that the other side has not yet

    def take_outgoing(self) -> bytes:
        """Take what must be written to the network."""
        return self._outgoing.read()

    def certificate(self) -> bytes | None:
        """Return the other side's certificate (DER), verified against our authority."""
        return self._tls.getpeercert(binary_form=True)

    def shown(self, chains: ChainReader) -> Shown | None:
        """Return what of the other side's certificate decides whether it is believed later."""
        return chains.shown_by(self._tls)

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise refusal_of(error) from error
        self.established = True

    def _read(self) -> bytes:
        pieces: list[bytes] = []
        tls, incoming = self._tls, self._incoming
        try:
            while incoming.pending or tls.pending():  # or it would raise to say that none is left
                piece = tls.read(_READ_BYTES)
                if not piece:
                    self.ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise refusal_of(error) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _merged(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Join neighbours that are short: each piece becomes records of its own."""
    short: list[bytes | memoryview] = []
    for piece in pieces:
        if len(piece) < _READ_BYTES:
            short.append(piece)
            continue
        if short:
            yield b"".join(short)
            short = []
        yield piece
    if short:
        yield b"".join(short)
