"""Contexts and spans as data: what W3C and OTLP say, byte by byte."""

from __future__ import annotations

import json

import msgspec
import pytest

from clustor.telemetry.tracing import (
    NO_PARENT,
    Span,
    TraceContext,
    decode_spans,
    encode_spans,
    read_traceparent,
)

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = TraceContext(bytes.fromhex(TRACE), bytes.fromhex(PARENT))

READ = {
    "sampled": (f"00-{TRACE}-{PARENT}-01", CONTEXT),
    "sampled, and more flags": (f"00-{TRACE}-{PARENT}-ff", CONTEXT),
    "a later version of the same length": (f"cc-{TRACE}-{PARENT}-01", CONTEXT),
    "not sampled": (f"00-{TRACE}-{PARENT}-00", None),
    "not sampled, other flags": (f"00-{TRACE}-{PARENT}-fe", None),
    "the version that is none": (f"ff-{TRACE}-{PARENT}-01", None),
    "no trace": (f"00-{'0' * 32}-{PARENT}-01", None),
    "no parent": (f"00-{TRACE}-{'0' * 16}-01", None),
    "upper case": (f"00-{TRACE.upper()}-{PARENT}-01", None),
    "too long": (f"00-{TRACE}-{PARENT}-01-more", None),
    "a newline": (f"00-{TRACE}-{PARENT}-01\n", None),
    "digits that are none": (f"00-{TRACE}-{PARENT}-0１", None),
    "nothing": ("", None),
}


@pytest.mark.parametrize(("text", "wanted"), READ.values(), ids=READ.keys())
def test_a_traceparent_is_read_as_w3c_says(text: str, wanted: TraceContext | None) -> None:
    assert read_traceparent(text) == wanted


def test_a_context_is_written_as_it_is_read() -> None:
    assert read_traceparent(CONTEXT.traceparent) == CONTEXT


def test_ids_are_equal_on_every_node_and_differ_in_everything_they_are_made_of() -> None:
    other = TraceContext(CONTEXT.trace_id, bytes(7) + b"\1")
    ids = [
        CONTEXT.derive(b"publish", b"a"),
        CONTEXT.derive(b"publish", b"b"),
        CONTEXT.derive(b"forward", b"a"),
        other.derive(b"publish", b"a"),
    ]
    assert len(set(ids)) == 4 and all(len(each) == 8 and any(each) for each in ids)
    again = TraceContext(bytes.fromhex(TRACE), bytes.fromhex(PARENT))
    assert again.derive(b"publish", b"a") == ids[0]
    assert ids[0].hex() == "25b8fe40268d33d4", "releases that serve one cluster agree on it"


def test_a_line_is_an_export_request_of_otlp() -> None:
    spans = [
        Span(
            trace_id=CONTEXT.trace_id,
            span_id=bytes(7) + b"\1",
            parent_id=CONTEXT.span_id,
            name="publish",
            began_ns=2**60,
            ended_ns=2**60 - 5,  # a clock was set back
            attributes={"topic": "t" * 999, "qos": 1},
        ),
        Span(
            trace_id=CONTEXT.trace_id,
            span_id=bytes(7) + b"\2",
            parent_id=NO_PARENT,
            name="connect",
            began_ns=1,
            ended_ns=2,
            attributes={},
            error="0x87",
        ),
    ]
    line = encode_spans(3, spans)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    clipped = msgspec.structs.replace(
        spans[0], ended_ns=2**60, attributes={"topic": "t" * 256, "qos": 1}
    )
    assert decode_spans(line) == [(3, clipped), (3, spans[1])]
    assert json.loads(line) == {
        "resourceSpans": [
            {
                "resource": {
                    "attributes": [
                        {"key": "service.name", "value": {"stringValue": "quantum"}},
                        {"key": "service.instance.id", "value": {"stringValue": "3"}},
                    ]
                },
                "scopeSpans": [
                    {
                        "scope": {"name": "quantum"},
                        "spans": [
                            {
                                "traceId": TRACE,
                                "spanId": "0000000000000001",
                                "parentSpanId": PARENT,
                                "name": "publish",
                                "kind": 1,
                                "startTimeUnixNano": str(2**60),
                                "endTimeUnixNano": str(2**60),
                                "attributes": [
                                    {"key": "topic", "value": {"stringValue": "t" * 256}},
                                    {"key": "qos", "value": {"intValue": "1"}},
                                ],
                                "status": {"code": 1},
                            },
                            {
                                "traceId": TRACE,
                                "spanId": "0000000000000002",
                                "parentSpanId": "",
                                "name": "connect",
                                "kind": 1,
                                "startTimeUnixNano": "1",
                                "endTimeUnixNano": "2",
                                "attributes": [],
                                "status": {"code": 2, "message": "0x87"},
                            },
                        ],
                    }
                ],
            }
        ]
    }
