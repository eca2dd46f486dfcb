"""Certificates for development: an authority under the data directory, the server's, clients'.

`<data>/pki/mqtt` has an authority of its own: a broker's client is no node of the cluster, and
must not be able to pass for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from clustor.runtime.errors import CertificateUnusable
from clustor.runtime.pki.authority_change import (
    AuthorityPhase,
    authority_for,
    begin_rollover,
    finish_rollover,
    phase_of,
    switch_rollover,
)
from clustor.runtime.pki.authority_change_development import AuthorityChange, standing_of
from clustor.runtime.pki.certificate_files import load_certificate, replace_file
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    PKI_DIRECTORY,
    REVOCATION_FILE,
    ClusterId,
    DevelopmentAuthority,
    create_authority,
    host_name,
    issue_certificate,
    load_authority,
)
from clustor.runtime.pki.revocation import revoke_certificate
from quantum.edge.errors import CertificatesUnusable
from quantum.edge.tls import ServerCertificates, TlsPolicy

MQTT_PKI_DIRECTORY: Final = "mqtt"
CLIENTS_DIRECTORY: Final = "clients"
SERVER_FILE: Final = "server.pem"
SERVER_KEY_FILE: Final = "server.key"

SERVER_LIFETIME: Final = timedelta(days=30)
CLIENT_LIFETIME: Final = timedelta(days=30)
_RENEW_BEFORE: Final = timedelta(days=10)
_SERVER_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
TRUST_DOMAIN: Final = ClusterId("mqtt")
_CLIENT_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """Where a client's certificate is, and what it says."""

    certificate: Path
    key: Path
    authority: Path
    identity: str
    not_after: datetime


def pki_directory(data: Path) -> Path:
    """Return where the broker below `data` keeps its development certificates."""
    return data / PKI_DIRECTORY / MQTT_PKI_DIRECTORY


def prepare_server(
    data: Path,
    now: datetime,
    names: frozenset[str] = frozenset(),
    *,
    own_records: bool = False,
    policy: TlsPolicy | None = None,
) -> ServerCertificates:
    """Return the development server's certificates, made or renewed where need be.

    They are for this machine's own names and for these. `own_records`: see `tls_records`.
    """
    directory = pki_directory(data)
    certificate, key = directory / SERVER_FILE, directory / SERVER_KEY_FILE
    try:
        authority = _authority(directory, now)
        if not key.exists() or not certificate.exists() or _is_of_no_use(certificate, now, names):
            issued = issue_certificate(
                authority,
                "Quantum development server",
                [host_name(host) for host in (*_SERVER_HOSTS, *sorted(names))],
                [ExtendedKeyUsageOID.SERVER_AUTH],
                now=now,
                lifetime=SERVER_LIFETIME,
            )
            replace_file(key, issued.key_pem, 0o600)
            replace_file(certificate, issued.certificate_pem, 0o644)
    except CertificateUnusable as error:
        raise CertificatesUnusable(error.reason, **error.facts) from error
    bundle = directory / AUTHORITY_FILE
    return ServerCertificates(certificate, key, bundle, own_records=own_records, policy=policy)


def renew_server(data: Path, now: datetime) -> datetime:
    """Give the development server a new key and certificate for the same names; say its end."""
    directory = pki_directory(data)
    file = directory / SERVER_FILE
    try:
        alternatives = load_certificate(file).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        issued = issue_certificate(
            _authority(directory, now),
            "Quantum development server",
            list(alternatives.value),
            [ExtendedKeyUsageOID.SERVER_AUTH],
            now=now,
            lifetime=SERVER_LIFETIME,
        )
        replace_file(directory / SERVER_KEY_FILE, issued.key_pem, 0o600)
        replace_file(file, issued.certificate_pem, 0o644)
    except CertificateUnusable as error:
        raise CertificatesUnusable(error.reason, **error.facts) from error
    return issued.not_after


def revoke_client(data: Path, certificate: Path, now: datetime) -> int:
    """Put a client's certificate on the list that every handshake asks; return its number."""
    directory = pki_directory(data)
    try:
        found = load_certificate(certificate)
        authority = authority_for(directory, TRUST_DOMAIN, found)
        revoke_certificate(authority, found, directory / REVOCATION_FILE, now)
    except CertificateUnusable as error:
        raise CertificatesUnusable(error.reason, **error.facts) from error
    return found.serial_number


