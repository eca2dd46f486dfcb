"""The little HTTP/1.1 of the admin port: strict heads in, whole responses out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

HEAD_BYTES_MAX: Final = 8 << 10
BODY_BYTES_MAX: Final = 1 << 20
JSON: Final = "application/json"

METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_WITHOUT_BODY: Final = frozenset({"GET", "DELETE"})

_REASONS: Final = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    422: "Unprocessable Content",
    426: "Upgrade Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}


class BadRequest(Exception):
    """The head is not one that we answer; `code` says why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Head:
    """A request's path and headers, names in small letters, and how long a body follows."""

    path: str
    headers: dict[str, str]
    method: str = "GET"
    body_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request, and who sent it as far as TLS can tell."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    encrypted: bool = False
    certificate: bytes | None = None
    """The peer's (DER), verified against our authority; None: it showed none."""


@dataclass(frozen=True, slots=True)
class Response:
    """What is sent back; bytes go out as they are."""

    code: int
    content: object
    headers: Mapping[str, str] = field(default_factory=dict)


def parse_head(data: bytes) -> Head:
    """Parse a whole head, without its empty line. Raises BadRequest."""
    try:
        lines = data.decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise BadRequest(400, "the head is not ASCII") from None
    parts = lines[0].split(" ")
    # What begins with two slashes would be read as the name of a host, and not every one is one.
    if len(parts) != 3 or not parts[1].startswith("/") or parts[1].startswith("//"):
        raise BadRequest(400, "not a request line")
    if parts[2] != "HTTP/1.1":
        raise BadRequest(505, "HTTP/1.1 only")
    if parts[0] not in METHODS:
        raise BadRequest(405, f"{', '.join(sorted(METHODS))} only")
    headers = dict(map(_header, lines[1:]))
    if len(headers) != len(lines) - 1:
        raise BadRequest(400, "a header twice")
    if "host" not in headers:
        raise BadRequest(400, "no Host header")
    return Head(parts[1], headers, parts[0], _body_bytes(parts[0], headers))


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip() or not name.isprintable():
        raise BadRequest(400, "not a header")
    return name.lower(), value.strip()


def _body_bytes(method: str, headers: dict[str, str]) -> int:
    """Return how long the body is: none for GET and DELETE, a bounded JSON for the others.

    The content type is demanded because a web page cannot send it to us unasked.
    """
    length = headers.get("content-length")
    is_bare = method in _WITHOUT_BODY
    if "transfer-encoding" in headers or (is_bare and length not in (None, "0")):
        raise BadRequest(400, "a body where none is expected")
    if is_bare:
        return 0
    if length is None or not (length.isascii() and length.isdigit()):
        raise BadRequest(411, f"a {method} needs a Content-Length")
    if len(length) > 9 or int(length) > BODY_BYTES_MAX:
        raise BadRequest(413, "the body is too large")
    if headers.get("content-type") != JSON:
        raise BadRequest(415, f"a {method} needs Content-Type: {JSON}")
    return int(length)


_NEXT: Final = {
    405: "use a method that the page knows",
    408: "send the whole request at once",
    411: "say how long the body is: Content-Length",
    413: f"send at most {BODY_BYTES_MAX} bytes",
    415: f"send the body as {JSON}",
    431: f"send a head of at most {HEAD_BYTES_MAX} bytes",
    503: "repeat it in a second",
}


def refusal(code: int, message: str) -> dict[str, object]:
    """Say why the port itself answers nothing, in the shape that all refusals of an API have."""
    return {
        "error": _REASONS[code].replace(" ", ""),
        "message": message,
        "next": _NEXT.get(code, "correct the request, and repeat it"),
        "facts": {},
        "request_id": "",
    }


@dataclass(frozen=True, slots=True)
class Text:
    """A page that is not JSON."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"


def respond(code: int, content: object, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a whole response; the connection ends behind it."""
    kind = content.content_type if isinstance(content, Text) else JSON
    if isinstance(content, Text):
        body = content.body
    else:
        body = content if isinstance(content, bytes) else msgspec.json.encode(content) + b"\n"
    fields = {"Content-Type": kind} | dict(headers or {})
    fields |= {"Content-Length": str(len(body)), "Connection": "close"}
    lines = [f"HTTP/1.1 {code} {_REASONS[code]}", *(f"{k}: {v}" for k, v in fields.items())]
    return "\r\n".join((*lines, "", "")).encode() + body
