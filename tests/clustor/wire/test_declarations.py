"""The table as data: what it must hold, and that Python and peers are told the same."""

from __future__ import annotations

import dataclasses
from enum import IntEnum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from clustor import wire as w
from clustor.wire.catalog import nested_classes
from clustor.wire.fields import (
    FieldSpec,
    FixedField,
    JsonForm,
    Kind,
    Nested,
    RepeatedField,
    SliceField,
    fields_of,
)
from clustor.wire.stream import PacketRoute

GOLDEN = Path(__file__).parent / "golden"
CLASSES = [row.message for row in w.TABLE] + nested_classes() + [PacketRoute]
FIELDS = [(message, spec) for message in CLASSES for spec in fields_of(message)]
FIELD_IDS = [f"{message.__name__}.{spec.name}" for message, spec in FIELDS]

GOLDEN_FILES = {
    "catalog.json": w.catalog,
    "wide_int_registry.json": w.wide_int_registry,
}


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_the_printed_catalog_is_the_agreed_one(name: str) -> None:
    """§14.1: ids, names and field order are frozen. To change them, print the file anew."""
    assert w.canonical(GOLDEN_FILES[name]()) == (GOLDEN / name).read_bytes()


def python_type(message: type[Any], spec: FieldSpec) -> Any:
    annotated = get_type_hints(message, include_extras=True)[spec.name]
    assert get_origin(annotated) is Annotated
    return get_args(annotated)[0]


def bare(declared: Any) -> Any:
    """Look through NewTypes."""
    while hasattr(declared, "__supertype__"):
        declared = declared.__supertype__
    return declared


def fits(kind: Kind, declared: Any) -> bool:
    declared = bare(declared)
    match kind:
        case FixedField(members=None, json=JsonForm.BOOLEAN):
            return declared is bool
        case FixedField(members=None):
            return declared is (bytes if kind.code.endswith("s") else int)
        case FixedField(members=members):
            return declared is members
        case SliceField(json=JsonForm.TEXT):
            return declared is str
        case SliceField():
            return declared in (bytes, w.Buffer)
        case Nested(message):
            return declared is message
        case RepeatedField(item=item):
            return get_origin(declared) is list and fits(item, get_args(declared)[0])


@pytest.mark.parametrize(("message", "spec"), FIELDS, ids=FIELD_IDS)
def test_each_annotation_means_the_same_to_python_and_to_the_wire(
    message: type[Any], spec: FieldSpec
) -> None:
    declared = python_type(message, spec)
    if spec.optional:
        options = [each for each in get_args(declared) if each is not NoneType]
        assert NoneType in get_args(declared)
        (declared,) = options
    assert fits(spec.kind, declared)


@pytest.mark.parametrize("message", CLASSES, ids=lambda message: message.__name__)
def test_messages_are_slotted_dataclasses(message: type[Any]) -> None:
    assert dataclasses.is_dataclass(message)
    assert not hasattr(message(*[None] * len(fields_of(message))), "__dict__")


@pytest.mark.parametrize(("message", "spec"), FIELDS, ids=FIELD_IDS)
def test_wide_integers_are_decimal_strings(message: type[Any], spec: FieldSpec) -> None:
    """§8.2: all `*_ms`, timestamps, counters and CRCs are in the wide-int registry."""
    item = spec.kind.item if isinstance(spec.kind, RepeatedField) else spec.kind
    if not isinstance(item, FixedField) or item.members is not None:
        return
    counts = spec.name.endswith(("_ms", "_at", "_count", "_bytes", "_length", "_credits", "_index"))
    if counts or item.code == "Q":
        assert item.json is JsonForm.DECIMAL
    if "crc32c" in spec.name or "digest" in spec.name:
        assert item.json is JsonForm.HEX


def test_the_registry_lists_what_mirrors_write_as_strings() -> None:
    listed = w.wide_int_registry()["fields"]
    assert listed["ThrottleEnvelope"]["retry_after_ms"] == "decimal-string"
    assert listed["InstallSnapshotChunk"]["data_crc32c"] == "hex-string"
    assert "reason" not in listed["ThrottleEnvelope"]
    assert "ids" not in listed["IdPage"]


SECTION_8_2 = {
    0x01: "MembershipChange",
    0x02: "MembershipRollback",
    0x03: "DurabilityTransition",
    0x04: "FenceCommit",
    0x05: "DefineActivate",
}


def test_section_8_2_system_log_entries_have_their_ids() -> None:
    rows = [row for row in w.TABLE if row.family is w.MessageFamily.SYSTEM_LOG]
    assert {row.message_id: row.name for row in rows} == SECTION_8_2