def clients_standing(data: Path) -> AuthorityChange:
    """Look at the authority of the listener and its clients. Raises CertificatesUnusable."""
    directory = pki_directory(data)
    files = {"listener": directory / SERVER_FILE}
    clients = directory / CLIENTS_DIRECTORY
    for file in sorted((*clients.glob("*.pem"), *clients.glob("*/*.pem"))):
        files[str(file.relative_to(clients).with_suffix(""))] = file
    with _telling():
        there = {name: file for name, file in files.items() if file.exists()}
        return standing_of(directory, there)


def begin_clients(data: Path, now: datetime) -> None:
    """Let the listener trust the next authority too."""
    with _telling():
        begin_rollover(pki_directory(data), TRUST_DOMAIN, now)


def switch_clients(data: Path, now: datetime) -> None:
    """Let the next authority sign, and renew the listener's certificate."""
    with _telling():
        if phase_of(pki_directory(data)) is not AuthorityPhase.SWITCHED:
            switch_rollover(pki_directory(data), TRUST_DOMAIN)
    if (pki_directory(data) / SERVER_FILE).exists():
        renew_server(data, now)


def finish_clients(data: Path) -> None:
    """Let the listener trust the new authority alone."""
    with _telling():
        finish_rollover(pki_directory(data), TRUST_DOMAIN)


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except CertificateUnusable as error:
        raise CertificatesUnusable(error.reason, **error.facts) from error


def client_certificate(data: Path, name: str, tenant: str | None = None) -> Path:
    """Return where a client's newest development certificate is."""
    for each in (name, tenant):
        if each is not None and not _CLIENT_NAME.fullmatch(each):
            raise CertificatesUnusable("no client has such a name", name=each)
    return _clients(data, tenant) / f"{name}.pem"


def _clients(data: Path, tenant: str | None) -> Path:
    """Return where the certificates of a tenant's clients are, or of those that name none."""
    clients = pki_directory(data) / CLIENTS_DIRECTORY
    return clients if tenant is None else clients / tenant


def client_identity(name: str, tenant: str | None = None) -> str:
    """Return whom a client's development certificate names, and whose client that is."""
    of = "" if tenant is None else f"/tenant/{tenant}"
    return f"spiffe://{TRUST_DOMAIN}{of}/client/{name}"


def issue_client(
    data: Path,
    name: str,
    now: datetime,
    *,
    lifetime: timedelta = CLIENT_LIFETIME,
    out: Path | None = None,
    tenant: str | None = None,
) -> ClientFiles:
    """Give a client a new key and certificate, in the place of older ones.

    With `tenant` it says whose client it is, as a broker of several tenants asks.
    """
    for what, each in (("client", name), ("tenant", tenant)):
        if each is not None and not _CLIENT_NAME.fullmatch(each):
            raise CertificatesUnusable(
                f"a {what}'s name is 1 to 64 letters, digits, dots, dashes and underscores",
                name=each,
            )
    directory = pki_directory(data)
    target = out or _clients(data, tenant)
    identity = client_identity(name, tenant)
    try:
        authority = _authority(directory, now)
        issued = issue_certificate(
            authority,
            name,
            [x509.UniformResourceIdentifier(identity)],
            [ExtendedKeyUsageOID.CLIENT_AUTH],
            now=now,
            lifetime=lifetime,
        )
        target.mkdir(parents=True, mode=0o700, exist_ok=True)
        certificate, key = target / f"{name}.pem", target / f"{name}.key"
        replace_file(key, issued.key_pem, 0o600)
        replace_file(certificate, issued.certificate_pem, 0o644)
    except CertificateUnusable as error:
        raise CertificatesUnusable(error.reason, **error.facts) from error
    except OSError as error:
        raise CertificatesUnusable(
            "cannot write a certificate", directory=str(target), cause=error.strerror
        ) from error
    return ClientFiles(certificate, key, directory / AUTHORITY_FILE, identity, issued.not_after)


def _authority(directory: Path, now: datetime) -> DevelopmentAuthority:
    path = directory / AUTHORITY_FILE
    if path.exists():
        authority = load_authority(directory, TRUST_DOMAIN)
        if now < authority.certificate.not_valid_after_utc:
            return authority
        raise CertificateUnusable("the development authority has ended", file=str(path))
    return create_authority(directory, TRUST_DOMAIN, now)


def _is_of_no_use(file: Path, now: datetime, names: frozenset[str]) -> bool:
    """Say whether a certificate ends soon, or lacks a name."""
    certificate = load_certificate(file)
    if now >= certificate.not_valid_after_utc - _RENEW_BEFORE:
        return True
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return not {host_name(name) for name in names} <= set(alternatives.value)
