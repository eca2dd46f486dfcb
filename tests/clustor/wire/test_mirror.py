"""JSON mirrors and pages of ids (§8.2, §13.2, §14.1)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor import wire as w
from clustor.wire.pages import IDS_MAX

HEADER = (
    1,
    w.UnixMs(1_700_000_000_123),
    w.PartitionId(2**63),
    w.RoutingEpoch(9),
    w.DurabilityModeEpoch(10),
)
THROTTLE = w.ThrottleEnvelopeBody(
    *HEADER,
    w.ThrottleReasonCode.WAL_DEVICE,
    *(250, 1_000, 2, 3, 4, 5),
    w.CreditHintCode.SHED,
    w.IngestStatusCode.THROTTLED,
    w.DurabilityStatusCode.STRICT_FALLBACK,
    w.IoWriterMode.FIXED_URING,
    w.TraceId("trace"),
    w.page_of(["tenant-2", "tenant-1"]),
)
THROTTLE_JSON = (
    b'{"backlog_bytes":"3","backlog_entries":"2","byte_credits":"5","credit_hint":"Shed",'
    b'"decision_trace_id":"trace","durability_mode_epoch":10,'
    b'"durability_status_code":"StrictFallback","entry_credits":"4",'
    b'"generated_at":"1700000000123","ingest_status_code":"Throttled",'
    b'"io_writer_mode":"FixedUring","partition_id":"9223372036854775808","reason":"WALDevice",'
    b'"retry_after_ms":"250","routing_epoch":"9","schema_version":1,'
    b'"throttled":{"ids":["tenant-1","tenant-2"],"truncated_ids_count":"0"},'
    b'"throttled_ms":"1000"}'
)
LEDGER = w.OverrideLedgerEntry(
    *HEADER, "o", "scope", "ada", "t:1", "why", w.UnixMs(1), w.UnixMs(2), b"\x00\xff"
)


def test_envelope_and_json_agree() -> None:
    assert w.encode_json(THROTTLE) == THROTTLE_JSON
    assert w.decode_json(w.ThrottleEnvelopeBody, THROTTLE_JSON) == THROTTLE


def test_bytes_are_hex_strings() -> None:
    assert json.loads(w.encode_json(LEDGER))["signature"] == "0x00ff"
    assert w.decode_json(w.OverrideLedgerEntry, w.encode_json(LEDGER)) == LEDGER


def test_absent_optionals_are_absent_members() -> None:
    mismatch = w.RoutingEpochMismatch(*HEADER, w.RoutingEpoch(9), w.LeaseEpoch(1))
    assert "observed_routing_epoch" not in json.loads(w.encode_json(mismatch))
    assert w.decode_json(w.RoutingEpochMismatch, w.encode_json(mismatch)) == mismatch


def changed(**members: Any) -> bytes:
    return json.dumps({**json.loads(THROTTLE_JSON), **members}).encode()


def test_numeric_enums_are_accepted() -> None:
    """§8.2, §14.1: JSON accepts recognised numeric enums and emits strings."""
    assert w.decode_json(w.ThrottleEnvelopeBody, changed(reason=2, credit_hint=3)) == THROTTLE


def test_unknown_members_are_tolerated() -> None:
    """§14.1: clients must tolerate additive optional fields."""
    assert w.decode_json(w.ThrottleEnvelopeBody, changed(brand_new={"x": [1]})) == THROTTLE


def test_every_required_member_is_required() -> None:
    """§14.1: … but reject missing required fields."""
    without = {name: json.loads(THROTTLE_JSON) for name in json.loads(THROTTLE_JSON)}
    for name, mirrored in without.items():
        del mirrored[name]
        with pytest.raises(w.WireBodyTooShort) as refusal:
            w.decode_json(w.ThrottleEnvelopeBody, json.dumps(mirrored).encode())
        assert refusal.value.facts == {"field": name}


MEANINGLESS: dict[str, bytes] = {
    "unknown spelling": changed(reason="WalDevice"),
    "unknown number": changed(reason=9),
    "experimental number": changed(reason=0xF0),
    "a boolean is no enum": changed(reason=True),
    "a wide integer as a number": changed(generated_at=1),
    "a wide integer over its width": changed(partition_id=str(2**64)),
    "a wide integer with a sign": changed(partition_id="-1"),
    "a wide integer with a leading zero": changed(partition_id="01"),
    "a wide integer in other digits": changed(partition_id="١"),
    "a narrow integer as a string": changed(schema_version="1"),
    "a narrow integer over its width": changed(schema_version=65_536),
    "a narrow integer below 0": changed(schema_version=-1),
    "a narrow integer as a float": changed(schema_version=1.0),
    "a boolean is no integer": changed(schema_version=True),
    "text as a number": changed(decision_trace_id=1),
    "text with a lone surrogate": changed(decision_trace_id="\ud800"),
    "a page as a list": changed(throttled=[]),
    "ids as an object": changed(throttled={"ids": {}, "truncated_ids_count": "0"}),
    "ids out of order": changed(throttled={"ids": ["b", "a"], "truncated_ids_count": "0"}),
    "ids twice": changed(throttled={"ids": ["a", "a"], "truncated_ids_count": "0"}),
    "a member twice": THROTTLE_JSON[:-1] + b',"reason":"DiskHard"}',
    "no object": b"[]",
    "no JSON": b"{",
    "no UTF-8": b"\xff",
    "nested too deep": b"[" * 30_000,
    "an integer of many digits": b'{"schema_version":' + b"9" * 20_000 + b"}",
}


@pytest.mark.parametrize("data", MEANINGLESS.values(), ids=MEANINGLESS.keys())
def test_json_that_means_nothing(data: bytes) -> None:
    with pytest.raises(w.WireUnknownField):
        w.decode_json(w.ThrottleEnvelopeBody, data)


@pytest.mark.parametrize("signature", ["00ff", "0x0", "0xFF", "0xzz", 1])
def test_hex_has_one_form(signature: object) -> None:
    mirrored = {**json.loads(w.encode_json(LEDGER)), "signature": signature}
    with pytest.raises(w.WireUnknownField):
        w.decode_json(w.OverrideLedgerEntry, json.dumps(mirrored).encode())


def test_mirrors_stay_within_32_kib() -> None:
    """§13.2: envelopes remain ≤ 32 KiB JSON, at both ends."""
    room = 32 * 1024 - len(w.encode_json(THROTTLE))
    largest = replace(THROTTLE, decision_trace_id=w.TraceId("trace" + "x" * room))
    at_cap = w.encode_json(largest)
    assert len(at_cap) == 32 * 1024
    assert w.decode_json(w.ThrottleEnvelopeBody, at_cap) == largest
    over = replace(largest, decision_trace_id=w.TraceId(largest.decision_trace_id + "x"))
    with pytest.raises(w.WireBodyTooLarge):
        w.encode_json(over)
    with pytest.raises(w.WireBodyTooLarge):
        w.decode_json(w.ThrottleEnvelopeBody, at_cap + b" ")


def test_only_envelopes_and_records_have_mirrors() -> None:
    with pytest.raises(w.WireMisuse):
        w.encode_json(w.TimeoutNowBody())
    with pytest.raises(w.WireMisuse):
        w.decode_json(w.TimeoutNowBody, b"{}")


def test_a_page_holds_32_ids_in_order_and_says_what_it_left_out() -> None:
    """§13.2: ≤ 32 ids per array, sorted lexicographically, with continuation tokens."""
    ids = [str(number) for number in range(70)]
    page = w.page_of(ids)
    assert page.ids == sorted(ids)[:32]
    assert page.ids[:3] == ["0", "1", "10"]
    assert page.truncated_ids_count == 38
    assert page.continuation_token is not None
    assert w.page_of(ids[:32]) == w.IdPageBody(sorted(ids[:32]), 0, None)


@given(ids=st.lists(st.integers(0, 999).map(str), min_size=33, max_size=99, unique=True))
def test_pages_visit_every_id_once(ids: list[str]) -> None:
    seen: list[str] = []
    page = w.page_of(ids)
    while page.continuation_token is not None:
        assert len(page.ids) == IDS_MAX
        seen += page.ids
        page = w.page_of(ids, after=page.continuation_token)
    assert page.truncated_ids_count == 0
    assert seen + page.ids == sorted(set(ids))


def test_a_token_survives_ids_that_come_and_go() -> None:
    ids = [f"{number:02}" for number in range(40)]
    token = w.page_of(ids).continuation_token
    later = [one for one in ids if one not in {"05", "31"}] + ["31b", "05b"]
    assert w.page_of(later, after=token).ids[:2] == ["31b", "32"]


@pytest.mark.parametrize("token", ["", "a", "!!!!", "é", "Mjph", "MTph\n", "MTr_"])
def test_a_token_that_no_page_gave_out(token: str) -> None:
    with pytest.raises(w.WireUnknownField):
        w.page_of(["a"], after=w.ContinuationToken(token))


def test_a_page_of_33_ids_is_refused_on_the_wire() -> None:
    envelope = w.decode_json(w.ThrottleEnvelopeBody, THROTTLE_JSON)
    envelope.throttled = w.IdPageBody([f"{number:02}" for number in range(33)])
    with pytest.raises(w.WireMisuse):
        w.encode_body(envelope)
    mirrored = changed(throttled={"ids": envelope.throttled.ids, "truncated_ids_count": "0"})
    with pytest.raises(w.WireBodyTooLarge):
        w.decode_json(w.ThrottleEnvelopeBody, mirrored)
