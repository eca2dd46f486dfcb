"""Who a client is: its address, and whom its certificate names."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cryptography import x509
from cryptography.x509.oid import NameOID

from quantum.edge.errors import ClientUnnamed


@dataclass(frozen=True, slots=True)
class CertificateIdentity:
    """What a client's certificate says, once TLS has believed it."""

    name: str
    not_after_ms: int
    serial: str
    """Its number: hexadecimal, small letters, no leading zeros."""


def shown_address(transport: asyncio.BaseTransport | None) -> str:
    """Return HOST:PORT of the other end, with brackets around an IPv6 address."""
    address = None if transport is None else transport.get_extra_info("peername")
    if not isinstance(address, tuple):
        return "?"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def identity_of(certificate_der: bytes | None) -> CertificateIdentity:
    """Read whom a verified certificate names: URI, else DNS name, else common name.

    Raises ClientUnnamed: a client that nobody can name can be given no rights.
    """
    if certificate_der is None:
        raise ClientUnnamed("the client showed no certificate")
    try:
        certificate = x509.load_der_x509_certificate(certificate_der)
        names = _alternative_names(certificate) + _common_names(certificate)
        ends, serial = certificate.not_valid_after_utc, format(certificate.serial_number, "x")
    except ValueError as error:
        raise ClientUnnamed("the client's certificate cannot be read") from error
    if not names:
        raise ClientUnnamed("the client's certificate names nobody")
    return CertificateIdentity(names[0], int(ends.timestamp() * 1000), serial)


def _alternative_names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    names = extension.value
    return [
        *names.get_values_for_type(x509.UniformResourceIdentifier),
        *names.get_values_for_type(x509.DNSName),
    ]


def _common_names(certificate: x509.Certificate) -> list[str]:
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return [str(attribute.value) for attribute in found]
