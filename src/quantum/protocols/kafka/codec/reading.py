"""Read messages by the library's schemas, but not by its reader.

That one believes the length of an array and asks the system for as much memory: three bytes of a
stranger end the process. It also refuses tags that it does not know, though those must be ignored
(KIP-482). Here an array is never longer than the bytes that are left could hold, unknown tags are
skipped, and whatever cannot be read is a MalformedRequest. The tests hold both readers together.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Final, cast, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode as KafkaCode
from kio.serial.readers import (
    read_datetime_i64,
    read_nullable_datetime_i64,
    read_timedelta_i32,
    read_timedelta_i64,
)
from kio.static.protocol import Entity

from quantum.protocols.kafka.codec.errors import MalformedRequest, RequestTooLarge
from quantum.protocols.kafka.codec.hot import read_varint

Budget = list[int]
"""How many more elements of arrays one message may have: one number, counted down."""
Read = Callable[[bytes, int, Budget], tuple[Any, int]]
ReadValue = Callable[[bytes, int], tuple[Any, int]]
ELEMENTS_MAX: Final = 65_536
"""A megabyte of the smallest elements would hold a node up for most of a second."""
_TAG_BYTES_MIN: Final = 2  # a tag and its length
_NO_TOPIC: Final = bytes(16)
_NULL_ENTITY: Final = 0xFF


def read_entity(schema: type[Entity], data: bytes, start: int) -> tuple[Entity, int]:
    """Read one entity at `start`: itself, and where it ends.

    Raises MalformedRequest, and RequestTooLarge for more elements than a message may have.
    """
    reader, _ = _entity_reader(schema)
    try:
        return cast("tuple[Entity, int]", reader(data, start, [ELEMENTS_MAX]))
    except (struct.error, ValueError, OverflowError, IndexError) as fault:
        raise MalformedRequest("unreadable message", schema=schema.__name__) from fault


@cache
def _entity_reader(schema: Any) -> tuple[Read, int]:
    """Make the reader of a schema, and say how few bytes one such entity may take."""
    plain: list[tuple[str, Read]] = []
    runs = _Runs()
    tagged: dict[int, tuple[str, Read]] = {}
    absent: dict[str, Any] = {}
    least = 1 if schema.__flexible__ else 0
    for field in fields(schema):
        read, size = _field_reader(field, schema.__flexible__)
        if "tag" in field.metadata:
            assert field.default is not MISSING, f"{schema} has a tag without a default"
            tagged[field.metadata["tag"]] = (field.name, read)
            absent[field.name] = field.default
        else:
            least += size
            if not runs.take(field):
                plain += runs.close()
                plain.append((field.name, read))
    plain += runs.close()

    def read_one(data: bytes, position: int, budget: Budget) -> tuple[Any, int]:
        values = dict(absent)
        for name, read in plain:
            if name:
                values[name], position = read(data, position, budget)
            else:
                numbers, position = read(data, position, budget)
                values.update(numbers)
        if schema.__flexible__:
            position = _read_tags(tagged, values, data, position, budget)
        return schema(**values), position

    return read_one, least


class _Runs:
    """Numbers that stand next to each other, to be read in one go: a Fetch has six of them."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._form = ">"

    def take(self, field: Field[Any]) -> bool:
        """Take a field if it is a single number."""
        letter = _INTEGERS.get(field.metadata.get("kafka_type", ""))
        if letter is None or get_origin(_unwrap(field.type)[1]) is tuple:
            return False
        self._names.append(field.name)
        self._form += letter[1]
        return True

    def close(self) -> list[tuple[str, Read]]:
        """Return the reader of the run under no name, or nothing where there is none."""
        names, packed = tuple(self._names), struct.Struct(self._form)
        self._names, self._form = [], ">"

        def read_run(data: bytes, position: int, _: Budget) -> tuple[Any, int]:
            numbers = zip(names, packed.unpack_from(data, position), strict=True)
            return numbers, position + packed.size

        return [("", read_run)] if names else []


def _read_tags(
    tagged: dict[int, tuple[str, Read]],
    values: dict[str, Any],
    data: bytes,
    position: int,
    budget: Budget,
) -> int:
    count, position = read_varint(data, position)
    if count * _TAG_BYTES_MIN > len(data) - position:
        raise MalformedRequest("impossible count of tagged fields", count=count)
    last = -1
    for _ in range(count):
        tag, position = read_varint(data, position)
        size, position = read_varint(data, position)
        end = position + size
        if end > len(data) or tag <= last:
            raise MalformedRequest("ill-formed tagged field", tag=tag)
        last = tag
        if tag in tagged:
            name, read = tagged[tag]
            values[name], used = read(data[position:end], 0, budget)
            if used != size:
                raise MalformedRequest("a tagged field of another length", tag=tag)
        position = end
    return position


