"""Traces as data: a context that travels (W3C Trace Context), spans, and their form on disk (OTLP).

A span's id is derived from its trace, its parent's id, its name and what it is about. Every node
that has the context can so name the spans of other nodes as parents, and the message that carries
it needs no second header that changes on the way: MQTT lets a server change no user property
([MQTT-3.3.2-17]).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
TRACEPARENT_CHARACTERS: Final = 55
NO_PARENT: Final = b""
_SAMPLED: Final = 1
_OK: Final = 1
_ERROR: Final = 2
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_TEXT_CHARACTERS_MAX: Final = 256

Attribute: TypeAlias = str | int


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Which trace something belongs to, and which span is its parent."""

    trace_id: bytes
    span_id: bytes

    @property
    def traceparent(self) -> str:
        """The context as W3C writes it, sampled."""
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-01"

    def derive(self, name: bytes, about: bytes) -> bytes:
        """Return the id of a span of this trace: equal on every node, and never zero."""
        seed = b"\0".join((b"quantum span", self.trace_id, self.span_id, name, about))
        found = hashlib.sha256(seed).digest()[:SPAN_ID_BYTES]
        return found if any(found) else b"\x01" * SPAN_ID_BYTES


def read_traceparent(text: str) -> TraceContext | None:
    """Return the context of a sampled trace; None for one that is not sampled, or no context.

    Version 00 alone has a form that is known to the end; others are read as it where they have
    its length (W3C Trace Context §3.2.4).
    """
    found = _TRACEPARENT.fullmatch(text)
    if found is None or found[1] == "ff" or not int(found[4], 16) & _SAMPLED:
        return None
    trace_id, span_id = bytes.fromhex(found[2]), bytes.fromhex(found[3])
    return TraceContext(trace_id, span_id) if any(trace_id) and any(span_id) else None


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Something that took time. Never a payload, nor a secret."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    """NO_PARENT: it is the root of its trace."""
    name: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Attribute]
    error: str = ""
    """Why it did not succeed."""


_encoder: Final = msgspec.json.Encoder()


def encode_spans(node: int, spans: list[Span]) -> bytes:
    """Return one line: an OTLP export request in JSON, as collectors read it from files."""
    resource = {"service.name": "quantum", "service.instance.id": str(node)}
    scope = {"scope": {"name": "quantum"}, "spans": [_encode(span) for span in spans]}
    whole = {"resource": {"attributes": _pairs(resource)}, "scopeSpans": [scope]}
    return _encoder.encode({"resourceSpans": [whole]}) + b"\n"


class _OtlpValue(msgspec.Struct):
    stringValue: str = ""  # noqa: N815  # the names are OTLP's
    intValue: str = ""  # noqa: N815


class _OtlpPair(msgspec.Struct):
    key: str
    value: _OtlpValue


class _OtlpSpan(msgspec.Struct, rename="camel"):
    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    start_time_unix_nano: str
    end_time_unix_nano: str
    attributes: list[_OtlpPair]
    status: dict[str, str | int]


class _OtlpScope(msgspec.Struct):
    spans: list[_OtlpSpan]


class _OtlpResource(msgspec.Struct):
    attributes: list[_OtlpPair]


class _OtlpResourceSpans(msgspec.Struct, rename="camel"):
    resource: _OtlpResource
    scope_spans: list[_OtlpScope]


class _OtlpRequest(msgspec.Struct, rename="camel"):
    resource_spans: list[_OtlpResourceSpans]


_decoder: Final = msgspec.json.Decoder(_OtlpRequest)


def decode_spans(line: bytes) -> list[tuple[int, Span]]:
    """Return the spans of a line, each with its node; none for what `encode_spans` did not make."""
    found: list[tuple[int, Span]] = []
    try:
        for each in _decoder.decode(line).resource_spans:
            node = int(_attributes(each.resource.attributes)["service.instance.id"])
            found += [(node, _decode(span)) for scope in each.scope_spans for span in scope.spans]
    except (msgspec.MsgspecError, KeyError, ValueError):
        return []  # a disk was full, or somebody else writes here
    return found


def _decode(span: _OtlpSpan) -> Span:
    return Span(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_id=bytes.fromhex(span.parent_span_id),
        name=span.name,
        began_ns=int(span.start_time_unix_nano),
        ended_ns=int(span.end_time_unix_nano),
        attributes=_attributes(span.attributes),
        error=str(span.status.get("message", "")),
    )


def _attributes(pairs: list[_OtlpPair]) -> dict[str, Attribute]:
    return {
        each.key: int(each.value.intValue) if each.value.intValue else each.value.stringValue
        for each in pairs
    }


def _encode(span: Span) -> dict[str, object]:
    status: dict[str, object] = {"code": _ERROR, "message": span.error} if span.error else {}
    return {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "parentSpanId": span.parent_id.hex(),
        "name": span.name,
        "kind": 1,
        "startTimeUnixNano": str(span.began_ns),
        "endTimeUnixNano": str(max(span.began_ns, span.ended_ns)),
        "attributes": _pairs(span.attributes),
        "status": status or {"code": _OK},
    }


def _pairs(attributes: dict[str, Attribute] | dict[str, str]) -> list[dict[str, object]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Attribute) -> dict[str, str]:
    """Wide integers are strings in OTLP's JSON."""
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": value[:_TEXT_CHARACTERS_MAX]}
