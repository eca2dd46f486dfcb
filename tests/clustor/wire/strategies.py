"""Strategies and samples for every message, read from the declarations that drive the codecs."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from clustor.wire.fields import (
    DIGEST,
    FieldSpec,
    FixedField,
    JsonForm,
    Kind,
    Nested,
    RepeatedField,
    SliceField,
    fields_of,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def messages_of(message: type[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(*map(_field, fields_of(message))).map(lambda values: message(*values))


def _field(spec: FieldSpec) -> st.SearchStrategy[Any]:
    value = _value(spec.kind)
    return st.none() | value if spec.optional else value


def _value(kind: Kind) -> st.SearchStrategy[Any]:
    match kind:
        case FixedField():
            return _fixed(kind)
        case SliceField(json=JsonForm.TEXT):
            return TEXTS
        case SliceField():
            return st.binary(max_size=40)
        case Nested(message):
            return messages_of(message)
        case RepeatedField():
            return _list(kind)


def _fixed(kind: FixedField) -> st.SearchStrategy[Any]:
    if kind.members is not None:
        return st.sampled_from(list(kind.members))
    if kind.json is JsonForm.BOOLEAN:
        return st.booleans()
    size = struct.calcsize("<" + kind.code)
    if kind.code.endswith("s"):
        return st.binary(min_size=size, max_size=size)
    return st.integers(0, 2 ** (8 * size) - 1)


def _list(kind: RepeatedField) -> st.SearchStrategy[Any]:
    items = st.lists(_value(kind.item), max_size=5)
    return items.map(_ascending) if kind.ascending else items


def _ascending(items: list[Any]) -> list[Any]:
    by_key = {getattr(item, "name", item): item for item in items}
    return [by_key[key] for key in sorted(by_key)]


def sample_of(message: type[Any]) -> Any:
    """Return one message with every optional field present and one item in every list."""
    return message(*(_sample(spec.kind) for spec in fields_of(message)))


def _sample(kind: Kind) -> Any:
    match kind:
        case FixedField(members=members) if members is not None:
            return next(iter(members))
        case FixedField(json=JsonForm.BOOLEAN):
            return True
        case FixedField():
            return bytes(32) if kind == DIGEST else 7
        case SliceField():
            return "text" if kind.json is JsonForm.TEXT else b"bytes"
        case Nested(nested):
            return sample_of(nested)
        case RepeatedField():
            return [_sample(kind.item)]
