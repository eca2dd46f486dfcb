"""Client certificates of a test's own authority."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from clustor.runtime.pki.identity import (
    DevelopmentAuthority,
    Issued,
    cluster_id,
    create_authority,
    issue_certificate,
)


@cache
def authority() -> DevelopmentAuthority:
    return create_authority(
        Path(mkdtemp(prefix="admin-pki")), cluster_id("test"), datetime.now(UTC)
    )


def issue(*uris: str, by: DevelopmentAuthority | None = None) -> Issued:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    return issue_certificate(
        by or authority(),
        "a client",
        names or [x509.DNSName("nobody")],
        [ExtendedKeyUsageOID.CLIENT_AUTH],
        now=datetime.now(UTC),
        lifetime=timedelta(days=1),
    )


def der(issued: Issued) -> bytes:
    return x509.load_pem_x509_certificate(issued.certificate_pem).public_bytes(Encoding.DER)


@cache
def certificate_of(identity: str) -> bytes:
    """Return the certificate of a caller, always the same one."""
    return der(issue(identity))


def serial(certificate: bytes) -> str:
    return format(x509.load_der_x509_certificate(certificate).serial_number, "x")
