"""The vocabulary of the message table: what a field may be, and how a class declares it.

A message is a dataclass whose annotations carry a kind: `Annotated[LogIndex, U64]`. That one
declaration types the caller's code, drives both codecs and prints the catalog.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, get_type_hints

from .names import catalog_name
from .types import EXPERIMENTAL, WireEnum


class JsonForm(Enum):
    """How a JSON mirror writes a value."""

    NUMBER = "number"
    DECIMAL = "decimal-string"  # a wide int: JSON readers may round numbers beyond 2^53
    HEX = "hex-string"
    BOOLEAN = "boolean"
    ENUM = "enum-string"
    TEXT = "string"


@dataclass(frozen=True, slots=True)
class FixedField:
    """A fixed-width little-endian value; `code` is its `struct` letter."""

    name: str
    code: str
    json: JsonForm
    members: type[WireEnum] | None = None


@dataclass(frozen=True, slots=True)
class SliceField:
    """Bytes or UTF-8 text behind a 32-bit length."""

    name: str
    json: JsonForm


@dataclass(frozen=True, slots=True)
class Nested:
    """Another declared class, its fields in place."""

    message: type[Any]


@dataclass(frozen=True, slots=True)
class RepeatedField:
    """A count, then the items. The count is `u16`, or `u32` where `wide_count` is negotiated.

    `ascending` lists are strictly ascending by the item (or its first field), so they hold no
    item twice and look the same whoever sends them.
    """

    item: FixedField | SliceField | Nested
    items_max: int | None = None
    wide_count: bool = False
    ascending: bool = False


Kind: TypeAlias = FixedField | SliceField | Nested | RepeatedField


@dataclass(frozen=True, slots=True)
class Optional:
    """`u8 has_field`, 0 or 1, then the value if 1. None in Python is 0."""

    kind: Kind


@dataclass(frozen=True, slots=True)
class Tail:
    """An `Optional` that older peers do not send at all: the body may end before it.

    It is sent to peers whose catalog has at least `since_minor`, `has_field` included.
    """

    kind: Kind
    since_minor: int


U8 = FixedField("u8", "B", JsonForm.NUMBER)
U16 = FixedField("u16", "H", JsonForm.NUMBER)
U32 = FixedField("u32", "I", JsonForm.NUMBER)
COUNTER32 = FixedField("u32", "I", JsonForm.DECIMAL)  # counters and `*_ms` are wide at any width
U64 = FixedField("u64", "Q", JsonForm.DECIMAL)
FLAG = FixedField("bool", "B", JsonForm.BOOLEAN)
CRC32C = FixedField("crc32c", "I", JsonForm.HEX)
DIGEST = FixedField("digest32", "32s", JsonForm.HEX)
BYTES = SliceField("bytes", JsonForm.HEX)
TEXT = SliceField("text", JsonForm.TEXT)


def enum(members: type[WireEnum]) -> FixedField:
    """Declare an enumerated field: one `u8` out of `members`."""
    assert not any(member in EXPERIMENTAL for member in members)
    return FixedField(f"enum:{catalog_name(members)}", "B", JsonForm.ENUM, members)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a message, in wire order. `since_minor` is None except for a tail."""

    name: str
    kind: Kind
    optional: bool = False
    since_minor: int | None = None


_declared: dict[type[Any], tuple[FieldSpec, ...]] = {}


def fields_of(message: type[Any]) -> tuple[FieldSpec, ...]:
    """Return the wire fields that a class declares, in wire order."""
    if message not in _declared:
        _declared[message] = _read_fields(message)
    return _declared[message]


def _read_fields(message: type[Any]) -> tuple[FieldSpec, ...]:
    hints = get_type_hints(message, include_extras=True)
    specs = tuple(
        _field_spec(each.name, hints[each.name].__metadata__[0])
        for each in dataclasses.fields(message)
    )
    tails = [spec.since_minor is not None for spec in specs]
    assert tails == sorted(tails), f"{message.__name__}: a field follows a tail extension"
    return specs


def _field_spec(name: str, declared: Kind | Optional | Tail) -> FieldSpec:
    match declared:
        case Optional(kind):
            return FieldSpec(name, kind, optional=True)
        case Tail(kind, since_minor):
            return FieldSpec(name, kind, optional=True, since_minor=since_minor)
        case _:
            return FieldSpec(name, declared)
