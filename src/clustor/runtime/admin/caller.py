"""Calling an admin port: plaintext on loopback in development, mutual TLS elsewhere.

Who calls is said by options, else by the environment, else by what lies beside the cluster's own
data. A node is believed for the SPIFFE URI of its certificate, whatever its address is.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clustor.runtime.errors import NodeError, PeerRefused
from clustor.runtime.peers.address import Address

CERTIFICATE_VARIABLE: Final = "QUANTUM_CERT"
KEY_VARIABLE: Final = "QUANTUM_KEY"
AUTHORITY_VARIABLE: Final = "QUANTUM_CA"
DATA_VARIABLE: Final = "QUANTUM_DATA"
DATA_DEFAULT: Final = "var"
_CALLERS: Final = "operator*.pem"
"""How `quantum admin certificate operator/…` names what it writes."""
_PROBE_SECONDS: Final = 2.0
_CLUSTER_FILE: Final = "cluster.json"

_ALERTS: Final = {
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "our certificate was revoked",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate is out of its time",
    "TLSV1_ALERT_UNKNOWN_CA": "our certificate is of an authority that it does not trust",
    "SSLV3_ALERT_BAD_CERTIFICATE": "our certificate is not believed",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate",
}
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})


class CredentialsUnusable(Exception):
    """A certificate, a key or an authority cannot be read, or cannot be chosen."""


class DoorRefused(Exception):
    """The two ends do not agree on TLS, or do not believe each other: trying again is no use."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are to a node that asks for a certificate; nothing of it: plaintext."""

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None

    @property
    def is_given(self) -> bool:
        return self.certificate is not None or self.authority is not None

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context, None for plaintext; raises CredentialsUnusable."""
        if not self.is_given:
            return None
        try:
            context = ssl.create_default_context(cafile=self.authority)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False  # the SPIFFE URI is the name: see `check_node`
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise CredentialsUnusable(f"cannot use these credentials: {error}") from error
        return context


NOBODY: Final = Credentials()


def from_environment(environment: Mapping[str, str]) -> Credentials:
    """Return what the environment says: QUANTUM_CERT, QUANTUM_KEY, QUANTUM_CA."""
    named = (CERTIFICATE_VARIABLE, KEY_VARIABLE, AUTHORITY_VARIABLE)
    return Credentials(*(Path(found) if (found := environment.get(n)) else None for n in named))


def beside_data(address: Address, data: Path) -> Credentials:
    """Return what the directory of the cluster that has this address offers; nothing elsewhere.

    Raises CredentialsUnusable where more than one caller's certificate is there.
    """
    if not _wants_tls(data):
        return NOBODY
    from clustor.runtime.cluster_file import CLUSTER_FILE, read_cluster_file
    from clustor.runtime.pki.identity import AUTHORITY_FILE, PKI_DIRECTORY

    try:
        cluster = read_cluster_file(data / CLUSTER_FILE)
    except NodeError:
        return NOBODY
    if not cluster.admin_tls or address not in [entry.admin for entry in cluster.nodes]:
        return NOBODY
    pki = data / PKI_DIRECTORY
    found = sorted(pki.glob(_CALLERS))
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise CredentialsUnusable(
            f"more than one certificate is there, say which by --cert: {names}"
        )
    return Credentials(found[0] if found else None, None, pki / AUTHORITY_FILE)


def _wants_tls(data: Path) -> bool:
    """Say whether the cluster below `data` may want TLS, before half a second of imports is spent
    to read its description as a whole.
    """
    try:
        found = json.loads((data / _CLUSTER_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and bool(found.get("admin_tls"))


def credentials_for(address: Address, given: Credentials, data: Path | None = None) -> Credentials:
    """Choose who calls: who was given, else the environment's, else who lies beside the data."""
    if given.is_given:
        return given
    found = from_environment(os.environ)
    if found.is_given:
        return found
    place = data if data is not None else Path(os.environ.get(DATA_VARIABLE) or DATA_DEFAULT)
    return beside_data(address, place)


def open_http(
    address: Address, given: Credentials = NOBODY, *, seconds: float
) -> http.client.HTTPConnection:
    """Connect to an admin port, as whoever `credentials_for` chooses.

    Raises OSError, DoorRefused and CredentialsUnusable.
    """
    context = credentials_for(address, given).context()
    host, port = address.host, address.port
    if context is None:
        plain = http.client.HTTPConnection(host, port, timeout=seconds)
        plain.connect()
        return plain
    secured = http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
    try:
        secured.connect()
        check_node(secured.sock.getpeercert(binary_form=True))
    except ssl.SSLError as error:
        secured.close()
        raise DoorRefused(why_refused(address, error)) from error
    except PeerRefused as error:
        secured.close()
        raise DoorRefused(f"{address} is no node of a cluster: {error}") from error
    return secured


def check_node(certificate_der: bytes | None) -> None:
    """Believe a server that its authority calls a node; raises PeerRefused."""
    from clustor.runtime.pki.identity import identity_of  # late: plaintext needs none of it

    identity_of(certificate_der)


def why_refused(address: Address, error: ssl.SSLError) -> str:
    """Say in a sentence what stands between two ends of which one at least speaks TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"{address} is not believed: {error.verify_message}; is --ca the cluster's own ca.pem?"
        )
    if error.reason in _NOT_TLS:
        return (
            f"{address} speaks plaintext (development): leave --cert and --ca out, "
            f"and {CERTIFICATE_VARIABLE} and {AUTHORITY_VARIABLE} too"
        )
    known = _ALERTS.get(error.reason or "")
    return f"{address} refused us: {known or error.reason or error}"


def explain_silence(address: Address) -> str | None:
    """Say whether a port that gave no answer to plaintext speaks TLS; None: it does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is said to it: this only asks whether it is TLS
    try:
        with (
            socket.create_connection((address.host, address.port), _PROBE_SECONDS) as plain,
            context.wrap_socket(plain),
        ):
            pass
    except (OSError, ValueError):
        return None
    return (
        f"{address} wants TLS: give --cert and --ca, or {CERTIFICATE_VARIABLE} and "
        f"{AUTHORITY_VARIABLE}; `quantum admin certificate` issues a certificate in development"
    )
