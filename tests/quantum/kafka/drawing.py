"""Draw entities of any schema of the protocol's library."""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial.readers import tz_aware_from_i64
from kio.static.primitive import i64

from quantum.protocols.kafka.codec import long_milliseconds, milliseconds

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def draw(schema: Any, rng: random.Random) -> Any:
    """Draw an entity whose every field holds something that its type allows."""
    values = {}
    for field in fields(schema):
        if "tag" in field.metadata and rng.random() < 0.5:
            continue
        values[field.name] = _draw_field(field, rng)
    return schema(**values)


def _draw_field(field: Any, rng: random.Random) -> Any:
    kind, nullable = field.type, False
    if type(None) in get_args(kind):
        kind = next(each for each in get_args(kind) if each is not type(None))
        nullable = "tag" not in field.metadata
    if nullable and rng.random() < 0.3:
        return None
    if get_origin(kind) is not tuple:
        return _draw_value(kind, field, rng)
    inner = get_args(kind)[0]
    return tuple(_draw_value(inner, field, rng) for _ in range(rng.randint(0, 3)))


def _draw_value(kind: Any, field: Any, rng: random.Random) -> Any:
    if is_dataclass(kind):
        return draw(kind, rng)
    name = field.metadata["kafka_type"]
    if name in BITS:
        bits = BITS[name] - 1
        return rng.choice([-(1 << bits), -1, 0, 1, (1 << bits) - 1, rng.randrange(1 << bits)])
    match name:
        case "uint16" | "uint32":
            return rng.randrange(1 << 16)
        case "string":
            return "".join(rng.choice("aé0.") for _ in range(rng.choice([0, 1, 130])))
        case "bytes" | "records":
            return rng.randbytes(rng.choice([0, 1, 130]))
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.random()
        case "uuid":
            return UUID(int=rng.getrandbits(128) | 1)
        case "error_code":
            return rng.choice(list(ErrorCode))
        case "timedelta_i32":
            return milliseconds(rng.randrange(1 << 31))
        case "timedelta_i64":
            return long_milliseconds(rng.randrange(1 << 40))
        case "datetime_i64":
            return tz_aware_from_i64(i64(rng.randrange(1 << 41)))
    raise AssertionError(name)
