"""Read and write composites by the types that their fields name.

A field of the wrong type cannot be decoded as the standard has it (`amqp:decode-error`); one that
is missing, or has a value that the type excludes, is `amqp:invalid-field`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from quantum.protocols.amqp.engine import composites as c
from quantum.protocols.amqp.engine.decode import ValueReader
from quantum.protocols.amqp.engine.encode import (
    NULL,
    encode_binary,
    encode_boolean,
    encode_list,
    encode_map,
    encode_string,
    encode_symbol,
    encode_symbols,
    encode_timestamp,
    encode_ubyte,
    encode_uint,
    encode_ulong,
    encode_ushort,
    encode_value,
)
from quantum.protocols.amqp.engine.errors import AmqpMisuse, AmqpPeerFault, Condition, MalformedData
from quantum.protocols.amqp.engine.types import (
    DEFAULT_LIMITS,
    Array,
    DecodeLimits,
    Described,
    LinkRole,
    ReceiverSettleMode,
    SaslCode,
    SenderSettleMode,
    Symbol,
    TerminusDurability,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

_EXPIRY_POLICIES: Final = ("link-detach", "session-end", "connection-close", "never")


class _WrongType(Exception):
    """A value is not of the field's type."""


class _WrongValue(Exception):
    """A value is of the field's type, and none that it may have."""


def _of(kind: type) -> Callable[[object], object]:
    def check(value: object) -> object:
        if type(value) is not kind:
            raise _WrongType
        return value

    return check


def _enumerated(kind: type, words: Callable[[Any], object]) -> Callable[[object], object]:
    def check(value: object) -> object:
        if type(value) is not kind:
            raise _WrongType
        try:
            return words(value)
        except ValueError:
            raise _WrongValue from None

    return check


def _one_of(*kinds: type[c.Composite]) -> Callable[[object], object]:
    def check(value: object) -> object:
        if not isinstance(value, Described):
            raise _WrongType
        found = composite_from(value)
        if not isinstance(found, kinds):
            raise _WrongType
        return found

    return check


def _symbols(value: object) -> object:
    if type(value) is Symbol:
        return (value,)
    if not isinstance(value, Array) or value.descriptor is not None:
        raise _WrongType
    if not all(type(each) is Symbol for each in value.items):
        raise _WrongType
    return value.items


def _fields(value: object) -> object:
    if not isinstance(value, dict) or not all(type(key) is Symbol for key in value):
        raise _WrongType
    return value


def _unsettled(value: object) -> object:
    """Tags and states (§2.7.3); a state may be null, a tag may not."""
    if not isinstance(value, dict):
        raise _WrongType
    if not all(type(key) is bytes for key in value):
        raise _WrongValue
    read_state = _one_of(*c.STATES)
    return {key: None if each is None else read_state(each) for key, each in value.items()}


def _message_id(value: object) -> object:
    if type(value) not in (ULong, UUID, bytes, str):
        raise _WrongType
    return value


def _expiry_policy(value: object) -> object:
    if type(value) is not Symbol:
        raise _WrongType
    if value not in _EXPIRY_POLICIES:
        raise _WrongValue
    return value


def _any(value: object) -> object:
    return value


_READERS: Final[dict[str, Callable[[object], object]]] = {
    "boolean": _of(bool),
    "ubyte": _of(UByte),
    "ushort": _of(UShort),
    "uint": _of(UInt),
    "ulong": _of(ULong),
    "timestamp": _of(Timestamp),
    "string": _of(str),
    "symbol": _of(Symbol),
    "binary": _of(bytes),
    "address": _of(str),
    "txn-id": _of(bytes),
    "any": _any,
    "symbols": _symbols,
    "fields": _fields,
    "unsettled": _unsettled,
    "message-id": _message_id,
    "expiry-policy": _expiry_policy,
    "role": _enumerated(bool, LinkRole),
    "snd-settle-mode": _enumerated(UByte, SenderSettleMode),
    "rcv-settle-mode": _enumerated(UByte, ReceiverSettleMode),
    "durability": _enumerated(UInt, TerminusDurability),
    "sasl-code": _enumerated(UByte, SaslCode),
    "error": _one_of(c.ErrorValue),
    "source": _one_of(c.SourceTerminus),
    "target": _one_of(c.TargetTerminus, c.Coordinator),
    "outcome": _one_of(*c.OUTCOMES),
    "state": _one_of(*c.STATES),
}


def _write_unsettled(value: dict[object, c.Composite | None]) -> bytes:
    pieces: list[bytes] = []
    for key, each in value.items():
        pieces += (encode_value(key), NULL if each is None else encode_composite(each))
    return _map_of(pieces)


def _map_of(pieces: list[bytes]) -> bytes:
    content = b"".join(pieces)
    if len(pieces) < 256 and len(content) < 255:
        return bytes((0xC1, len(content) + 1, len(pieces))) + content
    return (
        b"\xd1" + (len(content) + 4).to_bytes(4, "big") + len(pieces).to_bytes(4, "big") + content
    )


