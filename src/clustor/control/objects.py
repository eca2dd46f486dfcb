"""Objects: typed values with one canonical encoding, each under a key of its own.

The encoding is canonical JSON (RFC 8785): members in order, no floats, no numbers beyond what
JSON carries exactly. So equal objects are equal bytes, and a signature over one is well defined.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec

from clustor.kv import Key

_encoder = msgspec.json.Encoder(order="sorted")


class ControlObject(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One object. A later version may add members with defaults; unknown ones are ignored."""

    PREFIX: ClassVar[str]

    def key(self) -> Key:
        """Return where this object stands."""
        raise NotImplementedError


Object = TypeVar("Object", bound=ControlObject)


def canonical(value: object) -> bytes:
    """Encode as canonical JSON; structs, enums and bytes (base64) included."""
    return _encoder.encode(value)


def key_of(kind: type[ControlObject], *parts: str | int) -> Key:
    """Return the key of the object that these parts name; numbers sort as numbers."""
    named = "/".join(f"{part:020d}" if isinstance(part, int) else part for part in parts)
    return Key(f"{kind.PREFIX}{named}".encode())


@cache
def _decoder(kind: type[ControlObject]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode_object(kind: type[Object], value: bytes) -> Object:
    """Read an object back; raises msgspec.DecodeError."""
    found: Object = _decoder(kind).decode(value)
    return found
