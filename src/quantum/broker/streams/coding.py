"""Commands and snapshots of stream machines as bytes: MessagePack arrays with a name in front.

Equal state gives equal bytes: whoever makes a snapshot sorts what has no order of its own.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, TypeVar

import msgspec

from quantum.broker.streams.errors import CommandUnreadable, SnapshotUnreadable

T = TypeVar("T")
_ENCODER: Final = msgspec.msgpack.Encoder()


class CoordinationCommand(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What is written into the log for a stream machine; the first element says which."""


def encode_command(command: CoordinationCommand) -> bytes:
    """Encode a command for the log."""
    return _ENCODER.encode(command)


def decode_command(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    """Decode a committed command. Raises CommandUnreadable."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as fault:
        raise CommandUnreadable("not a command of this machine", fault=str(fault)) from fault


def encode_state(name: str, version: int, state: msgspec.Struct) -> bytes:
    """Encode a machine's whole state, with its name and version in front."""
    return _ENCODER.encode((name, version, state))


def decode_state(name: str, version: int, kind: type[T], data: bytes) -> T:
    """Decode a snapshot of this name and version. Raises SnapshotUnreadable."""
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(tuple[str, int, kind])  # type: ignore[valid-type]
    try:
        found, its_version, state = decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as fault:
        raise SnapshotUnreadable("not a snapshot of this machine", fault=str(fault)) from fault
    if (found, its_version) != (name, version):
        raise SnapshotUnreadable("a snapshot of another kind", name=found, version=its_version)
    return state  # type: ignore[no-any-return]


def digest_of(snapshot: bytes) -> bytes:
    """Digest a snapshot, to compare replicas."""
    return hashlib.sha256(snapshot).digest()
