"""Revocation lists of the development authority: written by people, read by every handshake.

`crl.pem` beside a trust bundle lists what its authorities revoked, one list for each. Where the
file is, each TLS context checks the peer's own certificate against it, and then an authority
without a list vouches for nobody. Without the file nothing is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from clustor.runtime.errors import CertificateUnusable
from clustor.runtime.pki.certificate_files import replace_file
from clustor.runtime.pki.identity import DevelopmentAuthority, hash_for

_BEGIN: Final = b"-----BEGIN X509 CRL-----"
LIST_LIFETIME: Final = timedelta(days=30)
"""After which the handshakes that check a list refuse everybody: it must be written anew."""


def revoke_certificate(
    authority: DevelopmentAuthority, certificate: x509.Certificate, path: Path, now: datetime
) -> None:
    """Add a certificate to its authority's list in the file at `path`, and sign that list anew.

    Raises CertificateUnusable for a certificate of another authority.
    """
    try:
        certificate.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise CertificateUnusable("the certificate is of another authority") from error
    known = read_revocations(path, authority.certificate)
    if certificate.serial_number not in known:
        known[certificate.serial_number] = now
    write_revocations(authority, known, path, now)


def write_revocations(
    authority: DevelopmentAuthority, revoked: dict[int, datetime], path: Path, now: datetime
) -> None:
    """Put a whole list in the place of an older one; an empty one only turns checking on.

    Lists of other authorities in the same file stay as they are.
    """
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now)
        .next_update(now + LIST_LIFETIME)
    )
    for serial, at in sorted(revoked.items()):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at).build()
        builder = builder.add_revoked_certificate(entry)
    signed = builder.sign(authority.key, hash_for(authority.key))
    others = [each for each in _read(path) if not _is_signed_by(each, authority.certificate)]
    _replace(path, [signed, *others])


def keep_lists_of(authorities: Iterable[x509.Certificate], path: Path) -> None:
    """Drop the lists of all other authorities from a file, if there is one."""
    if path.exists():
        kept = tuple(authorities)
        _replace(
            path,
            [each for each in _read(path) if any(_is_signed_by(each, whose) for whose in kept)],
        )


def read_revocations(path: Path, authority: x509.Certificate) -> dict[int, datetime]:
    """Return what an authority revoked, and when: nothing where it has no list.

    Raises CertificateUnusable.
    """
    return {
        entry.serial_number: entry.revocation_date_utc
        for each in _read(path)
        if _is_signed_by(each, authority)
        for entry in each
    }


def lists_of(
    path: Path, authorities: Sequence[x509.Certificate]
) -> list[tuple[x509.Certificate, x509.CertificateRevocationList]]:
    """Read all lists of a file, each with who signed it.

    Raises CertificateUnusable, also for a list that none of these authorities signed: a file
    that cannot be believed as a whole is not believed in parts.
    """
    found: list[tuple[x509.Certificate, x509.CertificateRevocationList]] = []
    for each in _read(path):
        signer = next((whose for whose in authorities if _is_signed_by(each, whose)), None)
        if signer is None:
            raise CertificateUnusable("a revocation list of another authority", file=str(path))
        found.append((signer, each))
    return found


def lists_end(path: Path) -> datetime | None:
    """Return when the first of a file's lists ends; None: none does, or there is none."""
    ends = [each.next_update_utc for each in _read(path)]
    return min((end for end in ends if end is not None), default=None)


def _read(path: Path) -> list[x509.CertificateRevocationList]:
    if not path.exists():
        return []
    try:
        pieces = path.read_bytes().split(_BEGIN)[1:]
        return [x509.load_pem_x509_crl(_BEGIN + piece) for piece in pieces]
    except (OSError, ValueError, TypeError) as error:
        raise CertificateUnusable("cannot read a revocation list", file=str(path)) from error


def _is_signed_by(found: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    try:
        return found.is_signature_valid(authority.public_key())  # type: ignore[arg-type]  # an EC key
    except (ValueError, TypeError):
        return False


def _replace(path: Path, lists: Iterable[x509.CertificateRevocationList]) -> None:
    replace_file(path, b"".join(each.public_bytes(Encoding.PEM) for each in lists), 0o644)
