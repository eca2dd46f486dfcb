"""What an admin port asks of the services whose pages it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol, TypeAlias

from clustor.runtime.admin.commands import Answer
from clustor.runtime.admin.http import Request, Response, refusal

StatusOf: TypeAlias = Callable[[], object]


Later: TypeAlias = Callable[[Callable[[int, object], None]], None]
"""An answer that is made bit by bit: it is given a function to call with the code and content."""


class Pages(Protocol):
    """Pages of a service; None says that a page is not one of them.

    A page that must be read from disk comes later: a future that is never an exception.
    """

    def get(self, target: str, /) -> Answer | asyncio.Future[Answer] | Later | None: ...
    def post(self, target: str, /) -> Answer | None: ...


class PagePort(Protocol):
    """Pages that take their time, and the guard of all others.

    `take` returns None for what is none of its business; what it returns is awaited, and None
    from that lets the request through to the other pages.
    """

    def take(self, request: Request, /) -> Coroutine[None, None, Response | None] | None: ...


class Calls(Protocol):
    """Pages that are answered later; None says that a page is not one of them."""

    def post(self, target: str, body: bytes, /) -> Awaitable[Answer] | None: ...


class CertificateGuard:
    """Lets every caller read whom TLS believes: where no roles can be asked for (repair mode)."""

    def take(self, request: Request) -> Coroutine[None, None, Response | None] | None:
        return self._judge(request) if request.encrypted else None

    async def _judge(self, request: Request) -> Response | None:
        if request.certificate is None:
            return Response(401, refusal(401, "the caller showed no certificate"))
        return None
