"""Certificates of others: one function reads them, and one error says that it could not.

TLS believes who signed a certificate, not that it can be read: OpenSSL lets a doubled extension, an
unknown version or a rare kind of name pass. The library that reads them here has no common root
for what it raises then, so whatever comes out of it is a certificate that nobody can read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import NameOID

from clustor.runtime.errors import CertificateUnreadable

_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class ReadCertificate:
    """What a certificate says, as far as anything here asks for it."""

    serial: int
    not_before: datetime
    not_after: datetime
    uris: tuple[str, ...]
    dns_names: tuple[str, ...]
    common_names: tuple[str, ...]

    @property
    def serial_name(self) -> str:
        """Its number as revocations spell it: hexadecimal, small letters, no leading zeros."""
        return format(self.serial, "x")

    @property
    def not_after_ms(self) -> int:
        return int(self.not_after.timestamp() * 1000)

    @property
    def lifetime_ms(self) -> int:
        """From its beginning to its end."""
        return (self.not_after - self.not_before) // _MILLISECOND


def read_certificate(certificate_der: bytes) -> ReadCertificate:
    """Read all of a certificate that TLS has verified. Raises CertificateUnreadable alone."""
    with telling_unreadable():
        found = x509.load_der_x509_certificate(certificate_der)
        names = _alternative_names(found)
        common = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return ReadCertificate(
            found.serial_number,
            found.not_valid_before_utc,
            found.not_valid_after_utc,
            tuple(names.get_values_for_type(x509.UniformResourceIdentifier)) if names else (),
            tuple(names.get_values_for_type(x509.DNSName)) if names else (),
            tuple(str(each.value) for each in common),
        )


def read_public_key(certificate_der: bytes) -> CertificatePublicKeyTypes:
    """Read whose key a certificate is for. Raises CertificateUnreadable alone."""
    with telling_unreadable():
        return x509.load_der_x509_certificate(certificate_der).public_key()


def _alternative_names(found: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


@contextmanager
def telling_unreadable() -> Iterator[None]:
    """Make whatever a reader raises into CertificateUnreadable."""
    try:
        yield
    except CertificateUnreadable:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise CertificateUnreadable("the certificate cannot be read", kind=kind) from error
