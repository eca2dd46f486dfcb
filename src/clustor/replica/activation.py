"""`DefineActivate` in a group's own log: the entry at which a definition comes into force (§9.7).

The entry carries the definition itself: who replays the log needs nothing beside it.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from clustor.log.types import Entry, EntryKind
from clustor.replica.batch import decode_batch
from clustor.replica.machine import DefinableMachine, StateMachine


class Activation(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A bundle that the control plane's barrier let through, and on whose word it did."""

    bundle_id: str
    version: int
    sha256: bytes
    readiness_digest: bytes
    definition: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Activation)


def encode_activation(activation: Activation) -> bytes:
    return _encoder.encode(activation)


def decode_activation(payload: bytes) -> Activation:
    """Read an entry's payload; a ValueError means that it is no activation."""
    try:
        found = _decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError("not an activation") from error
    if sha256(found.definition).digest() != found.sha256:
        raise ValueError("the digest is not the definition's")
    return found


def apply_entry(machine: StateMachine, entry: Entry) -> list[bytes]:
    """Let a machine obey one committed entry, and return its replies; every replay does the same.

    What is malformed, or no word of this machine, changes nothing, on every replica.
    """
    if entry.kind is EntryKind.DATA:
        return machine.apply_batch(entry.index, commands_of(entry))
    if entry.kind is EntryKind.DEFINE_ACTIVATE and isinstance(machine, DefinableMachine):
        try:
            definition = decode_activation(entry.payload).definition
        except ValueError:
            return []
        machine.redefine(entry.index, definition)
    return []


def commands_of(entry: Entry) -> list[bytes]:
    """Return the commands of an entry; one that is no batch has none, on every replica."""
    try:
        return decode_batch(entry.payload)
    except ValueError:
        return []
