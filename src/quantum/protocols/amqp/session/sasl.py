"""Who an AMQP client is: what SASL shows, beside what its certificate says (quantum §9.7.1)."""

from __future__ import annotations

from typing import Final

from quantum.edge.ports import ConnectionPeer
from quantum.tenants.binding import UNDER_TLS
from quantum.tenants.passwords import Passwords

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"
EXTERNAL: Final = "EXTERNAL"
_RESPONSE_BYTES_MAX: Final = 1_024


def allows_nobody(peer: ConnectionPeer, passwords: Passwords) -> bool:
    """Say whether a client may come that shows nothing: only on this machine, in development."""
    if passwords.policy.password == "required":  # noqa: S105
        return False
    return peer.transport not in UNDER_TLS or passwords.policy.allows_nobody


def mechanisms_for(peer: ConnectionPeer, passwords: Passwords, tenant: str) -> tuple[str, ...]:
    """Return what a client may choose, the best first."""
    offered = [EXTERNAL] if peer.identity is not None else []
    has_users = passwords.policy.password != "off" and passwords.has_users(tenant)  # noqa: S105
    if peer.transport in UNDER_TLS or has_users:
        offered.append(PLAIN)
    if allows_nobody(peer, passwords):
        offered.append(ANONYMOUS)
        if PLAIN not in offered:
            offered.append(PLAIN)  # nobody has a password here: any is as good as none
    return tuple(offered)


def read_plain(response: bytes) -> tuple[str, bytes] | None:
    """Return user and password (RFC 4616); None for what is neither."""
    parts = response.split(b"\0")
    if len(parts) != 3 or len(response) > _RESPONSE_BYTES_MAX:
        return None
    try:
        return parts[1].decode(), parts[2]
    except UnicodeDecodeError:
        return None
