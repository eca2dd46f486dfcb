"""The catalog, printed from the tables that drive the codecs: one source, so no drift (App. A)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import rfc8785

from .chunks import (
    CHUNK_BYTES_MAX,
    CHUNK_ITEMS_MAX,
    HAS_CRC,
    REASSEMBLY_BYTES_MAX,
    REASSEMBLY_CHUNKS_MAX,
    TOTAL_COUNT_MAX,
)
from .errors import MAIN_CODES, RESERVED_CODES, VENDOR_CODES, WIRE_ERRORS
from .fields import (
    FieldSpec,
    FixedField,
    JsonForm,
    Kind,
    Nested,
    RepeatedField,
    SliceField,
    fields_of,
)
from .handshake import CATALOG_VERSION, WireExtension
from .names import catalog_name
from .pages import IDS_MAX
from .stream import PacketBatch, PacketRoute
from .table import BATCH_ID, TABLE, WireRow
from .types import (
    EXPERIMENTAL,
    EXPLAIN_BODY_BYTES_MAX,
    RPC_BODY_BYTES_MAX,
    WIDE_BODY_BYTES_MAX,
    WINDOW_BYTES,
    WireEnum,
)

_WIDE = (JsonForm.DECIMAL, JsonForm.HEX)


def catalog() -> dict[str, Any]:
    """Return the whole wire catalog as plain JSON values."""
    return {
        "catalog_version": {"major": CATALOG_VERSION.major, "minor": CATALOG_VERSION.minor},
        "frame": _frame(),
        "stream": {
            "batch": {"message_id": BATCH_ID, "fields": _fields(PacketBatch)},
            "route": _fields(PacketRoute),
        },
        "messages": [_message(row) for row in TABLE],
        "records": {catalog_name(record): _fields(record) for record in nested_classes()},
        "enums": {catalog_name(members): _enum(members) for members in _enums()},
        "experimental_discriminants": _range(EXPERIMENTAL),
        "extensions": {each.spelling: int(each) for each in WireExtension},
        "chunked_list": _chunked_list(),
        "id_page": {"ids_max": IDS_MAX},
        "errors": {
            "codes": {error.__name__: error.code for error in WIRE_ERRORS},
            "main": _range(MAIN_CODES),
            "vendor": _range(VENDOR_CODES),
            "reserved": _range(RESERVED_CODES),
        },
    }


def wide_int_registry() -> dict[str, Any]:
    """Return what `GET /.well-known/wide-int-registry` serves (§8.2).

    Fields that JSON mirrors write as strings though they are numbers or raw bytes, by message
    or record, each with its form.
    """
    listed = {row.name: row.message for row in TABLE}
    listed |= {catalog_name(record): record for record in nested_classes()}
    registry = {name: _wide_fields(message) for name, message in listed.items()}
    return {
        "catalog_version": {"major": CATALOG_VERSION.major, "minor": CATALOG_VERSION.minor},
        "fields": {name: fields for name, fields in registry.items() if fields},
    }


def canonical(value: dict[str, Any]) -> bytes:
    """Return RFC 8785 canonical JSON."""
    return rfc8785.dumps(value)


def _frame() -> dict[str, Any]:
    return {
        "body_len": "u32le",
        "rpc_body_bytes_max": RPC_BODY_BYTES_MAX,
        "explain_body_bytes_max": EXPLAIN_BODY_BYTES_MAX,
        "wide_body_bytes_max": WIDE_BODY_BYTES_MAX,
        "window_bytes": WINDOW_BYTES,
    }


def _chunked_list() -> dict[str, Any]:
    return {
        "header": {
            "total_count": "u32",
            "chunk_offset": "u32",
            "chunk_len": "u16",
            "chunk_flags": "u8",
        },
        "flags": {"has_crc": HAS_CRC},
        "item": "bytes",
        "trailer": {"chunk_crc32c": "u32 when has_crc"},
        "chunk_len_max": CHUNK_ITEMS_MAX,
        "chunk_bytes_max": CHUNK_BYTES_MAX,
        "reassembly_bytes_max": REASSEMBLY_BYTES_MAX,
        "reassembly_chunks_max": REASSEMBLY_CHUNKS_MAX,
        "total_count_max": TOTAL_COUNT_MAX,
    }


def _message(row: WireRow) -> dict[str, Any]:
    return {
        "message_id": row.message_id,
        "name": row.name,
        "family": row.family.value,
        "section": row.section,
        "fields": _fields(row.message),
    }


def _fields(message: type[Any]) -> list[dict[str, Any]]:
    return [_field(spec) for spec in fields_of(message)]


def _field(spec: FieldSpec) -> dict[str, Any]:
    described: dict[str, Any] = {"name": spec.name, **_kind(spec.kind)}
    if spec.optional:
        described["has_field"] = f"has_{spec.name}"
    if spec.since_minor is not None:
        described["tail_since_minor"] = spec.since_minor
    return described


def _kind(kind: Kind) -> dict[str, Any]:
    match kind:
        case FixedField() | SliceField():
            return {"type": kind.name, "json": kind.json.value}
        case Nested(message):
            return {"type": f"record:{catalog_name(message)}"}
        case RepeatedField():
            return {
                "type": "list",
                "item": _kind(kind.item),
                "items_max": kind.items_max,
                "wide_count_capable": kind.wide_count,
                "ascending": kind.ascending,
            }


def _enum(members: type[WireEnum]) -> dict[str, int]:
    return {member.spelling: int(member) for member in members}


def _range(codes: range) -> list[int]:
    return [codes.start, codes.stop - 1]


def _wide_fields(message: type[Any]) -> dict[str, str]:
    wide: dict[str, str] = {}
    for spec in fields_of(message):
        item = spec.kind.item if isinstance(spec.kind, RepeatedField) else spec.kind
        if isinstance(item, FixedField | SliceField) and item.json in _WIDE:
            wide[spec.name] = item.json.value
    return wide


def nested_classes() -> list[type[Any]]:
    """Return the classes that only stand inside messages."""
    found: dict[type[Any], None] = {}
    for row in TABLE:
        _collect_nested(row.message, found)
    return list(found)


def _collect_nested(message: type[Any], found: dict[type[Any], None]) -> None:
    for item in _items(message):
        if isinstance(item, Nested) and item.message not in found:
            found[item.message] = None
            _collect_nested(item.message, found)


def _enums() -> list[type[WireEnum]]:
    classes = [row.message for row in TABLE] + nested_classes()
    members = (
        item.members
        for message in classes
        for item in _items(message)
        if isinstance(item, FixedField) and item.members is not None
    )
    return list(dict.fromkeys(members))


def _items(message: type[Any]) -> Iterator[Kind]:
    for spec in fields_of(message):
        yield spec.kind.item if isinstance(spec.kind, RepeatedField) else spec.kind
