"""Letting nodes in: tokens in a file, and one exchange over TLS that ends in a certificate.

A token is `qe1.<pin>.<secret>`. The newcomer has no authority yet, so it believes the server for
the pinned key alone. It sends one line of JSON with a signing request and gets one line back. The
book is durable and the audit line is written before anything is signed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from clustor.log.errors import KeyUnavailable
from clustor.runtime.cluster_file import NodeEntry
from clustor.runtime.data_directory import write_durably
from clustor.runtime.errors import (
    CertificateUnreadable,
    CertificateUnusable,
    NodeError,
    PortTaken,
)
from clustor.runtime.keys.store import (
    KEK_FILE,
    KEYRING_FILE,
    KEYS_DIRECTORY,
    STAGED_FILE,
    newest_store,
)
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.certificates import read_public_key
from clustor.runtime.pki.enrolment_tokens import (
    SERVER_CERTIFICATE_FILE,
    SERVER_KEY_FILE,
    TokenStore,
    key_pem,
    load_key,
    pem_of,
    pin_of,
    pin_of_token,
    record,
    server_key,
    spki_of,
)
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    NODE_LIFETIME,
    NODE_USAGES,
    PKI_DIRECTORY,
    ClusterId,
    DevelopmentAuthority,
    NodeId,
    load_authority,
    node_names,
    sign_key,
    utc_now,
)
from clustor.security import (
    EnrolmentRefusal,
    EnrolmentRefused,
    EnrolmentRequest,
    Grant,
    NodeRole,
    SecurityError,
    digest_of_token,
    redeem,
)
from clustor.wall_clock import wall_clock_ms

MESSAGE_BYTES_MAX: Final = 64 << 10
EXCHANGE_SECONDS_MAX: Final = 10.0
EXCHANGES_MAX: Final = 32

journal = logging.getLogger("clustor.enrolment")


class NewHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host that joins by itself: how the others are to list it, and a request for its clients."""

    entry: NodeEntry
    names: tuple[str, ...] = ()
    server_request_pem: str = ""


class EnrolmentAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the newcomer sends."""

    token: str
    node_id: int
    role: str
    request_pem: str
    host: NewHost | None = None


class EnrolmentAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What it gets: everything, or the code of the refusal."""

    refused: str = ""
    reason: str = ""
    cluster_id: str = ""
    certificate_pem: str = ""
    authority_pem: str = ""
    keyring: str = ""
    kek: str = ""
    staged: str = ""
    files: dict[str, str] = {}
    """What a host needs beside: descriptions, and certificates for its clients."""


TakeHost: TypeAlias = Callable[[NewHost], dict[str, str]]
"""Lists a host that was let in, and returns what it needs; raises NodeError."""


# The server's side


class Enroller:
    """Decides about requests: pure decisions of `clustor.security`, and the files around them."""

    def __init__(self, root: Path, cluster: ClusterId, take_host: TakeHost | None = None) -> None:
        self._root = root
        self._cluster = cluster
        self._take_host = take_host
        self._authority()  # says at the start what would stand in everybody's way
        self._store = TokenStore(root)

    def answer(self, message: bytes, peer: str) -> EnrolmentAnswer:
        """Return what the newcomer gets. It blocks, and belongs into a thread."""
        try:
            ask = _decode_ask(message)
            key = _proven_key(ask.request_pem)
            grant = self._redeem(ask, key)
        except EnrolmentRefused as refusal:
            node = int(str(refusal.facts.get("node", 0)))
            self._record(peer, refusal.code, node)
            return EnrolmentAnswer(refused=refusal.code, reason=refusal.reason)
        facts = {"role": grant.role.value, "key_sha256": _key_digest(key)}
        self._record(peer, "Done", grant.node_id, facts)
        return self._certificate(key, grant, ask.host)

    def _authority(self) -> DevelopmentAuthority:
        """Read who signs: a rollover may have put another one there."""
        return load_authority(self._root / PKI_DIRECTORY, self._cluster)

    def _record(
        self, who: str, outcome: str, node: int, facts: dict[str, str] | None = None
    ) -> None:  # fmt: skip
        record(self._root, who=who, what="NodeEnrolled", outcome=outcome, node=node, facts=facts)

    def _redeem(self, ask: EnrolmentAsk, key: ec.EllipticCurvePublicKey) -> Grant:
        request = EnrolmentRequest(
            digest_of_token(ask.token), ask.node_id, ask.role, _key_digest(key)
        )
        with self._store.changing() as book:
            changed, grant = redeem(book, request, wall_clock_ms())
            if changed is not book:
                self._store.write(changed)
        return grant

    def _certificate(
        self, key: ec.EllipticCurvePublicKey, grant: Grant, host: NewHost | None
    ) -> EnrolmentAnswer:
        authority, node = self._authority(), NodeId(grant.node_id)
        certificate = sign_key(
            authority,
            key,
            f"{authority.cluster_id} node {node}",
            node_names(authority, node, *_hosts_of(host)),
            NODE_USAGES,
            now=utc_now(),
            lifetime=NODE_LIFETIME,
        )
        files = self._take_host(host) if host is not None and self._take_host else {}
        keys = newest_store(self._root)
        return EnrolmentAnswer(
            cluster_id=authority.cluster_id,
            certificate_pem=pem_of(certificate),
            authority_pem=authority.bundle_pem.decode(),
            keyring=(keys / KEYRING_FILE).read_text(),
            kek=(keys / KEK_FILE).read_text(),
            staged=(keys / STAGED_FILE).read_text() if (keys / STAGED_FILE).exists() else "",
            files=files,
        )


