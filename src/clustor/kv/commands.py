"""Commands and replies, and their bytes: msgpack arrays whose first item is the kind.

The bytes are part of the log: a field is never removed, and a kind's number never reused.
Whoever proposes stamps `now_ms`; the machine itself has no clock.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from clustor.kv.types import ClientId, ErrorCode, Key, KvRecord, Revision

# Far below what msgpack can carry, so that no sum of two leaves it: 2**53 ms is 285,000 years.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Wire(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Positional, closed: an unknown field is a command of another version."""


# --- commands that read ---------------------------------------------------------------------


class Get(_Wire, tag=0):
    """Reply: `Found`."""

    key: Key


class ReadRange(_Wire, tag=1):
    """Read keys from `start` up to, not with, `end` (None: to the last). Reply: `RecordPage`."""

    start: bytes
    end: bytes | None
    limit: Count


# --- commands that write --------------------------------------------------------------------
# Each ends in its stamp and its request id. An empty `client_id` asks for no deduplication;
# otherwise the sequence starts at 1 and grows with every new request of that client.


class Put(_Wire, tag=2):
    """Reply: `KvWritten`. A put without a time to live makes the key permanent."""

    key: Key
    value: bytes
    ttl_ms: Count = 0
    now_ms: Count = 0
    client_id: ClientId = ClientId(b"")
    sequence: Count = 0


class CasRevision(_Wire, tag=3):
    """Put if the key was last changed at `expected` (0: is absent). `KvWritten`, `Conflict`."""

    key: Key
    expected: Count
    value: bytes
    ttl_ms: Count = 0
    now_ms: Count = 0
    client_id: ClientId = ClientId(b"")
    sequence: Count = 0


class CasValue(_Wire, tag=4):
    """Put if the key holds `expected` (None: is absent). Reply: `KvWritten` or `Conflict`."""

    key: Key
    expected: bytes | None
    value: bytes
    ttl_ms: Count = 0
    now_ms: Count = 0
    client_id: ClientId = ClientId(b"")
    sequence: Count = 0


class Delete(_Wire, tag=5):
    """Reply: `Deleted`, of 0 if there was nothing to delete."""

    key: Key
    now_ms: Count = 0
    client_id: ClientId = ClientId(b"")
    sequence: Count = 0


class DeleteRange(_Wire, tag=6):
    """Delete keys from `start` up to, not with, `end` (None: to the last). Reply: `Deleted`."""

    start: bytes
    end: bytes | None
    now_ms: Count = 0
    client_id: ClientId = ClientId(b"")
    sequence: Count = 0


class RevisionIs(_Wire, tag=0):
    """Holds if the key was last changed at `revision` (0: is absent)."""

    key: Key
    revision: Count


class ValueIs(_Wire, tag=1):
    """Holds if the key has this value (None: is absent)."""

    key: Key
    value: bytes | None


class TxnGet(_Wire, tag=0):
    """Read the key as it was before the transaction."""

    key: Key


class TxnPut(_Wire, tag=1):
    key: Key
    value: bytes
    ttl_ms: Count = 0


class TxnDelete(_Wire, tag=2):
    key: Key


class TxnDeleteRange(_Wire, tag=3):
    start: bytes
    end: bytes | None


Comparison: TypeAlias = RevisionIs | ValueIs
TxnOperation: TypeAlias = TxnGet | TxnPut | TxnDelete | TxnDeleteRange


class Txn(_Wire, tag=7):
    """If all comparisons hold do all operations, at one revision; otherwise none.

    No two operations may write one key. Reply: `TxnDone` or `TxnConflict`.
    """

    comparisons: list[Comparison]
    operations: list[TxnOperation]
    now_ms: Count = 0
    client_id: ClientId = ClientId(b"")
    sequence: Count = 0


class Compact(_Wire, tag=8):
    """Forget the events up to and with `revision`. Reply: `CompactedTo`."""

    revision: Count
    now_ms: Count = 0
    client_id: ClientId = ClientId(b"")
    sequence: Count = 0


class Expire(_Wire, tag=9):
    """Delete up to `limit` keys whose time has come, the earliest first. Reply: `Expired`."""

    now_ms: Count
    limit: Count
    client_id: ClientId = ClientId(b"")
    sequence: Count = 0


ReadCommand: TypeAlias = Get | ReadRange
WriteCommand: TypeAlias = (
    Put | CasRevision | CasValue | Delete | DeleteRange | Txn | Compact | Expire
)
Command: TypeAlias = ReadCommand | WriteCommand


# --- replies --------------------------------------------------------------------------------
# `revision` is the store's after the command.


class KvRefused(_Wire, tag=0):
    """Nothing was changed; `actual` passes `limit` where the code speaks of a limit."""

    code: ErrorCode
    actual: int = 0
    limit: int = 0


class Found(_Wire, tag=1):
    revision: Revision
    record: KvRecord | None


class RecordPage(_Wire, tag=2):
    """Records by key; `more` if a limit ended it: go on from the key after the last."""

    revision: Revision
    records: list[KvRecord]
    more: bool


class KvWritten(_Wire, tag=3):
    revision: Revision


class Conflict(_Wire, tag=4):
    """The condition did not hold; the key was last changed at `mod_revision` (0: absent)."""

    revision: Revision
    mod_revision: Revision


class Deleted(_Wire, tag=5):
    revision: Revision
    count: int


class TxnDone(_Wire, tag=6):
    """One result per operation: the record read, or None, or how many keys were deleted."""

    revision: Revision
    results: list[KvRecord | int | None]


class TxnConflict(_Wire, tag=7):
    """The comparison at `position` did not hold, nor was anything done."""

    revision: Revision
    position: int
    mod_revision: Revision


class CompactedTo(_Wire, tag=8):
    """`oldest_available` is the oldest revision from which a watch can go on."""

    revision: Revision
    oldest_available: Revision


class Expired(_Wire, tag=9):
    revision: Revision
    count: int
    more: bool


Reply: TypeAlias = (
    KvRefused
    | Found
    | RecordPage
    | KvWritten
    | Conflict
    | Deleted
    | TxnDone
    | TxnConflict
    | CompactedTo
    | Expired
)

_encoder = msgspec.msgpack.Encoder()
_command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)

encode_command = _encoder.encode
encode_reply = _encoder.encode
# Both raise msgspec.DecodeError; too deep a nesting raises RecursionError.
decode_command = _command_decoder.decode
decode_reply = _reply_decoder.decode


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the first key after all that start with `prefix`; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
