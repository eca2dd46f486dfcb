"""Write AMQP values (part 1), each in the shortest encoding that its type has."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from quantum.protocols.amqp.engine.errors import AmqpMisuse
from quantum.protocols.amqp.engine.types import (
    Array,
    Byte,
    Char,
    DecimalNumber,
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

NULL: Final = b"\x40"
_TRUE: Final = b"\x41"
_FALSE: Final = b"\x42"


def encode_boolean(value: bool) -> bytes:
    return _TRUE if value else _FALSE


def encode_ubyte(value: int) -> bytes:
    return b"\x50" + _unsigned(value, 1)


def encode_ushort(value: int) -> bytes:
    return b"\x60" + _unsigned(value, 2)


def encode_uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return b"\x52" + _unsigned(value, 1) if value < 256 else b"\x70" + _unsigned(value, 4)


def encode_ulong(value: int) -> bytes:
    if value == 0:
        return b"\x44"
    return b"\x53" + _unsigned(value, 1) if value < 256 else b"\x80" + _unsigned(value, 8)


def encode_int(value: int) -> bytes:
    return b"\x54" + _signed(value, 1) if -128 <= value < 128 else b"\x71" + _signed(value, 4)


def encode_long(value: int) -> bytes:
    return b"\x55" + _signed(value, 1) if -128 <= value < 128 else b"\x81" + _signed(value, 8)


def encode_timestamp(value: int) -> bytes:
    return b"\x83" + _signed(value, 8)


def encode_binary(value: bytes) -> bytes:
    return _sized(0xA0, value)


def encode_string(value: str) -> bytes:
    return _sized(0xA1, _text(value, "utf-8"))


def encode_symbol(value: str) -> bytes:
    return _sized(0xA3, _text(value, "ascii"))


def encode_list(items: list[bytes]) -> bytes:
    """Write a list of items that are written already."""
    return b"\x45" if not items else _compound(0xC0, len(items), b"".join(items))


def encode_map(pairs: Iterable[tuple[object, object]]) -> bytes:
    pieces: list[bytes] = []
    for key, value in pairs:
        pieces += (encode_value(key), encode_value(value))
    return _compound(0xC1, len(pieces), b"".join(pieces))


def encode_symbols(symbols: Iterable[str]) -> bytes:
    """Write an array of symbols, as fields that may have several values are written."""
    return encode_array(Array(0xA3, tuple(Symbol(each) for each in symbols)))


def encode_array(array: Array) -> bytes:
    """Write an array; its items share the shortest constructor that holds each of them."""
    code, bodies = _array_bodies(array)
    head = bytes((code,))
    if array.descriptor is not None:
        head = b"\0" + encode_value(array.descriptor) + head
    return _compound(0xE0, len(bodies), head + b"".join(bodies))


def encode_value(value: object) -> bytes:
    """Write one value by its Python type; raise AmqpMisuse where AMQP has none for it."""
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise AmqpMisuse("a value of this type has no AMQP type", type=type(value).__name__)
    return encoder(value)


def _unsigned(value: int, width: int) -> bytes:
    try:
        return value.to_bytes(width, "big")
    except OverflowError:
        raise AmqpMisuse("a number is out of its type's range", width=width) from None


def _signed(value: int, width: int) -> bytes:
    try:
        return value.to_bytes(width, "big", signed=True)
    except OverflowError:
        raise AmqpMisuse("a number is out of its type's range", width=width) from None


def _text(value: str, encoding: str) -> bytes:
    try:
        return value.encode(encoding)
    except UnicodeEncodeError:
        raise AmqpMisuse("text cannot be written", encoding=encoding) from None


def _sized(short_code: int, raw: bytes) -> bytes:
    if len(raw) < 256:
        return bytes((short_code, len(raw))) + raw
    return bytes((short_code + 0x10,)) + len(raw).to_bytes(4, "big") + raw


def _compound(short_code: int, count: int, content: bytes) -> bytes:
    if count < 256 and len(content) < 255:
        return bytes((short_code, len(content) + 1, count)) + content
    size = (len(content) + 4).to_bytes(4, "big")
    return bytes((short_code + 0x10,)) + size + count.to_bytes(4, "big") + content


# Constructors that mean the same type, the shortest first; an array's items must agree on one.
_FAMILIES: Final = (
    (0x54, 0x71),
    (0x55, 0x81),
    (0x52, 0x70),
    (0x53, 0x80),
    (0xA0, 0xB0),
    (0xA1, 0xB1),
    (0xA3, 0xB3),
    (0xC0, 0xD0),
    (0xC1, 0xD1),
    (0xE0, 0xF0),
)
_FAMILY_OF: Final = {code: family for family in _FAMILIES for code in family} | {
    0x43: (0x52, 0x70),
    0x44: (0x53, 0x80),
    0x45: (0xC0, 0xD0),
    0x41: (0x56, 0x56),
    0x42: (0x56, 0x56),
    0x56: (0x56, 0x56),
}
_WIDEN: Final[dict[int, Callable[[bytes], bytes]]] = {
    0x54: lambda raw: int.from_bytes(raw, "big", signed=True).to_bytes(4, "big", signed=True),
    0x55: lambda raw: int.from_bytes(raw, "big", signed=True).to_bytes(8, "big", signed=True),
    0x52: lambda raw: raw.rjust(4, b"\0"),
    0x53: lambda raw: raw.rjust(8, b"\0"),
    0xA0: lambda raw: b"\0\0\0" + raw,
    0xA1: lambda raw: b"\0\0\0" + raw,
    0xA3: lambda raw: b"\0\0\0" + raw,
    0xC0: lambda raw: (raw[0] + 3).to_bytes(4, "big") + b"\0\0\0" + raw[1:],
    0xC1: lambda raw: (raw[0] + 3).to_bytes(4, "big") + b"\0\0\0" + raw[1:],
    0xE0: lambda raw: (raw[0] + 3).to_bytes(4, "big") + b"\0\0\0" + raw[1:],
}
# What stands for a constructor of no width once the items need not all be equal.
_NO_WIDTH: Final = {0x43: (0x52, b"\0"), 0x44: (0x53, b"\0"), 0x45: (0xC0, b"\1\0")}
_BOOLEANS: Final = {0x41: b"\1", 0x42: b"\0"}


def _array_bodies(array: Array) -> tuple[int, list[bytes]]:
    family = _FAMILY_OF.get(array.code, (array.code, array.code))
    bodies: list[tuple[int, bytes]] = []
    for item in array.items:
        written = encode_value(item)
        code, body = written[0], written[1:]
        if code in _BOOLEANS:
            code, body = 0x56, _BOOLEANS[code]
        code, body = _NO_WIDTH.get(code, (code, body))
        if code not in family:
            raise AmqpMisuse("an array's item is not of the array's type", code=array.code)
        bodies.append((code, body))
    wide = any(code == family[1] != family[0] for code, _ in bodies)
    if not wide:
        return family[0], [body for _, body in bodies]
    return family[1], [body if code == family[1] else _WIDEN[code](body) for code, body in bodies]


_DECIMALS: Final = {4: b"\x74", 8: b"\x84", 16: b"\x94"}


def _encode_decimal(value: DecimalNumber) -> bytes:
    code = _DECIMALS.get(len(value.raw))
    if code is None:
        raise AmqpMisuse("a decimal has 4, 8 or 16 bytes", size=len(value.raw))
    return code + value.raw


def _encode_described(value: Described) -> bytes:
    return b"\0" + encode_value(value.descriptor) + encode_value(value.value)


def _encode_char(value: str) -> bytes:
    return b"\x73" + ord(value).to_bytes(4, "big")


def _encode_items(value: Iterable[object]) -> bytes:
    return encode_list([encode_value(each) for each in value])


# Each is called with the type it stands beside, which a type checker cannot follow in a table.
_ENCODERS: Final[dict[type, Callable[..., bytes]]] = {
    type(None): lambda _: NULL,
    bool: encode_boolean,
    UByte: encode_ubyte,
    UShort: encode_ushort,
    UInt: encode_uint,
    ULong: encode_ulong,
    Byte: lambda value: b"\x51" + _signed(value, 1),
    Short: lambda value: b"\x61" + _signed(value, 2),
    Int: encode_int,
    int: encode_long,
    Timestamp: encode_timestamp,
    Float: lambda value: b"\x72" + struct.pack(">f", value),
    float: lambda value: b"\x82" + struct.pack(">d", value),
    Char: _encode_char,
    str: encode_string,
    Symbol: encode_symbol,
    bytes: encode_binary,
    UUID: lambda value: b"\x98" + value.bytes,
    DecimalNumber: _encode_decimal,
    Described: _encode_described,
    list: _encode_items,
    tuple: _encode_items,
    dict: lambda value: encode_map(value.items()),
    Array: encode_array,
}
