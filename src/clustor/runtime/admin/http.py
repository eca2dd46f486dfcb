"""The little HTTP/1.1 of the admin port: strict requests in, whole responses out. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import h11
import msgspec

HEAD_BYTES_MAX: Final = 8 << 10
BODY_BYTES_MAX: Final = 1 << 20
JSON: Final = "application/json"

METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_WITHOUT_BODY: Final = frozenset({"GET", "DELETE"})

_REASONS: Final = {
    200: "OK",
    202: "Accepted",
    304: "Not Modified",
    308: "Permanent Redirect",
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
    """The request is not one that we answer; `code` says why."""

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


class HttpRequestReader:
    """One request, read by h11 and held to the little that this port takes. Pure.

    h11 knows what a request is; here stands what of that is answered: few methods, short heads,
    bounded JSON whose length is said before, each header once.
    """

    __slots__ = ("_body", "_body_bytes", "_head", "_http")

    def __init__(self) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._head: Head | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0

    @property
    def head(self) -> Head | None:
        """The head, as soon as it is whole."""
        return self._head

    def receive(self, data: bytes) -> bool:
        """Take bytes; say whether the request is whole. Raises BadRequest."""
        try:
            self._http.receive_data(data)
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.Request):
                    self._head = head_of(event)
                elif isinstance(event, h11.Data):
                    self._take_body(bytes(event.data))
                else:
                    return isinstance(event, h11.EndOfMessage)
        except h11.RemoteProtocolError as error:
            code = error.error_status_hint if error.error_status_hint in _REASONS else 400
            raise BadRequest(code, "not a request of HTTP/1.1") from None

    def take(self) -> tuple[bytes, bytes]:
        """Return the body, and what came behind it."""
        trailing, _ = self._http.trailing_data
        return b"".join(self._body), bytes(trailing)

    def _take_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > BODY_BYTES_MAX:
            raise BadRequest(413, "the body is too large")
        self._body.append(data)


def head_of(request: h11.Request) -> Head:
    """Say what a request's head asks for. Raises BadRequest."""
    method, target = request.method.decode("ascii"), request.target.decode("ascii")
    if request.http_version != b"1.1":
        raise BadRequest(505, "HTTP/1.1 only")
    if method not in METHODS:
        raise BadRequest(405, f"{', '.join(sorted(METHODS))} only")
    # What begins with two slashes would be read as the name of a host, and not every one is one.
    if not target.startswith("/") or target.startswith("//"):
        raise BadRequest(400, "not a path")
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
    if len(headers) != len(request.headers):
        raise BadRequest(400, "a header twice")
    if not all(value.isascii() and value.isprintable() for value in headers.values()):
        raise BadRequest(400, "a header that is not printable ASCII")
    return Head(target, headers, method, _body_bytes(method, headers))


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
    if length is None:
        raise BadRequest(411, f"a {method} needs a Content-Length")
    if int(length) > BODY_BYTES_MAX:
        raise BadRequest(413, "the body is too large")
    if headers.get("content-type") != JSON:
        raise BadRequest(415, f"a {method} needs Content-Type: {JSON}")
    return int(length)


def is_loopback_name(name: str) -> bool:
    """Say whether a host's name or address is this machine's own, whoever resolves it."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_name(host: str) -> str:
    """Return the name in a Host header, without its port; nothing where there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def check_origin(head: Head, own_host: str, *, encrypted: bool) -> None:
    """Refuse what a web page elsewhere made a browser send (DNS rebinding). Raises BadRequest.

    A page whose name was made to point here sends its own name as Host. Under TLS no browser
    would take our certificate for that name, so there the name is not asked about.
    """
    host = head.headers.get("host", "")
    name = host_name(host)
    if not encrypted and not (is_loopback_name(name) or name == own_host.lower()):
        raise BadRequest(421, "in development mode this port answers on loopback alone")
    origin = head.headers.get("origin")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        raise BadRequest(403, "this port is not for pages of other origins")


_NEXT: Final = {
    405: "use a method that the page knows",
    408: "send the whole request at once",
    411: "say how long the body is: Content-Length",
    413: f"send at most {BODY_BYTES_MAX} bytes",
    415: f"send the body as {JSON}",
    421: "ask 127.0.0.1 or localhost",
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
