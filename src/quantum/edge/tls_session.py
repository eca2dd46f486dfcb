"""TLS without a socket, lean enough for many idle clients: bytes in, plaintext out, and back.

The loops' own TLS keeps a quarter of a megabyte per connection and is silent about failed
handshakes; over memory BIOs a connection costs a tenth of that and every refusal has a name.
OpenSSL does every handshake, and by default all that follows. With `tls_records = "own"`,
`TlsSession.settle` takes a handshake's secrets when it is over and lets OpenSSL's part go: what is
left are records (`tls_records`), on a quarter of the memory.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final

from clustor.runtime.peers.tls_suites import is_permitted
from clustor.runtime.pki.peer_trust import ChainReader, Shown
from quantum.edge.errors import (
    ClientCertificateExpired,
    ClientCertificateRevoked,
    ClientRefused,
    ClientUntrusted,
    SuiteRefused,
    TenantUnknown,
)
from quantum.edge.tls import TenantOf, TermsOf
from quantum.edge.tls_hello import RecordBounds, client_random, limits_records
from quantum.edge.tls_records import SUITES, TlsRecords
from quantum.edge.tls_secrets import SecretsFile, read_secrets

_RECORD_BYTES_MAX: Final = 16 << 10
_SLICE_BYTES: Final = 4 << 10
"""A memory BIO never shrinks: what passes through it in one piece, the connection keeps."""
_HANDSHAKE_SLICE_BYTES: Final = 256
"""Many clients say little more than their handshake, ever."""
_HELLO_BYTES_MAX: Final = 16 << 10
"""A ClientHello with all that is usual has 2 KiB, and OpenSSL would take 128."""
_HANDSHAKE_BYTES_MAX: Final = 64 << 10
"""All that a client may say until its handshake is over; a long chain of certificates has 16."""

# OpenSSL's X509_V_ERR_… numbers, as `ssl` reports them.
_OUT_OF_TIME: Final = frozenset({9, 10})
_REVOKED: Final = frozenset({23})
_UNKNOWN_AUTHORITY: Final = frozenset({2, 7, 18, 19, 20, 21})


class TlsSession:
    """The server's side of one TLS connection."""

    __slots__ = (
        "_bounds",
        "_early",
        "_hello",
        "_incoming",
        "_is_bound",
        "_outgoing",
        "_random",
        "_records",
        "_said",
        "_secrets",
        "_tls",
        "_told",
        "established",
        "server_name",
        "tenant",
    )

    def __init__(self, context: ssl.SSLContext, secrets: SecretsFile | None = None) -> None:
        """Begin; with `secrets`, where the context tells them, `settle` may do without OpenSSL."""
        self._begin(context)
        self._secrets = secrets
        self._bounds = RecordBounds()
        """Where the records of the handshake end."""
        self._hello: bytearray | None = bytearray()
        """What the client said until its tenant is known: others may have to hear it again."""
        self._is_bound = False
        """Whether the client may have been promised records of its own size."""
        self._random: bytes | None = None
        """By which number the client's secrets are told."""
        self._told = b""
        """What the handshake told of the secrets behind it."""
        self._said = 0
        """How many bytes the handshake took."""
        self._early = b""
        """What the client said behind its handshake, not yet received."""
        self._records: TlsRecords | None = None
        """What goes on once OpenSSL's part is gone."""
        self.established = False
        """Whether the client's certificate was believed and both sides have finished."""
        self.server_name: str | None = None
        self.tenant = ""

    def _begin(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def shake_hands(self, data: bytes, tenant_of: TenantOf, certificates: TermsOf) -> None:
        """Take bytes of the handshake; raises ClientRefused, with an alert in the outgoing.

        What comes behind it is there with the next `receive`. Before a client is believed little is
        kept for it, whatever it says.
        """
        for start in range(0, len(data), _HANDSHAKE_SLICE_BYTES):
            if self.established:
                self._early = data[start:]
                return
            piece = data[start : start + _HANDSHAKE_SLICE_BYTES]
            self._said += len(piece)
            if self._said > _HANDSHAKE_BYTES_MAX:
                raise ClientRefused("its handshake is too long", limit=_HANDSHAKE_BYTES_MAX)
            if self._secrets is not None:
                self._bounds.feed(piece)
            self._incoming.write(piece)
            self._shake_on(piece, tenant_of, certificates)

    def _shake_on(self, data: bytes, tenant_of: TenantOf, certificates: TermsOf) -> None:
        if self._hello is not None:
            self._hello += data
            if len(self._hello) > _HELLO_BYTES_MAX:
                raise ClientRefused("its first words are too long", limit=_HELLO_BYTES_MAX)
        self._drain()
        choice = _Choice(self, tenant_of, certificates)
        context = self._tls.context
        context.sni_callback = choice
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            if choice.elsewhere is not None:
                self._begin_again(choice.elsewhere, tenant_of, certificates)
                return
            raise (choice.refusal or refusal_of(error)) from error
        finally:
            context.sni_callback = None
            self._told += self._drain()
        if not is_permitted(self._tls):
            raise SuiteRefused("it agreed on another suite than quantumqtt §9.2 names")
        self.established = True

    def _begin_again(
        self, context: ssl.SSLContext, tenant_of: TenantOf, certificates: TermsOf
    ) -> None:  # fmt: skip
        """Shake hands by the tenant's own rules: OpenSSL ends by those by which it began."""
        said = bytes(self._hello or b"")
        self._hear_out()
        self._begin(context)
        self._bounds, self._said, self._told = RecordBounds(), 0, b""
        self.shake_hands(said, tenant_of, certificates)

    def choose(self, name: str | None, tenant: str) -> None:
        """Note whose client it is."""
        self.server_name, self.tenant = name, tenant

    def is_judged_by(self, context: ssl.SSLContext) -> bool:
        """Say whether the handshake goes by these rules, which then stay."""
        if self._tls.context is not context:
            return False
        self._hear_out()
        return True

    def _hear_out(self) -> None:
        """Keep of the ClientHello what is needed later."""
        if self._hello is not None:
            if self._secrets is not None:
                said = bytes(self._hello)
                self._is_bound, self._random = limits_records(said), client_random(said)
            self._hello = None

    def _drain(self) -> bytes:
        """Take what OpenSSL told; with every call of it, before and after."""
        return b"" if self._secrets is None else self._secrets.take()

    @property
    def can_begin_again(self) -> bool:
        return self._hello is not None

    def shown(self, chains: ChainReader) -> Shown | None:
        """Return what of the client's certificate decides whether it is believed later."""
        return chains.shown_by(self._tls)

    def settle(self) -> None:
        """Go on without OpenSSL, which keeps what only a handshake needs.

        Where the secrets or the cipher are not known, the client wants records of its own size, or
        something is under way in OpenSSL, it stays. What the client said behind its handshake is
        there with the next `receive`.
        """
        assert self.established
        self._hear_out()
        told, self._told = self._told, b""
        cipher = self._tls.cipher()
        suite = None if cipher is None else SUITES.get(cipher[0])
        if self._secrets is None or self._is_bound or self._random is None or suite is None:
            return
        secrets = read_secrets(told, self._random, suite.secret_bytes)
        if secrets is None or not self._is_between_records():
            return
        rest = self._incoming.read()
        # Both directions begin at record 0 under keys that nobody has used: a number that is used
        # twice under one key of AES-GCM gives the key away.
        records = TlsRecords(
            suite, read_secret=secrets.client, write_secret=secrets.server, rest=rest
        )
        assert records.sequences == (0, 0)
        self._records = records
        del self._tls, self._incoming, self._outgoing

    def _is_between_records(self) -> bool:
        """Say whether OpenSSL has neither read nor written anything under the new keys.

        It has taken the client's Finished and no byte of the next record, and it has nothing to
        say: without tickets a server says nothing then.
        """
        taken = self._said - self._incoming.pending
        at_rest = not self._tls.pending() and not self._outgoing.pending
        return at_rest and self._bounds.is_bound(taken)

    @property
    def is_settled(self) -> bool:
        return self._records is not None

    def receive(self, data: bytes) -> tuple[bytes, bool]:
        """Return the plaintext that the bytes complete, and whether the client has ended.

        Raises ClientRefused where the bytes are not of this session.
        """
        if self._early:
            data, self._early = self._early + data, b""
        if self._records is not None:
            return self._records.receive(data)
        pieces: list[bytes] = []
        ended = False
        if len(data) <= _SLICE_BYTES:
            self._incoming.write(data)
            ended = self._read(pieces)
        else:
            for start in range(0, len(data), _SLICE_BYTES):
                self._incoming.write(data[start : start + _SLICE_BYTES])
                ended = self._read(pieces)
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), ended

    def send(self, data: bytes) -> bytes:
        """Encrypt."""
        if self._records is not None:
            return self._records.send(data)
        if len(data) <= _RECORD_BYTES_MAX:
            return self._seal(data)
        starts = range(0, len(data), _RECORD_BYTES_MAX)
        return b"".join(self._seal(data[start : start + _RECORD_BYTES_MAX]) for start in starts)

    def _seal(self, data: bytes) -> bytes:
        self._drain()
        try:
            self._tls.write(data)
        finally:
            self._drain()
        return self._outgoing.read()

    def end(self) -> bytes:
        """Say goodbye, so that the client knows that nothing was cut off."""
        if self._records is not None:
            return self._records.end()
        self._drain()
        with suppress(ssl.SSLError):  # it wants the client's goodbye, for which nobody waits
            self._tls.unwrap()
        self._drain()
        return self._outgoing.read()

    def _read(self, pieces: list[bytes]) -> bool:
        """Add what is complete; return whether the client has ended its side."""
        self._drain()
        try:
            while piece := self._tls.read(_RECORD_BYTES_MAX):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError as error:
            raise refusal_of(error) from error
        finally:
            self._drain()
        return True

    def take_outgoing(self) -> bytes:
        """Take what must be written to the network."""
        if self._records is not None:
            return self._records.take_outgoing()
        return self._outgoing.read()

    def certificate(self) -> bytes | None:
        """Return the client's certificate (DER)."""
        return self._tls.getpeercert(binary_form=True)


