"""Certificates that OpenSSL believes and that a reader chokes on, signed by a real authority."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from clustor.runtime.pki.identity import ClusterId, load_authority
from quantum.edge.tls_development import TRUST_DOMAIN

_SAN: Final = x509.ObjectIdentifier("2.5.29.17")
_X400: Final = bytes.fromhex("3004a3023000")  # GeneralNames with one [3] ORAddress
_FIRST, _SECOND = bytes.fromhex("2b0601040101"), bytes.fromhex("2b0601040102")
_VERSION_3, _VERSION_5 = bytes.fromhex("a003020102"), bytes.fromhex("a003020104")


class Odd(NamedTuple):
    """A certificate and its key, as a client loads them."""

    certificate: Path
    key: Path
    der: bytes


def _same(content: bytes) -> bytes:
    return content


def _doubled(content: bytes) -> bytes:
    assert content.count(_SECOND) == 1
    return content.replace(_SECOND, _FIRST)


def _version_5(content: bytes) -> bytes:
    assert content.count(_VERSION_3) == 1
    return content.replace(_VERSION_3, _VERSION_5)


ODDITIES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "x400Address": _same,
    "doubled extension": _doubled,
    "version 5": _version_5,
}


def odd_certificate(
    directory: Path, name: str, now: datetime, domain: ClusterId = TRUST_DOMAIN
) -> Odd:
    """Sign one of ODDITIES by the authority in `directory`, and write it beside it."""
    authority = load_authority(directory, domain)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "odd")]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    )
    if name == "x400Address":
        builder = builder.add_extension(x509.UnrecognizedExtension(_SAN, _X400), critical=False)
    for last in (1, 2) if name == "doubled extension" else ():
        oid = x509.ObjectIdentifier(f"1.3.6.1.4.1.{last}")
        builder = builder.add_extension(
            x509.UnrecognizedExtension(oid, b"\x05\x00"), critical=False
        )
    content = builder.sign(authority.key, hashes.SHA256()).tbs_certificate_bytes
    der = _sign(ODDITIES[name](content), authority.key)
    stem = f"odd-{name.replace(' ', '-')}"
    files = directory / f"{stem}.pem", directory / f"{stem}.key"
    files[0].write_bytes(_pem(der))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return Odd(*files, der)


def _sign(content: bytes, key: object) -> bytes:
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signature = key.sign(content, ec.ECDSA(hashes.SHA256()))
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")  # ecdsa-with-SHA256
    return _tagged(0x30, content + algorithm + _tagged(0x03, b"\x00" + signature))


def _tagged(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 128:
        return bytes((tag, length)) + content
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(size))) + size + content


def _pem(der: bytes) -> bytes:

    return ssl.DER_cert_to_PEM_cert(der).encode()
