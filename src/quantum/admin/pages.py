"""The API on a node's admin port, and the guard of the pages beside it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import Final
from urllib.parse import urlsplit

from clustor.control import Role
from clustor.runtime.admin.http import Request, Response
from quantum.admin.api import OPENAPI_PATH, Api
from quantum.admin.book import answer_book, built_book, is_of_book
from quantum.admin.port import ControlPort, GroupsPort, RefusalSink, WhyPort
from quantum.admin.routes import OPERATORS, READERS
from quantum.node.served import ServedBroker

_PREFIX: Final = "/v1/"
_STREAMS: Final = frozenset({"/kv"})
_STREAM_ROLES: Final = frozenset({Role.OPERATOR, Role.NODE})


class AdminPages:
    """What `AdminServer.api` is set to."""

    def __init__(
        self,
        port: ControlPort,
        *,
        development: str | None = None,
        why: WhyPort | None = None,
        groups: GroupsPort | None = None,
        sink: RefusalSink | None = None,
        broker: Callable[[], ServedBroker | None] = lambda: None,
    ) -> None:
        """Serve `port`; `development` names the Operator that plaintext callers are."""
        self.api = Api(
            port,
            now_ms=lambda: time.time_ns() // 1_000_000,
            draw_id=lambda: f"r-{os.urandom(12).hex()}",
            development=development,
            why=why,
            groups=groups,
            sink=sink,
            broker=broker,
        )

    def take(self, request: Request) -> Coroutine[None, None, Response | None] | None:
        """Answer what is ours; under TLS, let others' pages be seen by whom may."""
        path = urlsplit(request.target).path
        if path.startswith(_PREFIX) or path == OPENAPI_PATH:
            return self.api.answer(request)
        if is_of_book(path) and request.method == "GET":
            return self._book(request, path)
        if not request.encrypted:
            return None  # development: loopback, and everybody is Operator
        if path in _STREAMS:
            return self.api.guard(request, _STREAM_ROLES)
        return self.api.guard(request, READERS if request.method == "GET" else OPERATORS)

    async def _book(self, request: Request, path: str) -> Response:
        """Show a page of the book to whom may read."""
        if request.encrypted:
            refused = await self.api.guard(request, READERS)
            if refused is not None:
                return refused
        return await answer_book(path, request.headers, await asyncio.to_thread(built_book))
