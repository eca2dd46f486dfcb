"""One set of facts for all versions of an answer: what a version does not have is left out.

A handler says what it knows in plain values, nested dicts and lists; this puts them into the
message of the version that was asked in. Errors are numbers, spans are milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Final, cast, get_args, get_origin

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as KafkaCode
from kio.static.protocol import Entity

from quantum.protocols.kafka.codec.errors import KafkaMisuse
from quantum.protocols.kafka.codec.framing import RequestHead
from quantum.protocols.kafka.codec.messages import (
    encode_response,
    long_milliseconds,
    milliseconds,
)

Facts = Mapping[str, Any]
_EMPTY: Final[Mapping[str, Any]] = {"throttle_time": 0, "error_code": 0}


def answer(head: RequestHead, facts: Facts) -> bytes:
    """Encode the whole answer to a request from facts that suit all its versions."""
    schema = load_response_schema(head.api_key, head.api_version)
    return encode_response(head, shape(schema, facts))


def shape(schema: type[Entity], facts: Facts) -> Entity:
    """Make an entity of `schema`. Raises KafkaMisuse for a fact that it needs and has not."""
    values = {}
    for name, required, convert in _plan(schema):
        if name in facts:
            value = facts[name]
            values[name] = None if value is None else convert(value)
        elif required:
            if name not in _EMPTY:
                raise KafkaMisuse("a fact is missing", schema=schema.__name__, fact=name)
            values[name] = convert(_EMPTY[name])
    return schema(**values)


@cache
def _plan(schema: Any) -> tuple[tuple[str, bool, Callable[[Any], Any]], ...]:
    return tuple(
        (each.name, each.default is MISSING, _converter(each.type, each.metadata))
        for each in fields(schema)
    )


def _converter(kind: Any, metadata: Mapping[str, Any]) -> Callable[[Any], Any]:
    kind = next((each for each in get_args(kind) if type(None) in get_args(kind)), kind)
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        if is_dataclass(inner):
            nested = cast("type[Entity]", inner)
            return lambda rows: tuple(shape(nested, row) for row in rows)
        return tuple
    if is_dataclass(kind):
        alone = cast("type[Entity]", kind)
        return lambda facts: shape(alone, facts)
    return _CONVERT.get(metadata.get("kafka_type", ""), _as_it_is)


def _as_it_is(value: Any) -> Any:
    return value


_CONVERT: Final[Mapping[str, Callable[[Any], Any]]] = {
    "error_code": KafkaCode,
    "timedelta_i32": milliseconds,
    "timedelta_i64": long_milliseconds,
}
