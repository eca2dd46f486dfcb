"""JSON mirrors of messages: canonical, exact, and never over 32 KiB (§8.2, §13.2, §14.1).

Wide integers are decimal strings, because JSON readers may round numbers beyond 2^53; for the
same reason a wide integer that arrives as a number is refused. Enumerations are emitted by
their spelling and accepted by spelling or number. Members that we do not know are ignored;
a missing required one is an error. Absent optional fields are absent members.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any, TypeVar

import rfc8785

from .codec import codec_of
from .errors import WireBodyTooLarge, WireBodyTooShort, WireMisuse, WireUnknownField
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
from .table import ROW_BY_CLASS, MessageFamily
from .types import EXPLAIN_BODY_BYTES_MAX
from .values import is_ascending

Message = TypeVar("Message")

MIRRORED_FAMILIES = frozenset({MessageFamily.ENVELOPE, MessageFamily.EXPLAIN, MessageFamily.RECORD})
JSON_BYTES_MAX = EXPLAIN_BODY_BYTES_MAX
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,19}", re.ASCII)
_HEX = re.compile(r"0x(?:[0-9a-f]{2})*", re.ASCII)


def encode_json(message: object) -> bytes:
    """Return the canonical JSON mirror of an envelope or a record.

    Raises WireBodyTooLarge over 32 KiB.
    """
    _check_mirrored(type(message))
    codec_of(type(message)).encode(message)  # what has no wire form has no mirror either
    encoded = rfc8785.dumps(_mirror(message))
    _check_size(len(encoded))
    return encoded


def decode_json(message: type[Message], data: bytes) -> Message:
    """Return the message that `data` mirrors, or raise a WireError."""
    _check_mirrored(message)
    _check_size(len(data))
    try:
        mirrored = json.loads(data.decode("utf-8"), object_pairs_hook=_unique_members)
    except (ValueError, RecursionError):
        raise WireUnknownField("not a JSON mirror", message=message.__name__) from None
    return _unmirror(message, mirrored)


def _check_mirrored(message: type[object]) -> None:
    row = ROW_BY_CLASS.get(message)
    if row is None or row.family not in MIRRORED_FAMILIES:
        raise WireMisuse("no JSON mirror", message=message.__name__)


def _check_size(length: int) -> None:
    if length > JSON_BYTES_MAX:
        raise WireBodyTooLarge("JSON mirror too large", length=length, limit=JSON_BYTES_MAX)


def _unique_members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(members)
    if len(unique) != len(members):
        raise ValueError("a member stands twice")
    return unique


def _mirror(message: Any) -> dict[str, Any]:
    mirrored = {}
    for spec in fields_of(type(message)):
        value = getattr(message, spec.name)
        if value is not None:
            mirrored[spec.name] = _mirror_value(spec.kind, value)
    return mirrored


def _mirror_value(kind: Kind, value: Any) -> Any:
    match kind:
        case FixedField():
            return _mirror_fixed(kind, value)
        case SliceField(json=JsonForm.HEX):
            return "0x" + value.hex()
        case SliceField():
            return value
        case Nested():
            return _mirror(value)
        case RepeatedField(item=item):
            return [_mirror_value(item, each) for each in value]


def _mirror_fixed(kind: FixedField, value: Any) -> Any:
    match kind.json:
        case JsonForm.DECIMAL:
            return str(value)
        case JsonForm.ENUM:
            return value.spelling
        case JsonForm.HEX:
            return f"0x{value:08x}" if isinstance(value, int) else "0x" + value.hex()
        case JsonForm.BOOLEAN:
            return bool(value)
        case _:
            return value


def _unmirror(message: type[Message], mirrored: Any) -> Message:
    if not isinstance(mirrored, dict):
        raise WireUnknownField("not a JSON object", message=message.__name__)
    return message(*(_unmirror_field(spec, mirrored) for spec in fields_of(message)))


def _unmirror_field(spec: FieldSpec, mirrored: dict[str, Any]) -> Any:
    if spec.name in mirrored:
        return _unmirror_value(spec.kind, mirrored[spec.name], spec.name)
    if spec.optional:
        return None
    raise WireBodyTooShort("a required member is missing", field=spec.name)


def _unmirror_value(kind: Kind, value: Any, name: str) -> Any:
    match kind:
        case FixedField():
            return _unmirror_fixed(kind, value, name)
        case SliceField(json=JsonForm.HEX):
            return _bytes_of(value, name)
        case SliceField():
            return _text_of(value, name)
        case Nested(message):
            return _unmirror(message, value)
        case RepeatedField():
            return _unmirror_list(kind, value, name)


def _unmirror_list(kind: RepeatedField, value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise _not_a("list", name)
    if kind.items_max is not None and len(value) > kind.items_max:
        raise WireBodyTooLarge("too many items", field=name, count=len(value), limit=kind.items_max)
    items = [_unmirror_value(kind.item, each, name) for each in value]
    if kind.ascending and not is_ascending(items):
        raise WireUnknownField("list is not ascending", field=name)
    return items


def _unmirror_fixed(kind: FixedField, value: Any, name: str) -> Any:
    match kind.json:
        case JsonForm.BOOLEAN:
            if not isinstance(value, bool):
                raise _not_a("boolean", name)
            return value
        case JsonForm.ENUM:
            return _member_of(kind, value, name)
        case JsonForm.HEX:
            raw = _bytes_of(value, name)
            if len(raw) != struct.calcsize("<" + kind.code):
                raise _not_a(kind.name, name)
            return raw if kind.code.endswith("s") else int.from_bytes(raw, "big")
        case JsonForm.DECIMAL:
            if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
                raise _not_a("decimal string", name)
            return _in_range(kind, int(value), name)
        case _:
            if not isinstance(value, int) or isinstance(value, bool):
                raise _not_a("number", name)
            return _in_range(kind, value, name)


def _member_of(kind: FixedField, value: Any, name: str) -> Any:
    assert kind.members is not None
    for member in kind.members:
        by_number = isinstance(value, int) and not isinstance(value, bool) and member == value
        if by_number or member.spelling == value:
            return member
    raise WireUnknownField("unknown discriminant", field=name)


def _in_range(kind: FixedField, value: int, name: str) -> int:
    if not 0 <= value < 1 << 8 * struct.calcsize("<" + kind.code):
        raise _not_a(kind.name, name)
    return value


def _bytes_of(value: Any, name: str) -> bytes:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise _not_a("hex string", name)
    return bytes.fromhex(value[2:])


def _text_of(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _not_a("string", name)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:  # an escaped lone surrogate
        raise _not_a("string", name) from None
    return value


def _not_a(form: str, name: str) -> WireUnknownField:
    return WireUnknownField(f"not a {form}", field=name)