class EnrolmentServer:
    """Takes one request per connection."""

    def __init__(self, root: Path, cluster: ClusterId, take_host: TakeHost | None = None) -> None:
        """`take_host` is who lists hosts that join by themselves; None: nobody does."""
        self._enroller = Enroller(root, cluster, take_host)
        self._context = _server_context(root, cluster)
        self._open = 0
        self._server: asyncio.Server | None = None

    async def listen(self, address: Address) -> Address:
        """Listen, and return where (port 0 is any free one). Raises PortTaken."""
        try:
            self._server = await asyncio.start_server(
                self._serve, address.host, address.port, ssl=self._context, limit=MESSAGE_BYTES_MAX
            )
        except OSError as error:
            raise PortTaken("cannot listen", address=str(address), cause=error) from error
        return Address(address.host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= EXCHANGES_MAX:
                async with asyncio.timeout(EXCHANGE_SECONDS_MAX):
                    await self._exchange(reader, writer)
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError):
            journal.info("an exchange ended early")
        except (SecurityError, NodeError, KeyUnavailable) as error:
            journal.error("nobody can be let in: %s", error)
        finally:
            self._open -= 1
            writer.close()
            with suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        message = await reader.readuntil(b"\n")
        host, port = writer.get_extra_info("peername")[:2]
        answer = await asyncio.to_thread(self._enroller.answer, message, f"{host}:{port}")
        journal.info("enrolment from %s: %s", host, answer.refused or "done")
        writer.write(msgspec.json.encode(answer) + b"\n")
        await writer.drain()


# The newcomer's side


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A key that was just made, and the request to sign it."""

    key: ec.EllipticCurvePrivateKey
    request_pem: str


def new_key(directory: Path, node: NodeId) -> Newcomer:
    """Make the node's key, or take up the one of an exchange whose answer was lost."""
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    path = directory / KEY_FILE
    if path.exists():
        key = load_key(path)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        write_durably(path, key_pem(key))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"node {node}")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return Newcomer(key, request.public_bytes(serialization.Encoding.PEM).decode())


async def enrol(
    address: Address, token: str, node: NodeId, role: NodeRole, directory: Path
) -> ClusterId:
    """Ask to be let in; the certificate and the keys are in the data directory afterwards.

    Raises EnrolmentRefused, CertificateUnusable and OSError. With the same directory it can be
    called again when an answer was lost.
    """
    answer = await enrol_host(address, token, node, role, directory)
    return ClusterId(answer.cluster_id)


