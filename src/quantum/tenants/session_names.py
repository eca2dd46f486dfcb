"""Names of sessions that a node keeps for connections of another protocol.

The rules of a tenant know such a session by the client that it is kept for: `amqp:CLIENT:NAME` has
the rights of CLIENT, whoever connects with it, and no others.
"""

from __future__ import annotations

from typing import Final

_PREFIX: Final = "amqp:"
_SEPARATOR: Final = ":"
PREFIX: Final = _PREFIX.encode()


def name_session(client: str, name: str) -> str:
    """Name a session that is kept for a client; `name` has no colon."""
    assert _SEPARATOR not in name, "a client's own name may have colons, the rest may not"
    return f"{_PREFIX}{client}{_SEPARATOR}{name}"


def client_of(client_id: bytes) -> bytes:
    """Return by which id the rules know a client: that for which its session is kept."""
    if not client_id.startswith(PREFIX):
        return client_id
    client, found, name = client_id[len(PREFIX) :].rpartition(_SEPARATOR.encode())
    return client if found and name else client_id
