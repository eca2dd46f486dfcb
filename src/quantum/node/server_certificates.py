"""Whose certificates the doors over TLS show: development's own, or files that others renew."""

from __future__ import annotations

from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Final, Protocol

from clustor.runtime.pki.identity import AUTHORITY_FILE, utc_now
from quantum.edge.tls import ServerCertificates, TlsPolicy
from quantum.edge.tls_development import (
    SERVER_FILE,
    SERVER_KEY_FILE,
    pki_directory,
    prepare_server,
)
from quantum.tenants.token_keys import TOKENS_DIRECTORY

_LOCK_FILE: Final = "mqtt-pki.lock"


class CertificateSource(Protocol):
    """Gives the doors their certificates."""

    @property
    def tokens(self) -> Path:
        """Where the public keys of clients' tokens are."""

    def prepare(
        self, names: frozenset[str], policy: TlsPolicy, *, own_records: bool
    ) -> ServerCertificates:
        """Return them, good for these names as far as it can be seen to. Raises EdgeError."""


class DevelopmentCertificates:
    """Certificates of an authority below the data, made for every name that is asked for."""

    def __init__(self, data: Path) -> None:
        self._data = data

    @property
    def tokens(self) -> Path:
        return pki_directory(self._data) / TOKENS_DIRECTORY

    def prepare(
        self, names: frozenset[str], policy: TlsPolicy, *, own_records: bool
    ) -> ServerCertificates:
        """Make or renew them; nodes of one directory take turns."""
        (self._data / _LOCK_FILE).touch()
        with (self._data / _LOCK_FILE).open("ab") as lock:
            flock(lock, LOCK_EX)
            return prepare_server(
                self._data, utc_now(), names, own_records=own_records, policy=policy
            )


class HostCertificates:
    """Files of an operator's own authority: `server.pem`, `server.key` and the clients' `ca.pem`.

    Nobody here makes or renews them. Whoever replaces them (an ACME client, a mounted secret) is
    noticed within a second, and connections to come see the new ones.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def tokens(self) -> Path:
        return self._directory / TOKENS_DIRECTORY

    def prepare(
        self, _names: frozenset[str], policy: TlsPolicy, *, own_records: bool
    ) -> ServerCertificates:
        """Read them. Raises CertificatesUnusable."""
        return ServerCertificates(
            self._directory / SERVER_FILE,
            self._directory / SERVER_KEY_FILE,
            self._directory / AUTHORITY_FILE,
            own_records=own_records,
            policy=policy,
        )
