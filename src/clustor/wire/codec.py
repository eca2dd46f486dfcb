"""The codec of a message, built once from the fields that its class declares.

Neighbouring fixed-width fields become one `struct` call; the rest goes value by value. Nothing
here knows a message by name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from .errors import WireMisuse, WireUnknownField
from .fields import FieldSpec, FixedField, fields_of
from .types import BASELINE, Buffer, Dialect
from .values import FLAG_VALUES, Value, meaning, meanings_of, too_short, value_of

Message = TypeVar("Message")


class _Step(Protocol):
    """One or more neighbouring fields of a message."""

    def read(self, body: Buffer, offset: int, values: list[Any], dialect: Dialect, /) -> int:
        """Append the fields at `offset` to `values`; return the offset after them."""

    def write(self, message: Any, parts: list[Buffer], dialect: Dialect, /) -> None:
        """Append the fields' bytes to `parts`."""


class Codec(Generic[Message]):
    """Both directions of one class. Reused for every message; holds no state of its own."""

    __slots__ = ("_message", "_steps")

    def __init__(self, message: type[Message]) -> None:
        self._message = message
        self._steps = _steps_of(fields_of(message))

    def encode(self, message: Message, dialect: Dialect = BASELINE) -> bytes:
        """Return the body of `message`. Raises WireMisuse for values that have no bytes."""
        parts: list[Buffer] = []
        for step in self._steps:
            step.write(message, parts, dialect)
        return b"".join(parts)

    def decode(self, body: Buffer, dialect: Dialect = BASELINE, *, offset: int = 0) -> Message:
        """Return the message from `offset` to the end; slices in it are slices of `body`.

        Bytes after the last known field raise WireUnknownField, unless ForwardCompat was
        negotiated: then they are skipped unread.
        """
        values: list[Any] = []
        end = offset
        for step in self._steps:
            end = step.read(body, end, values, dialect)
        message = self._message(*values)
        if end != len(body) and not dialect.forward_compat:
            raise WireUnknownField(
                "bytes after the last known field",
                message=self._message.__name__,
                offset=end,
                length=len(body),
            )
        return message

    def read(self, body: Buffer, offset: int, dialect: Dialect) -> tuple[Message, int]:
        """Read the fields at `offset`, as a part of a larger body."""
        values: list[Any] = []
        for step in self._steps:
            offset = step.read(body, offset, values, dialect)
        return self._message(*values), offset

    def write(self, value: Message, parts: list[Buffer], dialect: Dialect) -> None:
        """Append the fields of `value`, as a part of a larger body."""
        for step in self._steps:
            step.write(value, parts, dialect)


_built: dict[type[Any], Codec[Any]] = {}


def codec_of(message: type[Message]) -> Codec[Message]:
    """Return the codec of a declared class."""
    if message not in _built:
        _built[message] = Codec(message)
    return _built[message]


def _steps_of(specs: Iterable[FieldSpec]) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    for fixed, group in groupby(specs, lambda s: isinstance(s.kind, FixedField) and not s.optional):
        if fixed:
            steps.append(_FixedRun(list(group)))
        else:
            steps.extend(_single_step(spec) for spec in group)
    return tuple(steps)


def _single_step(spec: FieldSpec) -> _Step:
    value = value_of(spec.kind, spec.name, codec_of)
    return _OptionalField(spec, value) if spec.optional else _RequiredField(spec.name, value)


class _FixedRun:
    """Neighbouring mandatory fixed-width fields, packed and unpacked in one call."""

    __slots__ = ("_digests", "_get", "_meanings", "_names", "_pack", "_size", "_unpack_from")

    def __init__(self, specs: list[FieldSpec]) -> None:
        kinds = [spec.kind for spec in specs if isinstance(spec.kind, FixedField)]
        layout = struct.Struct("<" + "".join(kind.code for kind in kinds))
        self._pack = layout.pack
        self._unpack_from = layout.unpack_from
        self._size = layout.size
        self._names = tuple(spec.name for spec in specs)
        self._get: Callable[[Any], Any] = attrgetter(*self._names)
        checked = [(place, meanings_of(kind)) for place, kind in enumerate(kinds)]
        self._meanings = tuple((place, table) for place, table in checked if table is not None)
        self._digests = tuple(
            (place, struct.calcsize(kind.code))
            for place, kind in enumerate(kinds)
            if kind.code.endswith("s")
        )

    def read(self, body: Buffer, offset: int, values: list[Any], _dialect: Dialect) -> int:
        try:
            run = self._unpack_from(body, offset)
        except struct.error:
            raise too_short(self._names[0], offset, body) from None
        base = len(values)
        values += run
        for place, meanings in self._meanings:
            values[base + place] = meaning(meanings, run[place], self._names[place])
        return offset + self._size

    def write(self, message: Any, parts: list[Buffer], _dialect: Dialect) -> None:
        run: Any = self._get(message)
        if len(self._names) == 1:  # attrgetter gives a lone value bare
            run = (run,)
        for place, meanings in self._meanings:
            if run[place] not in meanings:
                raise WireMisuse("no such discriminant", field=self._names[place])
        for place, size in self._digests:
            if len(run[place]) != size:  # struct would pad or cut it without a word
                raise WireMisuse("digest of another size", field=self._names[place])
        try:
            parts.append(self._pack(*run))
        except struct.error:
            raise WireMisuse("value out of range", fields=self._names) from None


class _RequiredField:
    """One mandatory field of variable width."""

    __slots__ = ("_get", "_value")

    def __init__(self, name: str, value: Value) -> None:
        self._get = attrgetter(name)
        self._value = value

    def read(self, body: Buffer, offset: int, values: list[Any], dialect: Dialect) -> int:
        value, offset = self._value.read(body, offset, dialect)
        values.append(value)
        return offset

    def write(self, message: Any, parts: list[Buffer], dialect: Dialect) -> None:
        self._value.write(self._get(message), parts, dialect)


class _OptionalField:
    """`has_field`, then perhaps the value; a tail extension may be absent altogether."""

    __slots__ = ("_get", "_name", "_since_minor", "_value")

    def __init__(self, spec: FieldSpec, value: Value) -> None:
        self._name = spec.name
        self._get = attrgetter(spec.name)
        self._since_minor = spec.since_minor
        self._value = value

    def read(self, body: Buffer, offset: int, values: list[Any], dialect: Dialect) -> int:
        if offset >= len(body):
            if self._since_minor is None:
                raise too_short("has_" + self._name, offset, body)
            values.append(None)
            return offset
        has_field = meaning(FLAG_VALUES, body[offset], "has_" + self._name)
        value, offset = (
            self._value.read(body, offset + 1, dialect) if has_field else (None, offset + 1)
        )
        values.append(value)
        return offset

    def write(self, message: Any, parts: list[Buffer], dialect: Dialect) -> None:
        if self._since_minor is not None and dialect.minor < self._since_minor:
            return
        value = self._get(message)
        parts.append(b"\0" if value is None else b"\1")
        if value is not None:
            self._value.write(value, parts, dialect)
