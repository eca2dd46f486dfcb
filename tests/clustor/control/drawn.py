"""Any well-formed command at all, drawn from its own declaration: few names, extreme numbers."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

from clustor.control import Command
from tests.clustor.control.plane import ACTOR, node_identity

NAMES = ("a", "b", "all", "t1", "w1", "f1", "g1", "o1", "p1", "r1", "b1", "DR", "WAN", "z0")
WORDS = (*NAMES, "", "a.example.com", "x.example.com", ACTOR, node_identity(1), "ü😀\n", '["{')
NUMBERS = (0, 1, 2, 3, 4, 5, 8, 900_000, 1_000_000, 2**31, 2**52, 2**53 - 1)


def drawn_command(rng: Random, kind: type[Command]) -> Command:
    """Draw one command of a kind."""
    drawn: Command = _draw_struct(rng, inspect.type_info(kind))
    return drawn


def _draw_struct(rng: Random, info: inspect.Type) -> Any:
    assert isinstance(info, inspect.StructType)
    values = {
        field.name: _draw(rng, field.type)
        for field in info.fields
        if field.required or rng.random() < 0.6
    }
    return info.cls(**values)


def _draw(rng: Random, info: inspect.Type) -> Any:
    match info:
        case inspect.StructType():
            return _draw_struct(rng, info)
        case inspect.UnionType(types=types):
            return _draw(rng, rng.choice(types))
        case inspect.IntType(ge=low, le=high):
            return _draw_number(rng, low, high)
        case inspect.StrType():
            return _draw_word(rng, info)
        case inspect.BytesType(min_length=least, max_length=most):
            length = least or rng.randrange(0, min(most or 64, 64))
            return rng.choice([bytes(length), b"\x07" * length, rng.randbytes(length)])
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.EnumType(cls=cls):
            return rng.choice(list(cls))
        case inspect.VarTupleType(item_type=item, min_length=least):
            count = (least or 0) + rng.choice([0, 1, 1, 2, 3])
            return tuple(_draw(rng, item) for _ in range(count))
        case inspect.DictType(key_type=key, value_type=value):
            return {_draw(rng, key): _draw(rng, value) for _ in range(rng.randrange(3))}
        case inspect.NoneType():
            return None
        case _:
            raise AssertionError(f"no way to draw {info}")


def _draw_number(rng: Random, low: float | None, high: float | None) -> int:
    ends = [int(end) for end in (low, high) if end is not None]
    allowed = [
        number
        for number in (*NUMBERS, *ends)
        if (low is None or number >= low) and (high is None or number <= high)
    ]
    return rng.choice(allowed)


def _draw_word(rng: Random, info: inspect.StrType) -> str:
    allowed = [
        word
        for word in WORDS
        if (info.pattern is None or re.search(info.pattern, word))
        and len(word) >= (info.min_length or 0)
    ]
    return rng.choice(allowed)


def reads_back(command: Command) -> bool:
    """Say whether a command survives its own encoding: what is drawn must be well-formed."""
    encoded = msgspec.json.encode(command)
    return bool(msgspec.json.decode(encoded, type=type(command)) == command)
