"""All messages but the frequent three, by the schemas of the protocol's library."""

from __future__ import annotations

import struct
from typing import IO, Final, cast

from kio.index import load_request_schema, load_response_schema
from kio.schema.api_versions import v0 as api_versions_v0
from kio.schema.errors import ErrorCode as KafkaCode
from kio.serial import entity_writer
from kio.serial.errors import SerialError
from kio.serial.readers import read_timedelta_i32, read_timedelta_i64
from kio.static.primitive import i16, i32Timedelta, i64Timedelta
from kio.static.protocol import Entity

from quantum.protocols.kafka.codec.errors import KafkaMisuse, MalformedRequest
from quantum.protocols.kafka.codec.framing import RequestHead, is_foreign_api_versions
from quantum.protocols.kafka.codec.reading import read_entity
from quantum.protocols.kafka.codec.versions import (
    FINALIZED_FEATURES,
    VERSIONS,
    ApiKey,
    versions_of,
)

_HEAD: Final = struct.Struct(">ii")  # length, correlation_id


class _Sink(bytearray):
    """What the library writes into: a buffer that has the one method it calls."""

    def write(self, data: bytes) -> int:
        self += data
        return len(data)


def decode_request(head: RequestHead, request: bytes) -> Entity:
    """Read the body of a request whose header was read. Raises MalformedRequest.

    Not for Produce, nor for an ApiVersions of a version that we do not know. Bytes behind the body
    are let be, as Apache does: librdkafka sends one more than its Metadata has.
    """
    row = versions_of(head.api_key, head.api_version)
    if head.api_version < row.served_from:
        raise KafkaMisuse("a version that is only refused", api_key=head.api_key)
    schema = load_request_schema(head.api_key, head.api_version)
    return read_entity(schema, request, head.body_start)[0]


def decode(schema: type[Entity], data: bytes, start: int = 0) -> Entity:
    """Read one entity that fills `data` from `start` on. Raises MalformedRequest."""
    entity, end = read_entity(schema, data, start)
    if end != len(data):
        raise MalformedRequest("bytes behind the message", extra=len(data) - end)
    return entity


def encode(entity: Entity) -> bytes:
    """Write one entity without any header. Raises KafkaMisuse where a value has no encoding."""
    sink = _Sink()
    try:
        entity_writer(type(entity))(cast("IO[bytes]", sink), entity)
    except (SerialError, ValueError, OverflowError, TypeError, struct.error) as fault:
        raise KafkaMisuse("a value that its field cannot hold", fault=str(fault)) from fault
    return bytes(sink)


def encode_response(head: RequestHead, response: Entity) -> bytes:
    """Encode a whole answer with its length and the header that its API and version have."""
    if is_foreign_api_versions(head.api_key, head.api_version):
        flexible, expected = False, load_response_schema(ApiKey.API_VERSIONS, 0)
    else:
        row = versions_of(head.api_key, head.api_version)
        # ApiVersions keeps the old header: a client reads it before it knows our versions.
        flexible = head.api_version >= row.flexible_from and head.api_key != ApiKey.API_VERSIONS
        expected = load_response_schema(head.api_key, head.api_version)
    if type(response) is not expected:
        raise KafkaMisuse("an answer of another request", expected=expected.__name__)
    body = encode(response)
    extra = b"\x00" if flexible else b""
    return _HEAD.pack(4 + len(extra) + len(body), head.correlation_id) + extra + body


def answer_api_versions(
    head: RequestHead, *, throttle_ms: int = 0, hidden: frozenset[ApiKey] = frozenset()
) -> bytes:
    """Encode the answer to ApiVersions; of an unknown version, in version 0 with its error.

    `hidden` are APIs that are not served here: they are left out, as if the table had no row.
    """
    if is_foreign_api_versions(head.api_key, head.api_version):
        keys = tuple(
            api_versions_v0.response.ApiVersion(
                api_key=i16(key), min_version=i16(row.first), max_version=i16(row.last)
            )
            for key, row in VERSIONS.items()
            if key not in hidden
        )
        error = KafkaCode.unsupported_version
        answer = api_versions_v0.ApiVersionsResponse(error_code=error, api_keys=keys)
        return encode_response(head, answer)
    return encode_response(head, _known_api_versions(head.api_version, throttle_ms, hidden))


def _known_api_versions(version: int, throttle_ms: int, hidden: frozenset[ApiKey]) -> Entity:
    from pkgutil import resolve_name

    module = resolve_name(f"kio.schema.api_versions.v{version}.response")
    keys = tuple(
        module.ApiVersion(api_key=i16(key), min_version=i16(row.first), max_version=i16(row.last))
        for key, row in VERSIONS.items()
        if key not in hidden
    )
    facts: dict[str, object] = {"error_code": KafkaCode.none, "api_keys": keys}
    if version >= 1:
        facts["throttle_time"] = milliseconds(throttle_ms)
    if version >= 3:
        levels = FINALIZED_FEATURES.items()
        facts["supported_features"] = tuple(
            module.SupportedFeatureKey(
                name=name, min_version=i16(0 if version > 3 else 1), max_version=i16(level)
            )
            for name, level in levels
        )
        facts["finalized_features_epoch"] = 0
        facts["finalized_features"] = tuple(
            module.FinalizedFeatureKey(
                name=name, max_version_level=i16(level), min_version_level=i16(level)
            )
            for name, level in levels
        )
    return cast("Entity", module.ApiVersionsResponse(**facts))


def milliseconds(count: int) -> i32Timedelta:
    """Return a span of time as the library's messages hold it."""
    return read_timedelta_i32(count.to_bytes(4, "big", signed=True), 0)[0]


def long_milliseconds(count: int) -> i64Timedelta:
    """Return a span of time for a field of 64 bits."""
    return read_timedelta_i64(count.to_bytes(8, "big", signed=True), 0)[0]
