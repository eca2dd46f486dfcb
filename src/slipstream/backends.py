"""Find a backend by the URL that a person gives."""

from __future__ import annotations

from slipstream.errors import Misuse
from slipstream.ports import Connection


class BackendNotBuilt(Misuse):
    """A backend that this release names and does not have yet."""


def open_connection(url: str) -> Connection:
    """Give an unopened connection for `nats://…`, `tls://…` or `memory://`."""
    scheme = url.partition("://")[0]
    match scheme:
        case "nats" | "tls":
            from slipstream.nats import NatsConnection, NatsConnectionConfig

            return NatsConnection(NatsConnectionConfig(url=url))
        case "memory":
            from slipstream.memory import MemoryConnection

            return MemoryConnection()
        case "clustor":
            raise BackendNotBuilt("the clustor:// backend is not built yet; use nats://")
        case _:
            raise Misuse("a backend is nats://…, tls://… or clustor://…", got=scheme)
