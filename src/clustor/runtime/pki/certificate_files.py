"""Certificates and keys as files: read whole or refused, written durably."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.runtime.errors import CertificateUnusable

PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | Ed25519PrivateKey


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Write one certificate."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: PrivateKey) -> bytes:
    """Write a key, as it is."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def load_certificate(path: Path) -> x509.Certificate:
    """Read one certificate, or raise CertificateUnusable."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CertificateUnusable("cannot read a certificate", file=str(path)) from error


def load_certificates(path: Path) -> list[x509.Certificate]:
    """Read a bundle of at least one certificate, or raise CertificateUnusable."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CertificateUnusable("cannot read a certificate", file=str(path)) from error


def bundle_pem(certificates: Iterable[x509.Certificate]) -> bytes:
    """Write certificates one after the other."""
    return b"".join(map(certificate_pem, certificates))


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a key, or raise CertificateUnusable."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise CertificateUnusable("cannot read a key", file=str(path)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateUnusable("a key of another kind", file=str(path))
    return key


def write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a file that is not there yet, durably; raises CertificateUnusable where it is."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise CertificateUnusable("it is there already", file=str(path)) from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes, mode: int) -> None:
    """Put a file in the place of an older one, whole."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    write_new(temporary, data, mode)
    temporary.replace(path)
