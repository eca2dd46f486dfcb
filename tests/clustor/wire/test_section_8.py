"""The sentences of clustor §8 and §14.1 that stand beside no single message.

Framing is in `test_frames`, tails and C1 in `test_messages`, caps in `test_stream`, lists in
`test_chunks`, §8.3 in `test_handshake`, ids, envelopes and §8.4 in `test_declarations`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clustor import wire as w
from clustor.wire.fields import FieldSpec, FixedField, fields_of
from tests.clustor.wire.strategies import sample_of

FORWARD = w.Dialect(forward_compat=True)


def enum_fields() -> list[tuple[type[Any], FieldSpec]]:
    return [
        (row.message, spec)
        for row in w.TABLE
        for spec in fields_of(row.message)
        if isinstance(spec.kind, FixedField) and spec.kind.members is not None
    ]


ENUM_FIELDS = enum_fields()


def place_of_enum(message: type[Any], spec: FieldSpec) -> tuple[bytearray, int]:
    """Find an enum's byte by comparing two messages that differ in nothing else."""
    assert isinstance(spec.kind, FixedField) and spec.kind.members is not None
    sample = sample_of(message)
    body = bytearray(w.encode_body(sample))
    value = int(getattr(sample, spec.name))
    for place, byte in enumerate(body):
        if byte != value:
            continue
        changed = bytearray(body)
        changed[place] = 0xEE
        try:
            w.decode_body(message, bytes(changed))
        except w.WireUnknownField as refusal:
            if refusal.facts.get("field") == spec.name:
                return body, place
        except w.WireError:
            continue
    raise AssertionError("no byte of this body is the field")


@pytest.mark.parametrize(
    ("message", "spec"),
    ENUM_FIELDS,
    ids=[f"{message.__name__}.{spec.name}" for message, spec in ENUM_FIELDS],
)
@pytest.mark.parametrize("dialect", [w.BASELINE, FORWARD], ids=["baseline", "ForwardCompat"])
def test_section_8_1_every_other_discriminant_is_refused_in_every_enum(
    message: type[Any], spec: FieldSpec, dialect: w.Dialect
) -> None:
    """§8.1: unknown discriminants are WireUnknownField, also in optional and tail structures,
    also where ForwardCompat would skip a tail, and 0xF0–0xFF always."""
    assert isinstance(spec.kind, FixedField) and spec.kind.members is not None
    body, place = place_of_enum(message, spec)
    known = {int(member) for member in spec.kind.members}
    for discriminant in range(256):
        body[place] = discriminant
        if discriminant in known:
            decoded = w.decode_body(message, bytes(body), dialect)
            assert getattr(decoded, spec.name) is spec.kind.members(discriminant)
        else:
            with pytest.raises(w.WireUnknownField) as refusal:
                w.decode_body(message, bytes(body), dialect)
            assert refusal.value.facts == {"field": spec.name, "discriminant": discriminant}


@pytest.mark.parametrize("has_field", [2, 0x80, 0xFF])
def test_section_8_1_has_field_is_0_or_1(has_field: int) -> None:
    body = bytearray(w.encode_body(sample_of(w.MembershipRollback)))
    place = len(body) - len("text") - 4 - 1
    assert body[place] == 1
    body[place] = has_field
    with pytest.raises(w.WireUnknownField) as refusal:
        w.decode_body(w.MembershipRollback, bytes(body))
    assert refusal.value.facts["field"] == "has_override_ref"


@pytest.mark.parametrize("dialect", [w.BASELINE, FORWARD], ids=["baseline", "ForwardCompat"])
def test_section_8_1_forward_compat_does_not_admit_unknown_messages(dialect: w.Dialect) -> None:
    """§8.1: skipping needs a message id that is recognised."""
    with pytest.raises(w.WireUnknownField):
        list(w.decode_packets(b"\x7f" + bytes(100), dialect))


def test_section_8_1_a_chunk_may_go_without_checksum() -> None:
    (chunk,) = w.encode_chunks([b"a"], has_crc=False)
    assert w.decode_chunk(chunk).chunk_len == 1


@pytest.mark.parametrize(
    ("body", "high_rtt"),
    [
        ("2a0000000000000001", None),
        ("2a000000000000000100", None),
        ("2a00000000000000010100", False),
    ],
    ids=["absent", "has_high_rtt=0", "high_rtt=0"],
)
def test_section_8_2_an_absent_extension_is_has_high_rtt_0(
    body: str, high_rtt: bool | None
) -> None:
    decoded = w.decode_body(w.PreVoteResponseBody, bytes.fromhex(body))
    assert decoded == w.PreVoteResponseBody(w.Term(42), vote_granted=True, high_rtt=high_rtt)


def test_section_8_2_a_tail_beyond_the_extension_needs_forward_compat() -> None:
    body = bytes.fromhex("2a00000000000000010101" + "f0ff")
    with pytest.raises(w.WireUnknownField):
        w.decode_body(w.PreVoteResponseBody, body)
    skipped = w.decode_body(w.PreVoteResponseBody, body, FORWARD)
    assert skipped == w.PreVoteResponseBody(w.Term(42), vote_granted=True, high_rtt=True)


def test_section_14_1_frame_caps_are_raised_by_wide_frame_only() -> None:
    ours = w.local_handshake()
    without = ours.extensions & ~w.extension_mask(w.WireExtension.WIDE_FRAME)
    theirs = replace(ours, extensions=without, max_body_len=w.RPC_BODY_BYTES_MAX)
    wide = w.negotiate(ours, ours).dialect.body_bytes_max
    narrow = w.negotiate(ours, theirs).dialect.body_bytes_max
    assert (wide, narrow) == (w.WIDE_BODY_BYTES_MAX, w.RPC_BODY_BYTES_MAX)


def test_section_14_1_long_lists_go_as_chunks_without_wide_count() -> None:
    members = [w.ReplicaId(number) for number in range(70_000)]
    change = w.MembershipChange(members, [], w.RoutingEpoch(1), bytes(32))
    with pytest.raises(w.WireMisuse):
        w.encode_body(change)
    reassembly = w.Reassembly()
    for chunk in w.encode_chunks([member.to_bytes(8, "little") for member in members]):
        reassembly.add(chunk)
    assert [int.from_bytes(item, "little") for item in reassembly.finish()] == members