async def enrol_host(
    address: Address,
    token: str,
    node: NodeId,
    role: NodeRole,
    directory: Path,
    *,
    host: NewHost | None = None,
) -> EnrolmentAnswer:
    """As `enrol`, and return the whole answer: a host needs more of it than a node's directory."""
    pin = pin_of_token(token)
    pki = directory / PKI_DIRECTORY
    if (pki / CERTIFICATE_FILE).exists():
        raise CertificateUnusable("this node has a certificate already", directory=str(pki))
    newcomer = new_key(pki, node)
    ask = EnrolmentAsk(token, node, role.value, newcomer.request_pem, host)
    async with asyncio.timeout(EXCHANGE_SECONDS_MAX):
        answer = await _ask(address, pin, ask)
    if answer.refused:
        raise EnrolmentRefused(answer.refused, answer.reason, node=node)
    _keep(directory, newcomer, answer)
    return answer


async def _ask(address: Address, pin: bytes, ask: EnrolmentAsk) -> EnrolmentAnswer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the pin below is what is believed
    reader, writer = await asyncio.open_connection(
        address.host, address.port, ssl=context, limit=MESSAGE_BYTES_MAX
    )
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        key = read_public_key(shown)
        if not hmac.compare_digest(pin_of(key), pin):  # type: ignore[arg-type]  # an EC key, or none
            raise CertificateUnusable("the server is not the one that the token names")
        writer.write(msgspec.json.encode(ask) + b"\n")
        return msgspec.json.decode(await reader.readuntil(b"\n"), type=EnrolmentAnswer)
    except CertificateUnreadable as error:
        raise CertificateUnusable("the server's certificate cannot be read") from error
    except (msgspec.MsgspecError, asyncio.IncompleteReadError) as error:
        raise CertificateUnusable("the server gave no answer") from error
    finally:
        writer.close()
        with suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


def _keep(directory: Path, newcomer: Newcomer, answer: EnrolmentAnswer) -> None:
    """Write down what the server gave; the certificate last, so that its presence means all."""
    certificate = x509.load_pem_x509_certificate(answer.certificate_pem.encode())
    if certificate.public_key() != newcomer.key.public_key():
        raise CertificateUnusable("the certificate is for another key")
    keys, pki = directory / KEYS_DIRECTORY, directory / PKI_DIRECTORY
    keys.mkdir(parents=True, mode=0o700, exist_ok=True)
    write_durably(keys / KEK_FILE, answer.kek.encode())
    write_durably(keys / KEYRING_FILE, answer.keyring.encode())
    if answer.staged:
        write_durably(keys / STAGED_FILE, answer.staged.encode())
    write_durably(pki / AUTHORITY_FILE, answer.authority_pem.encode(), 0o644)
    write_durably(pki / CERTIFICATE_FILE, answer.certificate_pem.encode(), 0o644)


# What both sides share


def _decode_ask(message: bytes) -> EnrolmentAsk:
    try:
        return msgspec.json.decode(message, type=EnrolmentAsk)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise EnrolmentRefused(
            EnrolmentRefusal.BAD_REQUEST.value, "the request cannot be read"
        ) from error


def _proven_key(request_pem: str) -> ec.EllipticCurvePublicKey:
    """Return the key of a signing request that its owner signed; no name in it is believed."""
    try:
        request = x509.load_pem_x509_csr(request_pem.encode())
        key = request.public_key()
        is_proven = request.is_signature_valid
    except (ValueError, UnicodeError) as error:
        raise EnrolmentRefused(
            EnrolmentRefusal.BAD_REQUEST.value, "not a signing request"
        ) from error
    if not is_proven or not isinstance(key, ec.EllipticCurvePublicKey):
        raise EnrolmentRefused(EnrolmentRefusal.BAD_REQUEST.value, "the request proves no key")
    return key


def _server_context(root: Path, cluster: ClusterId) -> ssl.SSLContext:
    server_key(root, cluster, utc_now())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    pki = root / PKI_DIRECTORY
    context.load_cert_chain(pki / SERVER_CERTIFICATE_FILE, pki / SERVER_KEY_FILE)
    return context


def _hosts_of(host: NewHost | None) -> tuple[tuple[str, ...], ...]:
    """Return the names of a host that joins, for its certificate; others have loopback's."""
    if host is None:
        return ()
    return (tuple(dict.fromkeys(("localhost", "127.0.0.1", host.entry.host, *host.names))),)


def _key_digest(key: ec.EllipticCurvePublicKey) -> str:
    return hashlib.sha256(spki_of(key)).hexdigest()
