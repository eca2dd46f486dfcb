"""Read a delivered key-value message: put, delete, purge, or one that the server placed itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from slipstream.types import UpdateKind

_MARKERS: Final = {
    "MaxAge": UpdateKind.DELETE,
    "Remove": UpdateKind.DELETE,
    "Purge": UpdateKind.PURGE,
}


def kind_of(headers: Mapping[str, str] | None, value_bytes: int) -> UpdateKind:
    """Say what a message did to its key.

    An empty value is the tombstone of a conditional delete. A limit or a TTL that expired leaves
    a marker of the server's own, which looks like a put to whoever does not read its reason.
    """
    if headers:
        operation = headers.get("KV-Operation")
        if operation is not None:
            return UpdateKind.PURGE if operation == "PURGE" else UpdateKind.DELETE
        reason = headers.get("Nats-Marker-Reason")
        if reason is not None:
            return _MARKERS.get(reason, UpdateKind.DELETE)
    return UpdateKind.PUT if value_bytes else UpdateKind.DELETE


def value_bytes_of(headers: Mapping[str, str] | None, data: bytes) -> int:
    """Give the size of the value, also where only headers were delivered."""
    stated = headers.get("Nats-Msg-Size") if headers else None
    return int(stated) if stated is not None else len(data)
