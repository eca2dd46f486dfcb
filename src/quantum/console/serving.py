"""Serving the console: which requests it answers, with which headers. It is read once, lazily."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from clustor.runtime.admin.http import Request, Response, Text
from quantum.console.archive import (
    INDEX,
    PAGE_ARCHIVE,
    PAGE_DIGEST,
    ConsoleFile,
    ConsoleUnreadable,
    unpack_console,
)

ROOT: Final = "/"
PREFIX: Final = "/console/"
HERE: Final = Path(__file__).resolve().parent
_MISSING: Final = b"The console has no such file: begin at /\n"
_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_DAY: Final = "public, max-age=31536000, immutable"

journal = logging.getLogger("quantum.console")


def is_of_console(request: Request) -> bool:
    """Say whether a request is for the console.

    At `/` a browser says that it takes HTML; programs do not, and are answered as ever.
    """
    path = urlsplit(request.target).path
    if request.method != "GET":
        return False
    if path == ROOT:
        return "text/html" in request.headers.get("accept", "")
    return path.startswith(PREFIX)


class ConsolePage:
    """The page of one node, held in memory from its first reader on."""

    def __init__(self, place: Path = HERE) -> None:
        self._place = place
        self._files: dict[str, ConsoleFile] | None = None
        self._reading = asyncio.Lock()

    async def answer(self, request: Request) -> Response:
        """Answer what `is_of_console`; a page that cannot be read is a sentence, and no more."""
        path = urlsplit(request.target).path
        try:
            files = await self._read()
        except (ConsoleUnreadable, OSError) as error:
            journal.error("the console cannot be shown: %s", error)
            said = f"The console cannot be shown: {error}. `/v1` works as ever.\n"
            return Response(503, Text(said.encode()), _fields(request.headers))
        name = INDEX if path == ROOT else path.removeprefix(PREFIX)
        found = files.get(name)
        if found is None:
            return Response(404, Text(_MISSING), _fields(request.headers))
        return _send(found, request.headers, is_index=name == INDEX)

    async def _read(self) -> dict[str, ConsoleFile]:
        """Unpack beside the loop, once however many ask. Raises ConsoleUnreadable, OSError."""
        async with self._reading:
            if self._files is None:
                self._files = await asyncio.to_thread(_unpack, self._place)
            return self._files


def _unpack(place: Path) -> dict[str, ConsoleFile]:
    digest = (place / PAGE_DIGEST).read_text("ascii", "replace")
    return unpack_console((place / PAGE_ARCHIVE).read_bytes(), digest)[1]


def _send(file: ConsoleFile, headers: Mapping[str, str], *, is_index: bool) -> Response:
    """Send a file, compressed as it is held where that is taken."""
    fields = _fields(headers)
    if not is_index:
        fields["Cache-Control"] = _DAY  # its name changes with what is in it
    takes = {each.partition(";")[0].strip() for each in _listed(headers, "accept-encoding")}
    body, tag = file.body, file.tag
    if file.gzipped is not None and "gzip" in takes:
        body, tag = file.gzipped, f"{file.tag}-gzip"
        fields["Content-Encoding"] = "gzip"
    fields["ETag"] = f'"{tag}"'
    if fields["ETag"] in _listed(headers, "if-none-match"):
        fields.pop("Content-Encoding", None)
        return Response(304, Text(b"", file.kind), fields)
    return Response(200, Text(body, file.kind), fields)


def _listed(headers: Mapping[str, str], name: str) -> list[str]:
    return [each.strip() for each in headers.get(name, "").split(",")]


def _fields(headers: Mapping[str, str]) -> dict[str, str]:
    """Let the page run its own script alone, and speak to this host alone.

    The live client speaks to another port of the same host: that of MQTT over WebSocket.
    """
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        f"script-src 'self'; style-src 'self'; img-src 'self' data:; "
        f"connect-src 'self'{_sockets(headers.get('host', ''))}"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        "Cache-Control": "no-cache",
        "Vary": "Accept, Accept-Encoding",
    }


def _sockets(host: str) -> str:
    """Name the sockets of the host that was asked; a name that is none adds nothing."""
    if _HOST.fullmatch(host) is None:
        return ""
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return f" ws://{name}:* wss://{name}:*"
