"""Revocation lists of the development authority: written by people, read by every handshake.

`crl.pem` beside an authority's certificate lists what it revoked. Where the file is, each TLS
context checks the peer's own certificate against it, and without it nothing is checked.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from clustor.runtime.errors import CertificateUnusable
from clustor.runtime.pki import Authority, replace_file

LIST_LIFETIME: Final = timedelta(days=30)
"""After which the handshakes that check a list refuse everybody: it must be written anew."""


def revoke_certificate(
    authority: Authority, certificate: x509.Certificate, path: Path, now: datetime
) -> None:
    """Add a certificate to the list at `path`, and sign the list anew.

    Raises CertificateUnusable for a certificate of another authority.
    """
    if certificate.issuer != authority.certificate.subject:
        raise CertificateUnusable("the certificate is of another authority")
    known = read_revocations(path, authority.certificate)
    if certificate.serial_number not in known:
        known[certificate.serial_number] = now
    write_revocations(authority, known, path, now)


def write_revocations(
    authority: Authority, revoked: dict[int, datetime], path: Path, now: datetime
) -> None:
    """Put a whole list in the place of an older one; an empty one only turns checking on."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now)
        .next_update(now + LIST_LIFETIME)
    )
    for serial, at in sorted(revoked.items()):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at).build()
        builder = builder.add_revoked_certificate(entry)
    signed = builder.sign(authority.key, hashes.SHA256())
    replace_file(path, signed.public_bytes(Encoding.PEM), 0o644)


def read_revocations(path: Path, authority: x509.Certificate) -> dict[int, datetime]:
    """Return what is revoked, and when: nothing where no list is. Raises CertificateUnusable."""
    if not path.exists():
        return {}
    found = load_revocations(path, authority)
    return {entry.serial_number: entry.revocation_date_utc for entry in found}


def load_revocations(path: Path, authority: x509.Certificate) -> x509.CertificateRevocationList:
    """Read a list and check that its authority signed it."""
    try:
        found = x509.load_pem_x509_crl(path.read_bytes())
        is_ours = found.is_signature_valid(authority.public_key())  # type: ignore[arg-type]  # an EC key
    except (OSError, ValueError, TypeError) as error:
        raise CertificateUnusable("cannot read a revocation list", file=str(path)) from error
    if not is_ours:
        raise CertificateUnusable("a revocation list of another authority", file=str(path))
    return found
