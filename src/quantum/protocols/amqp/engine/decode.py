"""Read AMQP values (part 1): every encoding of every type, bounded in depth and number.

Sizes are checked against what is there before anything is made of them, and a compound must end
exactly where its size says: a reader that stops early would take the rest for something else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final
from uuid import UUID

from quantum.protocols.amqp.engine.errors import MalformedData
from quantum.protocols.amqp.engine.types import (
    DEFAULT_LIMITS,
    Array,
    Byte,
    Char,
    DecimalNumber,
    DecodeLimits,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

_FLOAT: Final = struct.Struct(">f")
_DOUBLE: Final = struct.Struct(">d")


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


def _boolean(raw: bytes) -> bool:
    if raw[0] > 1:
        raise MalformedData("a boolean's byte is neither 0 nor 1")
    return raw[0] == 1


def _char(raw: bytes) -> Char:
    number = int.from_bytes(raw, "big")
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise MalformedData("a char is no Unicode scalar value")
    return Char(chr(number))


def _symbol(raw: bytes) -> Symbol:
    try:
        return Symbol(raw.decode("ascii"))
    except UnicodeDecodeError:
        raise MalformedData("a symbol is not ASCII") from None


def _string(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedData("a string is not UTF-8") from None


def _binary(raw: bytes) -> bytes:
    return raw


_FIXED: Final[dict[int, tuple[int, Callable[[bytes], object]]]] = {
    0x40: (0, lambda _: None),
    0x41: (0, lambda _: True),
    0x42: (0, lambda _: False),
    0x43: (0, lambda _: UInt(0)),
    0x44: (0, lambda _: ULong(0)),
    0x50: (1, lambda raw: UByte(raw[0])),
    0x51: (1, lambda raw: Byte(_signed(raw))),
    0x52: (1, lambda raw: UInt(raw[0])),
    0x53: (1, lambda raw: ULong(raw[0])),
    0x54: (1, lambda raw: Int(_signed(raw))),
    0x55: (1, _signed),
    0x56: (1, _boolean),
    0x60: (2, lambda raw: UShort(int.from_bytes(raw, "big"))),
    0x61: (2, lambda raw: Short(_signed(raw))),
    0x70: (4, lambda raw: UInt(int.from_bytes(raw, "big"))),
    0x71: (4, lambda raw: Int(_signed(raw))),
    0x72: (4, lambda raw: Float(_FLOAT.unpack(raw)[0])),
    0x73: (4, _char),
    0x74: (4, DecimalNumber),
    0x80: (8, lambda raw: ULong(int.from_bytes(raw, "big"))),
    0x81: (8, _signed),
    0x82: (8, lambda raw: _DOUBLE.unpack(raw)[0]),
    0x83: (8, lambda raw: Timestamp(_signed(raw))),
    0x84: (8, DecimalNumber),
    0x94: (16, DecimalNumber),
    0x98: (16, lambda raw: UUID(bytes=raw)),
}
# The width of the length, and what is made of the bytes.
_VARIABLE: Final[dict[int, tuple[int, Callable[[bytes], object]]]] = {
    0xA0: (1, _binary),
    0xA1: (1, _string),
    0xA3: (1, _symbol),
    0xB0: (4, _binary),
    0xB1: (4, _string),
    0xB3: (4, _symbol),
}
_LISTS: Final = {0xC0: 1, 0xD0: 4}
_MAPS: Final = {0xC1: 1, 0xD1: 4}
_ARRAYS: Final = {0xE0: 1, 0xF0: 4}


class ValueReader:
    """Reads values one behind another from `data`; `position` is where the next one begins."""

    __slots__ = ("_budget", "_data", "_depth_max", "_end", "position")

    def __init__(
        self, data: bytes, position: int, end: int, limits: DecodeLimits = DEFAULT_LIMITS
    ) -> None:
        self._data = data
        self._end = end
        self._depth_max = limits.depth_max
        self._budget = limits.values_max
        self.position = position

    def read_value(self, depth: int = 0) -> object:
        """Read one value and stand behind it; raise MalformedData where there is none."""
        code = self._take(1)[0]
        if code != 0:
            return self._read_body(code, depth)
        if depth >= self._depth_max:
            raise MalformedData("values nest too deep", limit=self._depth_max)
        descriptor = self.read_value(depth + 1)
        return Described(descriptor, self.read_value(depth + 1))

    def _read_body(self, code: int, depth: int) -> object:
        self._budget -= 1
        if self._budget < 0:
            raise MalformedData("too many values")
        fixed = _FIXED.get(code)
        if fixed is not None:
            return fixed[1](self._take(fixed[0]))
        variable = _VARIABLE.get(code)
        if variable is not None:
            return variable[1](self._take(self._take_size(variable[0])))
        return self._read_compound(code, depth)

    def _read_compound(self, code: int, depth: int) -> object:
        if depth >= self._depth_max:
            raise MalformedData("values nest too deep", limit=self._depth_max)
        if code == 0x45:
            return []
        if code in _LISTS:
            return self._within(_LISTS[code], self._read_items, depth)
        if code in _MAPS:
            return self._within(_MAPS[code], self._read_pairs, depth)
        if code in _ARRAYS:
            return self._within(_ARRAYS[code], self._read_array, depth)
        raise MalformedData("unknown constructor", code=code)

    def _within(self, width: int, read: Callable[[int, int], object], depth: int) -> object:
        size = self._take_size(width)
        stop = self.position + size
        if size < width or stop > self._end:
            raise MalformedData("a compound's size is not that of its content", size=size)
        outer, self._end = self._end, stop
        value = read(self._take_size(width), depth + 1)
        if self.position != stop:
            raise MalformedData("a compound ends before its size says")
        self._end = outer
        return value

    def _read_items(self, count: int, depth: int) -> list[object]:
        self._check_count(count)
        return [self.read_value(depth) for _ in range(count)]

    def _read_pairs(self, count: int, depth: int) -> dict[object, object]:
        self._check_count(count)
        if count % 2:
            raise MalformedData("a map has a key without a value")
        found: dict[object, object] = {}
        for _ in range(count // 2):
            key = self.read_value(depth)
            if isinstance(key, list | dict | Array | Described):
                raise MalformedData("a map's key is a compound")
            if key in found:
                raise MalformedData("a map has the same key twice")
            found[key] = self.read_value(depth)
        return found

    def _read_array(self, count: int, depth: int) -> Array:
        if count > self._budget:
            raise MalformedData("too many values", count=count)
        code = self._take(1)[0]
        descriptor: object = None
        if code == 0:
            descriptor = self.read_value(depth)
            code = self._take(1)[0]
        if code == 0:
            raise MalformedData("an array's items are described twice")
        if code not in _KNOWN:
            raise MalformedData("unknown constructor", code=code)
        items = tuple(self._read_body(code, depth) for _ in range(count))
        return Array(code, items, descriptor)

    def _check_count(self, count: int) -> None:
        # Each item takes a byte at least: what cannot be there is refused before it is sought.
        if count > self._end - self.position:
            raise MalformedData("a compound counts more items than it has bytes", count=count)

    def _take(self, size: int) -> bytes:
        start = self.position
        stop = start + size
        if stop > self._end:
            raise MalformedData("a value ends before its size says")
        self.position = stop
        return self._data[start:stop]

    def _take_size(self, width: int) -> int:
        return int.from_bytes(self._take(width), "big")


_KNOWN: Final = frozenset({*_FIXED, *_VARIABLE, *_LISTS, *_MAPS, *_ARRAYS, 0x45})


def decode_value(data: bytes, limits: DecodeLimits = DEFAULT_LIMITS) -> object:
    """Read the one value that `data` is; raise MalformedData where it is anything else."""
    reader = ValueReader(data, 0, len(data), limits)
    value = reader.read_value()
    if reader.position != len(data):
        raise MalformedData("bytes behind a value")
    return value
