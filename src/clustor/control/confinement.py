"""Where plain key-value commands may write: in prefixes that no object of ours stands in."""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from clustor.kv import (
    CasRevision,
    CasValue,
    Command,
    Compact,
    Delete,
    DeleteRange,
    ErrorCode,
    Expire,
    Get,
    KvRefused,
    Put,
    ReadRange,
    Txn,
    TxnDelete,
    TxnDeleteRange,
    TxnGet,
    TxnOperation,
    TxnPut,
    decode_command,
    encode_reply,
    prefix_end,
)

USER_PREFIXES: Final = (b"user/", b"slipstream/")
"""Users' own keys, and the buckets that Slipstream keeps in this store."""

_RESERVED: Final = encode_reply(KvRefused(ErrorCode.KEY_RESERVED))


def refuse_reserved(encoded: bytes) -> bytes | None:
    """Return the refusal of a key-value command that writes where it may not; None: it may.

    Reads may go anywhere. What does not decode is left for the store to refuse.
    """
    try:
        command = decode_command(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if _is_confined(command) else _RESERVED


def _is_confined(command: Command) -> bool:
    match command:
        case Get() | ReadRange() | Expire():
            return True  # what expires was given its time where it may be written
        case Put() | CasRevision() | CasValue() | Delete():
            return command.key.startswith(USER_PREFIXES)
        case DeleteRange():
            return _covers(command.start, command.end)
        case Txn():
            return all(map(_is_confined_operation, command.operations))
        case Compact():
            return False  # the history is everybody's: CompactHistory
        case _:
            assert_never(command)


def _is_confined_operation(operation: TxnOperation) -> bool:
    match operation:
        case TxnGet():
            return True
        case TxnPut() | TxnDelete():
            return operation.key.startswith(USER_PREFIXES)
        case TxnDeleteRange():
            return _covers(operation.start, operation.end)
        case _:
            assert_never(operation)


def _covers(start: bytes, end: bytes | None) -> bool:
    """Say whether one of the prefixes covers the whole range."""
    for prefix in USER_PREFIXES:
        last = prefix_end(prefix)
        if start.startswith(prefix) and end is not None and last is not None and end <= last:
            return True
    return False