def _write_fields(value: dict[str, object]) -> bytes:
    return encode_map((Symbol(key), each) for key, each in value.items())


def encode_composite(value: c.Composite) -> bytes:
    """Write a composite, its unset trailing fields left out."""
    items: list[bytes] = []
    for name, kind, mandatory, default in _SCHEMAS[type(value)]:
        each = getattr(value, name)
        if each is None or (not mandatory and each == default):
            if mandatory:
                raise AmqpMisuse("a mandatory field is not set", field=name)
            items.append(NULL)
        else:
            items.append(_WRITERS[kind](each))
    while items and items[-1] == NULL:
        items.pop()
    return b"\0\x53" + bytes((value.CODE,)) + encode_list(items)


_WRITERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "boolean": encode_boolean,
    "role": encode_boolean,
    "ubyte": encode_ubyte,
    "snd-settle-mode": encode_ubyte,
    "rcv-settle-mode": encode_ubyte,
    "sasl-code": encode_ubyte,
    "ushort": encode_ushort,
    "uint": encode_uint,
    "durability": encode_uint,
    "ulong": encode_ulong,
    "timestamp": encode_timestamp,
    "string": encode_string,
    "address": encode_string,
    "symbol": encode_symbol,
    "expiry-policy": encode_symbol,
    "binary": encode_binary,
    "txn-id": encode_binary,
    "any": encode_value,
    "message-id": encode_value,
    "symbols": encode_symbols,
    "fields": _write_fields,
    "unsettled": _write_unsettled,
    "error": encode_composite,
    "source": encode_composite,
    "target": encode_composite,
    "outcome": encode_composite,
    "state": encode_composite,
}

# Per class: attribute, type, whether it must be set, default.
_SCHEMAS: Final[dict[type, tuple[tuple[str, str, bool, object], ...]]] = {
    each: tuple(
        (
            spec.name,
            spec.metadata["kind"].rstrip(c.MANDATORY),
            spec.metadata["kind"].endswith(c.MANDATORY),
            None if spec.default is dataclasses.MISSING else spec.default,
        )
        for spec in dataclasses.fields(each)  # type: ignore[arg-type]  # each is a dataclass
    )
    for each in c.COMPOSITES
}
_BY_DESCRIPTOR: Final[dict[object, type[c.Composite]]] = {
    key: each for each in c.COMPOSITES for key in (each.CODE, each.NAME)
}


def composite_from(value: Described) -> c.Composite:
    """Make a composite of a described list; raise PeerFault where it is none that we know."""
    descriptor = value.descriptor
    known = _BY_DESCRIPTOR.get(descriptor) if type(descriptor) in (ULong, Symbol) else None
    if known is None:
        raise AmqpPeerFault(Condition.NOT_IMPLEMENTED, "an unknown descriptor")
    if not isinstance(value.value, list):
        raise MalformedData("a composite is not a list", composite=known.NAME)
    schema = _SCHEMAS[known]
    if len(value.value) > len(schema):
        raise MalformedData("a composite has more fields than are defined", composite=known.NAME)
    found: dict[str, object] = {}
    for spec, each in zip(schema, value.value, strict=False):
        if each is not None:
            found[spec[0]] = _read_field(known, spec, each)
    for name, _, mandatory, _ in schema:
        if mandatory and name not in found:
            raise AmqpPeerFault(
                Condition.INVALID_FIELD,
                "a mandatory field is not set",
                composite=known.NAME,
                field=name,
            )
    make: Callable[..., c.Composite] = known
    return make(**found)


def _read_field(
    known: type[c.Composite], spec: tuple[str, str, bool, object], value: object
) -> object:
    try:
        return _READERS[spec[1]](value)
    except _WrongType:
        raise MalformedData(
            "a field is not of its type", composite=known.NAME, field=spec[0]
        ) from None
    except _WrongValue:
        raise AmqpPeerFault(
            Condition.INVALID_FIELD,
            "a field's value is none that it may have",
            composite=known.NAME,
            field=spec[0],
        ) from None


def decode_composite(
    data: bytes, position: int, end: int, limits: DecodeLimits = DEFAULT_LIMITS
) -> tuple[c.Composite, int]:
    """Read the composite at `position`; return it and where it ends."""
    reader = ValueReader(data, position, end, limits)
    value = reader.read_value()
    if not isinstance(value, Described):
        raise MalformedData("a frame's body does not begin with a described value")
    return composite_from(value), reader.position


def decode_state(data: bytes, limits: DecodeLimits = DEFAULT_LIMITS) -> c.DeliveryState:
    """Read a delivery state from the bytes that the scanner found for it."""
    state, end = decode_composite(data, 0, len(data), limits)
    if not isinstance(state, c.STATES) or end != len(data):
        raise MalformedData("a state is no delivery state")
    return state


_ACCEPTED: Final = encode_composite(c.AcceptedOutcome())


def encode_state(state: c.DeliveryState | None) -> bytes:
    """Write a delivery state, or nothing where there is none; the frequent one is ready."""
    if state is None:
        return b""
    return _ACCEPTED if type(state) is c.AcceptedOutcome else encode_composite(state)