class _Choice:
    """What OpenSSL asks when it knows the server name: whose client is it, and who judges it?"""

    __slots__ = ("_certificates", "_session", "_tenant_of", "elsewhere", "refusal")

    def __init__(self, session: TlsSession, tenant_of: TenantOf, certificates: TermsOf) -> None:
        self._session = session
        self._tenant_of = tenant_of
        self._certificates = certificates
        self.refusal: ClientRefused | None = None
        self.elsewhere: ssl.SSLContext | None = None
        """Under whose rules the handshake must begin again."""

    def __call__(
        self, _tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext
    ) -> int | None:
        tenant = self._tenant_of(name)
        if tenant is None:
            self.refusal = TenantUnknown("no tenant has this server name", server_name=name)
            return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
        context = self._certificates.terms_of(tenant).context
        if not self._session.is_judged_by(context):
            if self._session.can_begin_again:
                self.elsewhere = context
            else:  # it asked twice, for two of them
                self.refusal = TenantUnknown("it changed the server name", server_name=name)
            return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
        self._session.choose(name, tenant)
        return None


def refusal_of(error: ssl.SSLError) -> ClientRefused:
    """Name why a handshake failed."""
    code = getattr(error, "verify_code", None)
    reason = str(getattr(error, "verify_message", "") or error.reason or error)
    if code in _OUT_OF_TIME:
        return ClientCertificateExpired("its certificate is out of its time", tls=reason)
    if code in _REVOKED:
        return ClientCertificateRevoked("its certificate was revoked", tls=reason)
    if code in _UNKNOWN_AUTHORITY:
        return ClientUntrusted("its certificate is of an unknown authority", tls=reason)
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return ClientUntrusted("it showed no certificate", tls=reason)
    return ClientRefused("the TLS handshake failed", tls=reason)
