"""Who a client is: its address, and whom its certificate names."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final

from clustor.runtime.errors import CertificateUnreadable
from clustor.runtime.pki.certificates import read_certificate
from quantum.edge.errors import ClientUnnamed

_OF_TENANT: Final = re.compile(r"spiffe://[^/]+/tenant/([^/]+)/.")


@dataclass(frozen=True, slots=True)
class CertificateIdentity:
    """What a client's certificate says, once TLS has believed it."""

    name: str
    not_after_ms: int
    serial: str
    """Its number: hexadecimal, small letters, no leading zeros."""


def host_of(transport: asyncio.BaseTransport | None) -> str:
    """Return the host of the other end."""
    address = None if transport is None else transport.get_extra_info("peername")
    return str(address[0]) if isinstance(address, tuple) else "?"


def shown_address(transport: asyncio.BaseTransport | None) -> str:
    """Return HOST:PORT of the other end, with brackets around an IPv6 address."""
    address = None if transport is None else transport.get_extra_info("peername")
    if not isinstance(address, tuple):
        return "?"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tenant_of_identity(identity: str) -> str | None:
    """Return which tenant a client's SPIFFE URI names: the level behind its first one, `tenant`."""
    found = _OF_TENANT.match(identity)
    return None if found is None else found[1]


def identity_of(certificate_der: bytes | None) -> CertificateIdentity:
    """Read whom a verified certificate names: URI, else DNS name, else common name.

    Raises ClientUnnamed: a client that nobody can name can be given no rights.
    """
    if certificate_der is None:
        raise ClientUnnamed("the client showed no certificate")
    try:
        found = read_certificate(certificate_der)
    except CertificateUnreadable as error:
        raise ClientUnnamed("the client's certificate cannot be read", **error.facts) from error
    names = (*found.uris, *found.dns_names, *found.common_names)
    if not names:
        raise ClientUnnamed("the client's certificate names nobody")
    return CertificateIdentity(names[0], found.not_after_ms, found.serial_name)
