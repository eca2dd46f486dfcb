"""The little HTTP/1.1 of the admin port: strict heads in, whole responses out. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

HEAD_BYTES_MAX: Final = 8 << 10
BODY_BYTES_MAX: Final = 64 << 10
JSON: Final = "application/json"

_REASONS: Final = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    426: "Upgrade Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
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


def parse_head(data: bytes) -> Head:
    """Parse a whole head, without its empty line. Raises BadRequest."""
    try:
        lines = data.decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise BadRequest(400, "the head is not ASCII") from None
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[1].startswith("/"):
        raise BadRequest(400, "not a request line")
    if parts[2] != "HTTP/1.1":
        raise BadRequest(505, "HTTP/1.1 only")
    if parts[0] not in ("GET", "POST"):
        raise BadRequest(405, "GET and POST only")
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
    """Return how long the body is: none for a GET, a bounded JSON for a POST.

    The content type is demanded because a web page cannot send it to us unasked.
    """
    length = headers.get("content-length")
    if "transfer-encoding" in headers or (method == "GET" and length not in (None, "0")):
        raise BadRequest(400, "a body where none is expected")
    if method == "GET":
        return 0
    if length is None or not (length.isascii() and length.isdigit()):
        raise BadRequest(411, "a POST needs a Content-Length")
    if len(length) > 9 or int(length) > BODY_BYTES_MAX:
        raise BadRequest(413, "the body is too large")
    if headers.get("content-type") != JSON:
        raise BadRequest(415, f"a POST needs Content-Type: {JSON}")
    return int(length)


def respond(code: int, content: object) -> bytes:
    """Return a whole response; the connection ends behind it."""
    body = content if isinstance(content, bytes) else msgspec.json.encode(content) + b"\n"
    head = (
        f"HTTP/1.1 {code} {_REASONS[code]}\r\n"
        f"Content-Type: {JSON}\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n"
    )
    return head.encode() + body
