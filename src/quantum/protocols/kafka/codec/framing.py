"""Cut a stream of bytes into requests, however the bytes arrive, and read their headers.

A reader is pulled: what was whole before a bad length is still delivered. A request beyond its
bound is refused on its first bytes, before its body is held.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from quantum.protocols.kafka.codec.errors import MalformedRequest, RequestTooLarge
from quantum.protocols.kafka.codec.hot import skip_tags
from quantum.protocols.kafka.codec.versions import ApiKey, versions_of

_FIXED: Final = struct.Struct(">hhi")  # api_key, api_version, correlation_id
_LENGTH_BYTES: Final = 4
_KEY_BYTES: Final = _LENGTH_BYTES + 2  # the length and the api_key: enough to know the bound

CONTROL_BYTES_MAX: Final = 1 << 20
"""The bound of every request but Produce: beyond it, counts of small things cost too much."""
STRANGER_BYTES_MAX: Final = 64 << 10
"""The bound before a client has shown who it is: a SASL token, and nothing larger, comes then."""
PRODUCE_BYTES_MAX: Final = 100 << 20
LONG_BYTES: Final = 128 << 10
"""A request of so many bytes is not gathered in a buffer that is copied while it grows."""
PART_BYTES_MIN: Final = 16 << 10
"""Parts of a long request below this are gathered all the same: each costs an object."""


@dataclass(slots=True)
class RequestHead:
    """Who asks for what; `body_start` is where the body begins in the request's bytes."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_start: int


class KafkaRequestReader:
    """Hold what one connection received and was not yet asked for.

    Until `admitted` is set the peer is a stranger, and `stranger_bytes_max` bounds whatever it
    sends. After that `produce_bytes_max` bounds Produce and `control_bytes_max` all else.
    """

    __slots__ = (
        *("_buffer", "_control", "_long", "_long_bytes", "_missing", "_produce", "_stranger"),
        "admitted",
    )

    def __init__(
        self,
        *,
        produce_bytes_max: int = PRODUCE_BYTES_MAX,
        control_bytes_max: int = CONTROL_BYTES_MAX,
        stranger_bytes_max: int = STRANGER_BYTES_MAX,
        admitted: bool = False,
    ) -> None:
        self._buffer = bytearray()
        self._long: list[bytes | bytearray] = []  # a long request that comes in parts
        self._long_bytes = 0  # what those are together
        self._missing = 0  # what it still lacks
        self._produce = produce_bytes_max
        self._control = control_bytes_max
        self._stranger = stranger_bytes_max
        self.admitted = admitted

    @property
    def buffered_bytes(self) -> int:
        """How many bytes were received and not taken; 0 exactly between two requests."""
        return len(self._buffer) + self._long_bytes

    @property
    def awaited_bytes(self) -> int:
        """How many more bytes the first request needs, as far as its length is here."""
        if self._long:
            return self._missing
        if len(self._buffer) < _LENGTH_BYTES:
            return _LENGTH_BYTES - len(self._buffer)
        whole = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
        return max(0, whole - len(self._buffer))

    def receive(self, data: bytes) -> None:
        """Hold what the connection brought. Never raises: faults are told when pulled."""
        if self._missing:
            data = self._add_part(data)
        self._buffer += data

    def next_request(self) -> bytes | None:
        """Take the next request without its length, or None if none is whole yet.

        Raises MalformedRequest or RequestTooLarge, and again whenever it is asked: behind such a
        length there is nothing to find.
        """
        if self._long:
            return self._take_long()
        buffer = self._buffer
        if len(buffer) < _LENGTH_BYTES:
            return None
        size = int.from_bytes(buffer[:_LENGTH_BYTES], "big", signed=True)
        self._check(size)
        end = _LENGTH_BYTES + size
        if len(buffer) < end:
            if size >= LONG_BYTES and len(buffer) >= _KEY_BYTES:  # it was judged by its kind
                self._begin_long(end)
            return None
        with memoryview(buffer) as view:
            request = bytes(view[_LENGTH_BYTES:end])
        del buffer[:end]
        return request

    def _begin_long(self, end: int) -> None:
        """Let the parts of a long request wait as they come: they are joined once."""
        self._missing = end - len(self._buffer)
        self._long = [self._buffer[_LENGTH_BYTES:]]
        self._long_bytes = len(self._long[0])
        self._buffer = bytearray()

    def _add_part(self, data: bytes) -> bytes:
        """Add what belongs to the long request; return what lies behind it."""
        part, rest = data[: self._missing], data[self._missing :]
        last = self._long[-1]
        if len(part) < PART_BYTES_MIN and isinstance(last, bytearray):
            last += part  # who sends byte by byte costs no object for each
        else:
            self._long.append(bytearray(part) if len(part) < PART_BYTES_MIN else part)
        self._long_bytes += len(part)
        self._missing -= len(part)
        return rest

    def _take_long(self) -> bytes | None:
        if self._missing:
            return None
        request, self._long, self._long_bytes = b"".join(self._long), [], 0
        return request

    def _check(self, size: int) -> None:
        if size < _FIXED.size:
            raise MalformedRequest("request shorter than its header", length=size)
        limit = self._limit()
        if size > limit:
            raise RequestTooLarge("request too large", length=size, limit=limit)

    def _limit(self) -> int:
        if not self.admitted:
            return self._stranger
        if len(self._buffer) < _KEY_BYTES:
            return max(self._produce, self._control)
        api_key = int.from_bytes(self._buffer[_LENGTH_BYTES:_KEY_BYTES], "big", signed=True)
        return self._produce if api_key == ApiKey.PRODUCE else self._control


def read_head(request: bytes) -> RequestHead:
    """Read the header of a request, in the header version that its API and version have.

    An ApiVersions of an unknown version has a header like any other: its body is not for us, and
    `is_foreign_api_versions` tells it. Raises UnsupportedRequest and MalformedRequest.
    """
    if len(request) < _FIXED.size:
        raise MalformedRequest("request shorter than its header", length=len(request))
    api_key, api_version, correlation_id = _FIXED.unpack_from(request)
    if is_foreign_api_versions(api_key, api_version):
        return RequestHead(api_key, api_version, correlation_id, None, len(request))
    row = versions_of(api_key, api_version)
    client_id, position = _read_client_id(request, _FIXED.size)
    if api_version >= row.flexible_from:
        position = skip_tags(request, position)
    return RequestHead(api_key, api_version, correlation_id, client_id, position)


def is_foreign_api_versions(api_key: int, api_version: int) -> bool:
    """Say whether this is the one request that is answered in version 0, whatever it holds."""
    if api_key != ApiKey.API_VERSIONS:
        return False
    row = versions_of(ApiKey.API_VERSIONS, 0)
    return not row.first <= api_version <= row.last


def _read_client_id(request: bytes, position: int) -> tuple[str | None, int]:
    """Read a nullable string of the old kind: the header keeps it in all versions."""
    start = position + 2
    length = int.from_bytes(request[position:start], "big", signed=True)
    if len(request) < start or length < -1 or len(request) < start + length:
        raise MalformedRequest("client id runs beyond the request", length=length)
    if length == -1:
        return None, start
    try:
        return request[start : start + length].decode(), start + length
    except UnicodeDecodeError:
        raise MalformedRequest("client id is no UTF-8") from None
