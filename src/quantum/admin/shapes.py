"""Values as JSON: canonical (RFC 8785), and wide integers as decimal strings.

An integer is wide where its type lets it exceed 32 bits (clustor §8.2, `quantum spec wide-ints`).
Answers spell those as strings; requests may spell them either way. Where a type also takes
strings, as the values of a configuration do, a number stays a number: else 5 and "5" would meet.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import inspect as mi

from clustor.control import canonical

NARROW_MAX: Final = 2**32 - 1
DECIMAL: Final = "^(0|[1-9][0-9]{0,19})$"
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,15}")  # no wide integer has more than 2^53
_PYTHON_END: Final = r"$(?!\n)"  # what other dialects say by `$` alone

Step: TypeAlias = Callable[[Any], Any]


def shown(kind: Any, value: object) -> bytes:
    """Encode an answer of a type."""
    plain = msgspec.to_builtins(value)
    step = _widening(kind)
    return canonical(plain if step is None else step(plain))


def taken(kind: Any, plain: object) -> Any:
    """Read what a request carries as a type, strictly; raises msgspec.ValidationError."""
    step = _narrowing(kind)
    return msgspec.convert(plain if step is None else step(plain), type=kind)


@cache
def _widening(kind: Any) -> Step | None:
    return _plan(mi.type_info(kind), _widen, _widen_all)


@cache
def _narrowing(kind: Any) -> Step | None:
    return _plan(mi.type_info(kind), _narrow, None)


def _widen(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _widen_all(value: Any) -> Any:
    """Widen what has no type of its own: the results and facts of the control plane."""
    if isinstance(value, dict):
        return {key: _widen_all(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_widen_all(each) for each in value]
    return _widen(value)


def _narrow(value: Any) -> Any:
    return int(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value


def _plan(info: mi.Type, leaf: Step, untyped: Step | None) -> Step | None:
    """Return what to do with a value of a type; None: nothing."""
    match info:
        case mi.Metadata():
            return _plan(info.type, leaf, untyped)
        case mi.IntType():
            return leaf if info.le is None or info.le > NARROW_MAX else None
        case mi.AnyType():
            return untyped
        case mi.StructType() | mi.DataclassType():
            fields = {f.encode_name: _plan(f.type, leaf, untyped) for f in info.fields}
            return _of_members({name: step for name, step in fields.items() if step is not None})
        case mi.ListType() | mi.VarTupleType() | mi.SetType() | mi.FrozenSetType():
            return _of_items(_plan(info.item_type, leaf, untyped))
        case mi.DictType():
            return _of_values(_plan(info.value_type, leaf, untyped))
        case mi.UnionType():
            return _of_union(info, leaf, untyped)
        case _:
            return None


def _of_union(info: mi.UnionType, leaf: Step, untyped: Step | None) -> Step | None:
    """None aside, a union here is of one kind, or of scalars that keep their own spelling."""
    kinds = [each for each in info.types if not isinstance(each, mi.NoneType)]
    return _plan(kinds[0], leaf, untyped) if len(kinds) == 1 else None


def _of_members(steps: dict[str, Step]) -> Step | None:
    if not steps:
        return None

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            fresh = dict(value)
            for name, step in steps.items():
                if name in fresh:
                    fresh[name] = step(fresh[name])
            return fresh
        return value

    return change


def _of_items(step: Step | None) -> Step | None:
    if step is None:
        return None

    def change(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [step(each) for each in value]
        return value

    return change


def _of_values(step: Step | None) -> Step | None:
    if step is None:
        return None

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: step(each) for key, each in value.items()}
        return value

    return change


# The same for JSON Schema.


def schema_of(schema: Any, *, request: bool) -> Any:
    """Say in a schema how wide integers are spelled; patterns lose what is Python's alone."""
    if isinstance(schema, list):
        return [schema_of(each, request=request) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if _is_wide(schema):
        return _wide_schema(schema, request=request)
    if "anyOf" in schema and any(each.get("type") == "string" for each in schema["anyOf"]):
        return {**schema, "anyOf": [_portable(each) for each in schema["anyOf"]]}
    return {name: schema_of(each, request=request) for name, each in _portable(schema).items()}


def _is_wide(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "integer" and schema.get("maximum", NARROW_MAX + 1) > NARROW_MAX


def _wide_schema(schema: dict[str, Any], *, request: bool) -> dict[str, Any]:
    text = {"type": "string", "pattern": DECIMAL}
    if not request:
        return text
    number = {name: each for name, each in schema.items() if name != "default"}
    return {"anyOf": [number, text]} | (
        {"default": schema["default"]} if "default" in schema else {}
    )


def _portable(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema.get("pattern"), str):
        return {**schema, "pattern": schema["pattern"].replace(_PYTHON_END, "$")}
    return schema
