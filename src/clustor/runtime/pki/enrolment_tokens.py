"""Tokens of nodes that may come, in a file, and the key of the server that takes them.

security/tokens.json     digests of tokens, replaced whole
pki/enrolment.key, .pem  who the enrolment server is; a token carries the digest of its public key
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from clustor.runtime.audit.record_once import record_now
from clustor.runtime.audit.writer import SECURITY_DIRECTORY
from clustor.runtime.data_directory import write_durably
from clustor.runtime.errors import CertificateUnusable
from clustor.runtime.pki.certificate_files import load_certificate, replace_file
from clustor.runtime.pki.identity import (
    PKI_DIRECTORY,
    ClusterId,
    NodeId,
    host_name,
    load_authority,
    sign_key,
    utc_now,
)
from clustor.security import (
    AuditEvent,
    EnrolmentRefusal,
    EnrolmentRefused,
    NodeRole,
    TokenBook,
    decode_book,
    digest_of_token,
    encode_book,
    issue_token,
    withdraw_tokens,
)
from clustor.wall_clock import wall_clock_ms

TOKENS_FILE: Final = "tokens.json"
SERVER_KEY_FILE: Final = "enrolment.key"
SERVER_CERTIFICATE_FILE: Final = "enrolment.pem"
_TOKEN_PREFIX: Final = "qe1"  # noqa: S105  # the format's name
_PIN_BYTES: Final = 16
_SECRET_BYTES: Final = 32
_SERVER_LIFETIME: Final = timedelta(days=365)


class TokenStore:
    """The book of one cluster's directory; one process changes it at a time."""

    def __init__(self, root: Path) -> None:
        self._directory = root / SECURITY_DIRECTORY
        self._path = self._directory / TOKENS_FILE

    def read(self) -> TokenBook:
        """Return the book; raises RegistryUnreadable."""
        try:
            return decode_book(self._path.read_bytes())
        except FileNotFoundError:
            return TokenBook()

    def write(self, book: TokenBook) -> None:
        """Replace the book, durably."""
        write_durably(self._path, encode_book(book))

    @contextmanager
    def changing(self) -> Iterator[TokenBook]:
        """Keep others from changing the book meanwhile."""
        self._directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        lock = os.open(self._directory / "tokens.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.read()
        finally:
            os.close(lock)


def create_token(
    root: Path, cluster: ClusterId, node: NodeId, role: NodeRole, *, ttl_ms: int, issued_by: str
) -> str:
    """Make a token and enter its digest; this is the only time that the token itself is seen.

    Raises SecurityMisuse, RegistryUnreadable and CertificateUnusable.
    """
    pin = pin_of(server_key(root, cluster, utc_now()).public_key())
    token = f"{_TOKEN_PREFIX}.{_text(pin)}.{_text(os.urandom(_SECRET_BYTES))}"
    store = TokenStore(root)
    with store.changing() as book:
        store.write(
            issue_token(
                book,
                digest=digest_of_token(token),
                node_id=node,
                role=role,
                ttl_ms=ttl_ms,
                issued_by=issued_by,
                now_ms=wall_clock_ms(),
            )
        )
    facts = {"role": role.value}
    record(root, who=issued_by, what="EnrolmentTokenIssued", outcome="Done", node=node, facts=facts)
    return token


def withdraw(root: Path, node: NodeId, by: str) -> int:
    """End every open token of a node, and return how many there were."""
    store = TokenStore(root)
    with store.changing() as book:
        changed = withdraw_tokens(book, node, wall_clock_ms())
        count = sum(
            one is not other for one, other in zip(book.tokens, changed.tokens, strict=True)
        )
        if count:
            store.write(changed)
    facts = {"tokens": str(count)}
    record(root, who=by, what="EnrolmentTokenWithdrawn", outcome="Done", node=node, facts=facts)
    return count


def server_key(root: Path, cluster: ClusterId, now: datetime) -> ec.EllipticCurvePrivateKey:
    """Return the enrolment server's key, made once, with a certificate that has not ended."""
    pki = root / PKI_DIRECTORY
    authority = load_authority(pki, cluster)
    path, certificate = pki / SERVER_KEY_FILE, pki / SERVER_CERTIFICATE_FILE
    if path.exists():
        key = load_key(path)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        write_durably(path, key_pem(key))
    if not certificate.exists() or load_certificate(certificate).not_valid_after_utc <= now:
        signed = sign_key(
            authority,
            key.public_key(),
            f"{cluster} enrolment",
            [host_name("localhost"), host_name("127.0.0.1")],
            [ExtendedKeyUsageOID.SERVER_AUTH],
            now=now,
            lifetime=_SERVER_LIFETIME,
        )
        replace_file(certificate, pem_of(signed).encode(), 0o644)
    return key


def record(
    root: Path, *, who: str, what: str, outcome: str, node: int, facts: dict[str, str] | None = None
) -> None:
    """Write an audit line; where that is impossible nobody is let in."""
    event = AuditEvent(
        who=who,
        what=what,
        outcome=outcome,
        at_ms=wall_clock_ms(),
        object=f"node/{node}",
        facts=facts or {},
    )
    record_now(root, [event])


def pin_of(key: ec.EllipticCurvePublicKey) -> bytes:
    return hashlib.sha256(spki_of(key)).digest()[:_PIN_BYTES]


def pin_of_token(token: str) -> bytes:
    parts = token.strip().split(".")
    if len(parts) != 3 or parts[0] != _TOKEN_PREFIX:
        raise EnrolmentRefused(EnrolmentRefusal.UNKNOWN.value, "this is no enrolment token")
    try:
        return base64.urlsafe_b64decode(parts[1] + "==")
    except ValueError as error:
        raise EnrolmentRefused(
            EnrolmentRefusal.UNKNOWN.value, "this is no enrolment token"
        ) from error


def spki_of(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def pem_of(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise CertificateUnusable("cannot read a key", file=str(path)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateUnusable("a key of another kind", file=str(path))
    return key
