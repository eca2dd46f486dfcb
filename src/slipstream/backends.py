"""Find a backend by the URL that a person gives."""

from __future__ import annotations

from slipstream.errors import Misuse
from slipstream.ports import Connection


def open_connection(url: str) -> Connection:
    """Give an unopened connection for `nats://…`, `tls://…`, `clustor://…` or `memory://`."""
    scheme = url.partition("://")[0]
    match scheme:
        case "nats" | "tls":
            from slipstream.nats import NatsConnection, NatsConnectionConfig

            return NatsConnection(NatsConnectionConfig(url=url))
        case "memory":
            from slipstream.memory import MemoryConnection

            return MemoryConnection()
        case "clustor":
            from slipstream.clustor import ClustorConnection, ClustorConnectionConfig

            return ClustorConnection(ClustorConnectionConfig.from_url(url))
        case _:
            raise Misuse("a backend is nats://…, tls://… or clustor://…", got=scheme)
