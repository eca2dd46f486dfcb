"""The book below `/docs`: the pages that `make docs` built, read-only, nothing from elsewhere."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import quantum
from clustor.runtime.admin.http import Response, Text

PREFIX: Final = "/docs"
FILE_BYTES_MAX: Final = 16 << 20
UNBUILT: Final = b"The book is not built here: run `make docs` in the checkout, and ask again.\n"
_MISSING: Final = b"The book has no such page: begin at /docs/\n"
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".xml": "application/xml",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    **dict.fromkeys((".py", ".c", ".go", ".java", ".rs", ".toml"), "text/plain; charset=utf-8"),
}
_INLINE: Final = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def built_book() -> Path | None:
    """Find the built pages: beside the sources, or where an installation keeps documents."""
    beside = Path(quantum.__file__).resolve().parents[2] / "site"
    installed = Path(sys.prefix) / "share" / "doc" / "quantum" / "site"
    return next((each for each in (beside, installed) if (each / "index.html").is_file()), None)


def is_of_book(path: str) -> bool:
    return path == PREFIX or path.startswith(PREFIX + "/")


async def answer_book(path: str, headers: Mapping[str, str], root: Path | None) -> Response:
    """Answer a GET below `/docs`; files are read beside the loop."""
    if root is None:
        return Response(404, Text(UNBUILT), _fields(b""))
    if path == PREFIX:  # its links are relative: they need the slash
        return Response(308, Text(b""), {"Location": PREFIX + "/"})
    return await asyncio.to_thread(_read, path, headers.get("if-none-match", ""), root)


def _read(path: str, known: str, root: Path) -> Response:
    file = _find(path, root)
    if file is None:
        return Response(404, Text(_MISSING), _fields(b""))
    body = file.read_bytes()
    kind = _KINDS.get(file.suffix, "application/octet-stream")
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    fields = _fields(body if file.suffix == ".html" else b"") | {"ETag": tag}
    if tag in (each.strip() for each in known.split(",")):
        return Response(304, Text(b"", kind), fields)
    return Response(200, Text(body, kind), fields)


def _find(path: str, root: Path) -> Path | None:
    """Return the file that a path names, if it is one of the book's own."""
    try:
        names = unquote(path.removeprefix(PREFIX + "/"), errors="strict").split("/")
    except UnicodeDecodeError:
        return None
    if not names[-1]:
        names[-1] = "index.html"
    if any(not name or name.startswith(".") or "\\" in name or "\0" in name for name in names):
        return None
    file = root.joinpath(*names)
    try:
        inside = file.resolve().is_relative_to(root.resolve())  # a link may lead out
        return file if inside and file.is_file() and file.stat().st_size <= FILE_BYTES_MAX else None
    except OSError:
        return None


def _fields(page: bytes) -> dict[str, str]:
    """Let a page use what is here alone; of scripts, only those that it was built with."""
    built = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(each).digest()).decode()}'"
        for each in dict.fromkeys(_INLINE.findall(page))
    )
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        f"script-src 'self' {built}; worker-src 'self'; connect-src 'self'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
        "manifest-src 'self'"
    )
    return {
        "Content-Security-Policy": policy.replace(" ;", ";"),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