def test_section_8_2_every_envelope_begins_with_the_header() -> None:
    header = [
        "schema_version",
        "generated_at",
        "partition_id",
        "routing_epoch",
        "durability_mode_epoch",
    ]
    envelopes = [
        row for row in w.TABLE if row.family in {w.MessageFamily.ENVELOPE, w.MessageFamily.EXPLAIN}
    ]
    for row in envelopes:
        assert [spec.name for spec in fields_of(row.message)][:5] == header
    assert {row.name for row in envelopes} >= {
        "RoutingEpochMismatch",
        "ModeConflict",
        "ThrottleEnvelope",
        "ControlPlaneUnavailable",
        "snapshot_full_invalidated",
        "snapshot_delta_invalidated",
        "OverrideLedgerEntry",
        "FollowerCapabilityRevoked",
        "WhyNotLeader",
        "WhyCreditZero",
        "WhySnapshotBlocked",
        "WhyDiskBlocked",
        "WhyQuarantined",
        "WhyCreditHint",
    }


def test_section_8_2_durability_ack_has_exactly_its_fields() -> None:
    assert [spec.name for spec in fields_of(w.DurabilityAckBody)] == [
        "partition_id",
        "replica_id",
        "last_fsynced_index",
        "segment_seq",
        "io_writer_mode",
    ]


def test_section_13_2_explanations_and_throttles_have_the_small_cap() -> None:
    small = {row.name for row in w.TABLE if row.family is w.MessageFamily.EXPLAIN}
    assert small == {row.name for row in w.TABLE if row.name.startswith(("Why", "Throttle"))}


SPELLINGS: dict[type[IntEnum], list[str]] = {
    w.IoWriterMode: ["FixedUring", "RegisteredUring", "Blocking"],
    w.DurabilityMode: ["Strict", "Group-Fsync"],
    w.UnavailableReason: ["CacheExpired", "CacheNotFresh", "NeededForReadIndex"],
    w.ThrottleReasonCode: [
        "ApplyBudget",
        "WALDevice",
        "FollowerLag",
        "DiskSoft",
        "DiskHard",
        "TenantQuota",
        "FrameAlignment",
        "SnapshotImport",
    ],
    w.CreditHintCode: ["Recover", "Hold", "Shed"],
    w.QuarantineReasonCode: ["Integrity", "Administrative", "ApplyFault"],
    w.VoteAnnotationCode: ["StrictFallbackBarred"],
    w.CacheStateCode: ["Fresh", "Cached", "Stale", "Expired"],
    w.ModeConflictReason: ["durability_mode_epoch", "strict_fallback"],
}


@pytest.mark.parametrize("members", SPELLINGS, ids=lambda members: members.__name__)
def test_enums_are_spelled_as_in_the_specification(members: type[w.WireEnum]) -> None:
    assert [member.spelling for member in members] == SPELLINGS[members]
    assert [int(member) for member in members] == list(range(1, len(members) + 1))


def test_no_id_and_no_discriminant_is_experimental() -> None:
    """§8.1: 0xF0–0xFF is reserved."""
    assert all(0 < row.message_id < 0xF0 for row in w.TABLE)
    for _, spec in FIELDS:
        item = spec.kind.item if isinstance(spec.kind, RepeatedField) else spec.kind
        if isinstance(item, FixedField) and item.members is not None:
            assert all(0 < member < 0xF0 for member in item.members)


def test_section_8_4_error_codes() -> None:
    assert {error.__name__: error.code for error in w.WIRE_ERRORS} == {
        "WireBodyTooShort": 1001,
        "WireBodyTooLarge": 1002,
        "WireUnknownField": 1003,
        "WireChunkMissing": 1004,
        "WireChunkOverlap": 1005,
        "WireChunkMissingCrc": 1006,
        "WireChunkCrcMismatch": 1007,
        "WireChunkDuplicateItem": 1008,
        "WireChunkReassemblyAborted": 1009,
        "WireCatalogMismatch": 1010,
    }
    errors = w.catalog()["errors"]
    assert (errors["main"], errors["vendor"], errors["reserved"]) == (
        [1000, 1089],
        [1090, 1099],
        [1100, 1199],
    )


def test_an_error_carries_facts_and_says_them() -> None:
    error = w.WireBodyTooLarge("frame too large", length=9, limit=8)
    assert str(error) == "frame too large (length=9, limit=8)"
    assert error.facts == {"length": 9, "limit": 8}
    assert not issubclass(w.WireMisuse, w.WireError)


def test_the_unions_are_the_families() -> None:
    families = {
        w.SystemEntry: {w.MessageFamily.SYSTEM_LOG},
        w.RaftMessage: {w.MessageFamily.RAFT},
        w.Envelope: {w.MessageFamily.ENVELOPE, w.MessageFamily.EXPLAIN},
    }
    for union, members in families.items():
        listed = {row.message for row in w.TABLE if row.family in members}
        assert set(get_args(union)) == listed


def test_the_public_face_is_complete() -> None:
    assert sorted(set(w.__all__)) == sorted(w.__all__)
    assert {row.message.__name__ for row in w.TABLE} <= set(w.__all__)
