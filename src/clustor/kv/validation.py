"""The limits of keys and values, as refusals."""

from __future__ import annotations

from clustor.kv.commands import Refused
from clustor.kv.types import ErrorCode, Limits


def refuse_key(limits: Limits, key: bytes) -> Refused | None:
    if not key:
        return Refused(ErrorCode.KEY_EMPTY)
    if len(key) > limits.key_bytes_max:
        return Refused(ErrorCode.KEY_TOO_LARGE, len(key), limits.key_bytes_max)
    return None


def refuse_write(limits: Limits, key: bytes, value: bytes) -> Refused | None:
    if len(value) > limits.value_bytes_max:
        return Refused(ErrorCode.VALUE_TOO_LARGE, len(value), limits.value_bytes_max)
    return refuse_key(limits, key)
