"""The API on a node's admin port, and the guard of the pages beside it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Final
from urllib.parse import urlsplit

from clustor.control import AccessRole
from clustor.runtime.admin.http import Request, Response
from clustor.wall_clock import wall_clock_ms
from quantum.admin.api import OPENAPI_PATH, ApiServer
from quantum.admin.book import answer_book, built_book, is_of_book
from quantum.admin.port import ControlPort, ExplanationPort, GroupsPort, RefusalSink
from quantum.admin.routes import OPERATORS, READERS, TENANT_READERS
from quantum.console import ConsolePage, is_of_console
from quantum.node.served import ServedBroker

_PREFIX: Final = "/v1/"
_STREAMS: Final = frozenset({"/kv"})
_STREAM_ROLES: Final = frozenset({AccessRole.OPERATOR, AccessRole.NODE})


class AdminPages:
    """What `AdminServer.api` is set to."""

    def __init__(
        self,
        port: ControlPort,
        *,
        development: str | None = None,
        why: ExplanationPort | None = None,
        groups: GroupsPort | None = None,
        sink: RefusalSink | None = None,
        broker: Callable[[], ServedBroker | None] = lambda: None,
    ) -> None:
        """Serve `port`; `development` names the Operator that plaintext callers are."""
        self.api = ApiServer(
            port,
            now_ms=wall_clock_ms,
            draw_id=lambda: f"r-{os.urandom(12).hex()}",
            development=development,
            why=why,
            groups=groups,
            sink=sink,
            broker=broker,
        )
        self._console = ConsolePage()

    def take(self, request: Request) -> Coroutine[None, None, Response | None] | None:
        """Answer what is ours; under TLS, let others' pages be seen by whom may."""
        path = urlsplit(request.target).path
        if path.startswith(_PREFIX) or path == OPENAPI_PATH:
            return self.api.answer(request)
        if is_of_book(path) and request.method == "GET":
            return self._book(request, path)
        if is_of_console(request):
            return self._show_console(request)
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

    async def _show_console(self, request: Request) -> Response:
        """Show the console to whom may read anything: what it asks for is asked about again."""
        if request.encrypted:
            refused = await self.api.guard(request, TENANT_READERS)
            if refused is not None:
                return refused
        return await self._console.answer(request)
