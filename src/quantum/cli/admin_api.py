"""Asking the admin API: one request, its answer as JSON, over plaintext loopback or mTLS."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from clustor.runtime.transport import Address
from quantum.cli.admin_client import AdminUnreachable

TIMEOUT_SECONDS: Final = 35.0  # a little longer than the API itself takes


class CredentialsUnusable(Exception):
    """A certificate, a key or an authority cannot be read."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are to a node that asks for a certificate; nothing of it: plaintext."""

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context, None for plaintext; raises CredentialsUnusable."""
        if self.certificate is None and self.authority is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.authority)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise CredentialsUnusable(f"cannot use these credentials: {error}") from error
        return context


@dataclass(frozen=True, slots=True)
class Told:
    """What a node answered."""

    code: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.code < 300


@dataclass(frozen=True, slots=True)
class AdminApi:
    """The API of one node."""

    address: Address
    credentials: Credentials = Credentials()

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Told:
        """Ask once; raises AdminUnreachable, CredentialsUnusable."""
        connection = self._connection()
        target = f"{path}?{urlencode(query)}" if query else path
        content = None if body is None else json.dumps(body).encode()
        fields = dict(headers or {})
        if content is not None:
            fields["Content-Type"] = "application/json"
        try:
            connection.request(method, target, content, fields)
            response = connection.getresponse()
            return Told(response.status, json.loads(response.read()), dict(response.getheaders()))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise AdminUnreachable(f"cannot reach {self.address}: {error}") from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self.address.host, self.address.port
        context = self.credentials.context()
        if context is None:
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=context)
