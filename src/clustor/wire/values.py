"""Readers and writers of single values, one per kind of the table's vocabulary.

A reader never looks behind the bytes it was given and never trusts a length or a count: each
item costs at least one byte of the body, so time and memory are bounded by the body's size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import chain, pairwise, repeat
from typing import Any, Protocol

from .errors import WireBodyTooLarge, WireBodyTooShort, WireMisuse, WireUnknownField
from .fields import FLAG, TEXT, FixedField, Kind, Nested, RepeatedField, SliceField
from .types import Buffer, Dialect

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_read_u32 = _U32.unpack_from
_pack_u32 = _U32.pack

FLAG_VALUES: dict[int, Any] = {0: False, 1: True}


class Value(Protocol):
    """Reads and writes one kind of value."""

    def read(self, body: Buffer, offset: int, dialect: Dialect, /) -> tuple[Any, int]:
        """Return the value at `offset` and the offset after it; raise a WireError."""

    def write(self, value: Any, parts: list[Buffer], dialect: Dialect, /) -> None:
        """Append the value's bytes to `parts`; raise WireMisuse for what has none."""


NestedCodec = Callable[[type[Any]], Value]


def value_of(kind: Kind, name: str, nested: NestedCodec) -> Value:
    """Choose the reader and writer for `kind`; `name` is the field that errors will cite."""
    match kind:
        case FixedField():
            return FixedValue(kind, name)
        case SliceField():
            return TextValue(name) if kind == TEXT else BytesValue(name)
        case Nested(message):
            return nested(message)
        case RepeatedField(item=SliceField(name="bytes"), items_max=None, ascending=False):
            return SlicesValue(kind, name)
        case RepeatedField(item=FixedField(members=None) as item) if item != FLAG:
            return NumbersValue(kind, item, name)
        case RepeatedField():
            return ItemsValue(kind, value_of(kind.item, name, nested), name)


def meanings_of(kind: FixedField) -> dict[int, Any] | None:
    """Return what each legal `u8` of an enumeration or a flag means, or None for numbers."""
    if kind.members is not None:
        return {int(member): member for member in kind.members}
    return FLAG_VALUES if kind == FLAG else None


def too_short(name: str, offset: int, body: Buffer) -> WireBodyTooShort:
    return WireBodyTooShort(
        "the body ends inside a field", field=name, offset=offset, length=len(body)
    )


class FixedValue:
    """One fixed-width number, enumeration, flag or digest."""

    __slots__ = ("_digest_bytes", "_meanings", "_name", "_struct")

    def __init__(self, kind: FixedField, name: str) -> None:
        self._name = name
        self._struct = struct.Struct("<" + kind.code)
        self._meanings = meanings_of(kind)
        self._digest_bytes = self._struct.size if kind.code.endswith("s") else None

    def read(self, body: Buffer, offset: int, _dialect: Dialect) -> tuple[Any, int]:
        try:
            (value,) = self._struct.unpack_from(body, offset)
        except struct.error:
            raise too_short(self._name, offset, body) from None
        if self._meanings is not None:
            value = meaning(self._meanings, value, self._name)
        return value, offset + self._struct.size

    def write(self, value: Any, parts: list[Buffer], _dialect: Dialect) -> None:
        if self._meanings is not None and value not in self._meanings:
            raise WireMisuse("no such discriminant", field=self._name, value=value)
        if self._digest_bytes is not None and len(value) != self._digest_bytes:
            # struct would pad or cut it without a word
            raise WireMisuse("digest of another size", field=self._name, length=len(value))
        try:
            parts.append(self._struct.pack(value))
        except struct.error:
            raise WireMisuse("value out of range", field=self._name) from None


def meaning(meanings: dict[int, Any], discriminant: int, name: str) -> Any:
    try:
        return meanings[discriminant]
    except KeyError:
        raise WireUnknownField(
            "unknown discriminant", field=name, discriminant=discriminant
        ) from None


