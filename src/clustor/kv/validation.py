"""The limits of keys and values, as refusals."""

from __future__ import annotations

from clustor.kv.commands import KvRefused
from clustor.kv.types import ErrorCode, KvLimits


def refuse_key(limits: KvLimits, key: bytes) -> KvRefused | None:
    if not key:
        return KvRefused(ErrorCode.KEY_EMPTY)
    if len(key) > limits.key_bytes_max:
        return KvRefused(ErrorCode.KEY_TOO_LARGE, len(key), limits.key_bytes_max)
    return None


def refuse_write(limits: KvLimits, key: bytes, value: bytes) -> KvRefused | None:
    if len(value) > limits.value_bytes_max:
        return KvRefused(ErrorCode.VALUE_TOO_LARGE, len(value), limits.value_bytes_max)
    return refuse_key(limits, key)
