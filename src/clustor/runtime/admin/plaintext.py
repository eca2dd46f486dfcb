"""Where plaintext may be spoken: on this machine, and nowhere else (ruling C15)."""

from __future__ import annotations

import asyncio

from clustor.runtime.admin.http import is_loopback_name
from clustor.runtime.errors import PlaintextRefused


def require_loopback(what: str, host: str) -> None:
    """Raise PlaintextRefused where others than this machine could listen."""
    if not is_loopback_name(host):
        raise PlaintextRefused(
            f"{what} is plaintext, which is served on loopback only: set admin_tls, or listen"
            " on 127.0.0.1",
            host=host,
        )


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the address that a connection comes from, without its port; empty: it is gone."""
    found = transport.get_extra_info("peername")
    return str(found[0]) if isinstance(found, tuple) and found else ""