class BytesValue:
    """Bytes behind a 32-bit length, given back as a slice of the body."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self, body: Buffer, offset: int, _dialect: Dialect) -> tuple[Any, int]:
        start = offset + 4
        if start > len(body):
            raise too_short(self._name, offset, body)
        end = start + _read_u32(body, offset)[0]
        if end > len(body):
            raise too_short(self._name, offset, body)
        return body[start:end], end

    def write(self, value: Any, parts: list[Buffer], _dialect: Dialect) -> None:
        parts.append(_pack_u32(len(value)))
        parts.append(value)


class TextValue(BytesValue):
    """UTF-8 text behind a 32-bit length."""

    __slots__ = ()

    def read(self, body: Buffer, offset: int, dialect: Dialect) -> tuple[Any, int]:
        raw, end = super().read(body, offset, dialect)
        try:
            return str(raw, "utf-8"), end
        except UnicodeDecodeError:
            raise WireUnknownField("text is not UTF-8", field=self._name) from None

    def write(self, value: Any, parts: list[Buffer], dialect: Dialect) -> None:
        try:
            super().write(value.encode("utf-8"), parts, dialect)
        except UnicodeEncodeError:
            raise WireMisuse("text has no UTF-8 form", field=self._name) from None


class _Counted:
    """The count before a list's items."""

    __slots__ = ("_items_max", "_name", "_wide_count")

    def __init__(self, kind: RepeatedField, name: str) -> None:
        self._name = name
        self._items_max = kind.items_max
        self._wide_count = kind.wide_count

    def read_count(self, body: Buffer, offset: int, dialect: Dialect) -> tuple[int, int]:
        width = _U32 if self._wide_count and dialect.wide_count else _U16
        try:
            (count,) = width.unpack_from(body, offset)
        except struct.error:
            raise too_short(self._name, offset, body) from None
        if self._items_max is not None and count > self._items_max:
            raise WireBodyTooLarge(
                "too many items", field=self._name, count=count, limit=self._items_max
            )
        return count, offset + width.size

    def write_count(self, count: int, parts: list[Buffer], dialect: Dialect) -> None:
        width = _U32 if self._wide_count and dialect.wide_count else _U16
        limit = (1 << 8 * width.size) - 1 if self._items_max is None else self._items_max
        if count > limit:
            # Without WideCount a long list goes as a ChunkedList (§14.1).
            raise WireMisuse("too many items", field=self._name, count=count, limit=limit)
        parts.append(width.pack(count))


class SlicesValue(_Counted):
    """Many opaque slices, each behind a 32-bit length: the hot shape of AppendEntries."""

    __slots__ = ()

    def read(self, body: Buffer, offset: int, dialect: Dialect) -> tuple[Any, int]:
        count, offset = self.read_count(body, offset, dialect)
        slices: list[Buffer] = []
        append = slices.append
        read_length = _read_u32
        try:
            for _ in repeat(None, count):
                (length,) = read_length(body, offset)
                start = offset + 4
                offset = start + length
                append(body[start:offset])
        except struct.error:
            raise too_short(self._name, offset, body) from None
        # A length that passes the end cuts a short slice and makes every later read fail,
        # so one look at the end speaks for all of them.
        if offset > len(body):
            raise too_short(self._name, offset, body)
        return slices, offset

    def write(self, value: Any, parts: list[Buffer], dialect: Dialect) -> None:
        self.write_count(len(value), parts, dialect)
        parts.extend(chain.from_iterable(zip(map(_pack_u32, map(len, value)), value, strict=True)))


class NumbersValue(_Counted):
    """Many fixed-width numbers, read and written in one call."""

    __slots__ = ("_ascending", "_code", "_size")

    def __init__(self, kind: RepeatedField, item: FixedField, name: str) -> None:
        super().__init__(kind, name)
        self._code = item.code
        self._size = struct.calcsize("<" + item.code)
        self._ascending = kind.ascending

    def read(self, body: Buffer, offset: int, dialect: Dialect) -> tuple[Any, int]:
        count, offset = self.read_count(body, offset, dialect)
        end = offset + count * self._size
        if end > len(body):
            raise too_short(self._name, offset, body)
        numbers = list(struct.unpack_from(f"<{count}{self._code}", body, offset))
        if self._ascending and not is_ascending(numbers):
            raise WireUnknownField("list is not ascending", field=self._name)
        return numbers, end

    def write(self, value: Any, parts: list[Buffer], dialect: Dialect) -> None:
        self.write_count(len(value), parts, dialect)
        if self._ascending and not is_ascending(value):
            raise WireMisuse("list is not ascending", field=self._name)
        try:
            parts.append(struct.pack(f"<{len(value)}{self._code}", *value))
        except struct.error:
            raise WireMisuse("value out of range", field=self._name) from None


class ItemsValue(_Counted):
    """Any other list: item by item."""

    __slots__ = ("_ascending", "_item")

    def __init__(self, kind: RepeatedField, item: Value, name: str) -> None:
        super().__init__(kind, name)
        self._item = item
        self._ascending = kind.ascending

    def read(self, body: Buffer, offset: int, dialect: Dialect) -> tuple[Any, int]:
        count, offset = self.read_count(body, offset, dialect)
        items: list[Any] = []
        for _ in range(count):
            item, offset = self._item.read(body, offset, dialect)
            items.append(item)
        if self._ascending and not is_ascending(items):
            raise WireUnknownField("list is not ascending", field=self._name)
        return items, offset

    def write(self, value: Any, parts: list[Buffer], dialect: Dialect) -> None:
        if self._ascending and not is_ascending(value):
            raise WireMisuse("list is not ascending", field=self._name)
        self.write_count(len(value), parts, dialect)
        for item in value:
            self._item.write(item, parts, dialect)


def is_ascending(items: Sequence[Any]) -> bool:
    """Tell whether each item sorts after the one before it; a record sorts by its `name`."""
    keys = [getattr(item, "name", item) for item in items]
    return all(one < next_one for one, next_one in pairwise(keys))