def _field_reader(field: Field[Any], flexible: bool) -> tuple[Read, int]:
    nullable, kind = _unwrap(field.type)
    nullable = nullable and "tag" not in field.metadata
    if get_origin(kind) is tuple:
        inner: Any = _unwrap(get_args(kind)[0])[1]
        read, least = (
            _entity_reader(cast("Any", inner))
            if is_dataclass(inner)
            else _value_reader(field.metadata["kafka_type"], flexible, nullable=False)
        )
        return _array_reader(read, max(1, least), flexible, nullable), 1 if flexible else 4
    if is_dataclass(kind):
        read, least = _entity_reader(cast("Any", kind))
        return (_nullable_entity(read), 1) if nullable else (read, least)
    return _value_reader(field.metadata["kafka_type"], flexible, nullable)


def _unwrap(kind: Any) -> tuple[bool, Any]:
    """Split `X | None`: whether None is there, and the rest."""
    arguments = get_args(kind)
    if type(None) not in arguments:
        return False, kind
    return True, next(each for each in arguments if each is not type(None))


def _array_reader(read: Read, least: int, flexible: bool, nullable: bool) -> Read:
    def read_array(data: bytes, position: int, budget: Budget) -> tuple[Any, int]:
        count, position = _read_length(data, position, flexible, 4)
        if count < 0:
            _check_null(nullable)
            return None, position
        if count * least > len(data) - position:
            raise MalformedRequest("impossible length of an array", count=count)
        budget[0] -= count
        if budget[0] < 0:
            raise RequestTooLarge("too many elements in arrays", limit=ELEMENTS_MAX)
        rows = []
        for _ in range(count):
            row, position = read(data, position, budget)
            rows.append(row)
        return tuple(rows), position

    return read_array


def _nullable_entity(read: Read) -> Read:
    def read_nullable(data: bytes, position: int, budget: Budget) -> tuple[Any, int]:
        if data[position] == _NULL_ENTITY:
            return None, position + 1
        return read(data, position + 1, budget)

    return read_nullable


def _read_length(data: bytes, position: int, flexible: bool, size: int) -> tuple[int, int]:
    """Read a length of either kind; -1 is null, and nothing below it is legal."""
    if flexible:
        length, position = read_varint(data, position)
        return length - 1, position
    end = position + size
    length = int.from_bytes(data[position:end], "big", signed=True)
    if end > len(data) or length < -1:
        raise MalformedRequest("ill-formed length", length=length)
    return length, end


def _check_null(nullable: bool) -> None:
    if not nullable:
        raise MalformedRequest("null where the schema has none")


def _value_reader(kind: str, flexible: bool, nullable: bool) -> tuple[Read, int]:
    if kind in _INTEGERS:
        packed = struct.Struct(_INTEGERS[kind])
        size = packed.size
        return lambda data, at, _: (packed.unpack_from(data, at)[0], at + size), size
    if kind in {"string", "bytes", "records"}:
        size = 2 if kind == "string" else 4
        text = kind == "string"
        return _blob_reader(text, flexible, nullable, size), 1 if flexible else size
    read, size = _OTHERS[kind]
    if kind == "datetime_i64" and nullable:
        read = cast("ReadValue", read_nullable_datetime_i64)
    return _sized(read, size), size


def _blob_reader(text: bool, flexible: bool, nullable: bool, size: int) -> Read:
    def read_blob(data: bytes, position: int, _: Budget) -> tuple[Any, int]:
        length, position = _read_length(data, position, flexible, size)
        if length < 0:
            _check_null(nullable)
            return None, position
        end = position + length
        if end > len(data):
            raise MalformedRequest("a field runs beyond the message", length=length)
        value = data[position:end]
        return value.decode() if text else value, end

    return read_blob


def _sized(read: ReadValue, size: int) -> Read:
    """The library's readers of single values answer with a size, not with a position."""

    def read_value(data: bytes, position: int, _: Budget) -> tuple[Any, int]:
        if position + size > len(data):
            raise MalformedRequest("message ends within a field")
        return read(data, position)[0], position + size

    return read_value


def _read_bool(data: bytes, position: int) -> tuple[bool, int]:
    return data[position] != 0, 1


def _read_uuid(data: bytes, position: int) -> tuple[UUID | None, int]:
    value = data[position : position + 16]
    return None if value == _NO_TOPIC else UUID(bytes=value), 16


def _read_code(data: bytes, position: int) -> tuple[KafkaCode, int]:
    return KafkaCode(int.from_bytes(data[position : position + 2], "big", signed=True)), 2


_INTEGERS: Final = {
    "int8": ">b",
    "int16": ">h",
    "int32": ">i",
    "int64": ">q",
    "uint8": ">B",
    "uint16": ">H",
    "uint32": ">I",
    "uint64": ">Q",
    "float64": ">d",
}
_OTHERS: Final[dict[str, tuple[ReadValue, int]]] = {
    "bool": (_read_bool, 1),
    "uuid": (_read_uuid, 16),
    "error_code": (_read_code, 2),
    "timedelta_i32": (cast("ReadValue", read_timedelta_i32), 4),
    "timedelta_i64": (cast("ReadValue", read_timedelta_i64), 8),
    "datetime_i64": (cast("ReadValue", read_datetime_i64), 8),
}
