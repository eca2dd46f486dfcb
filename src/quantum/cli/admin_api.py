"""Asking the admin API: one request, its answer as JSON, over plaintext loopback or mTLS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from clustor.runtime.admin.caller import Credentials
from clustor.runtime.peers.transport import Address
from quantum.cli.admin_client import exchange

TIMEOUT_SECONDS: Final = 35.0  # a little longer than the API itself takes


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
    credentials: Credentials | None = None
    """As whom it is asked; None: as whom the command speaks."""

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Told:
        """Ask once; raises AdminUnreachable."""
        target = f"{path}?{urlencode(query)}" if query else path
        content = None if body is None else json.dumps(body).encode()
        fields = dict(headers or {})
        if content is not None:
            fields["Content-Type"] = "application/json"
        answer = exchange(
            self.address,
            method,
            target,
            content,
            headers=fields,
            seconds=TIMEOUT_SECONDS,
            credentials=self.credentials,
        )
        return Told(*answer)
