"""The words of AMQP's type system that Python has no word for, and the bounds on reading them.

A value is plain Python where only one type can be meant: None, bool, bytes, str, float (double),
int (long), list, dict, UUID. The rest has a class of its own, so that what was read is written
again with the type it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

SEQUENCE_MASK: Final = 0xFFFFFFFF


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970, of either sign."""

    __slots__ = ()


class Float(float):
    """A 32-bit float; a plain `float` is a double."""

    __slots__ = ()


class Symbol(str):
    __slots__ = ()


class Char(str):
    """One Unicode scalar value."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class DecimalNumber:
    """An IEEE 754 decimal of 4, 8 or 16 bytes, kept as it came: nothing here computes with it."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Described:
    """A value with its descriptor, by convention a symbol or a ulong."""

    descriptor: object
    value: object


@dataclass(frozen=True, slots=True)
class Array:
    """Values of one type. `code` is the constructor that they share; `descriptor` may be None.

    On writing, `code` says which type is meant, and the shortest encoding of it that holds all
    the items is taken.
    """

    code: int
    items: tuple[object, ...]
    descriptor: object = None


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """What one value may cost to read: how deep it nests and how many values are inside."""

    depth_max: int = 16
    values_max: int = 10_000


DEFAULT_LIMITS: Final = DecodeLimits()


class LinkRole(IntEnum):
    """Which end of a link speaks (§2.8.1); on the wire a boolean."""

    SENDER = 0
    RECEIVER = 1


class SenderSettleMode(IntEnum):
    UNSETTLED = 0
    SETTLED = 1
    MIXED = 2


class ReceiverSettleMode(IntEnum):
    FIRST = 0
    SECOND = 1


class SaslCode(IntEnum):
    OK = 0
    AUTH = 1
    SYS = 2
    SYS_PERM = 3
    SYS_TEMP = 4


class TerminusDurability(IntEnum):
    NONE = 0
    CONFIGURATION = 1
    UNSETTLED_STATE = 2


def serial_add(number: int, more: int) -> int:
    """Add in the sequence numbers' own circle of 2³² (§2.8.10, RFC 1982)."""
    return (number + more) & SEQUENCE_MASK


def serial_distance(later: int, earlier: int) -> int:
    """Return how far `later` is ahead of `earlier`, negative where it is behind (RFC 1982)."""
    distance = (later - earlier) & SEQUENCE_MASK
    return distance - 0x100000000 if distance > 0x7FFFFFFF else distance


def numbers_in_range(numbers: Mapping[int, object], first: int, width: int) -> list[int]:
    """Return the known numbers from `first` on; a range wider than what is known costs no more."""
    if width > len(numbers):
        return [each for each in numbers if (each - first) & 0xFFFFFFFF < width]
    return [each for each in (serial_add(first, n) for n in range(width)) if each in numbers]
