"""The API on a real admin port, in a thread of its own, for clients that block."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from clustor.runtime.admin.server import AdminServer
from clustor.runtime.peers.transport import Address
from quantum.admin import AdminPages
from tests.clustor.runtime.test_transport import free_address
from tests.quantum.admin.host import Host


@contextmanager
def served(
    host: Host, *, door: Callable[[AdminServer], ssl.SSLContext] | None = None, **more: Any
) -> Iterator[tuple[Address, AdminPages]]:
    """Serve until the context ends."""
    loop = asyncio.new_event_loop()
    pages = AdminPages(host, **more)
    server = AdminServer(lambda: {"node_id": 1}, None)
    server.api = pages
    address = free_address()
    loop.run_until_complete(server.listen(address, door(server) if door is not None else None))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield address, pages
    finally:
        _in_loop(loop, server.close)
        _in_loop(loop, loop.stop)
        thread.join(90)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _in_loop(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(action)
