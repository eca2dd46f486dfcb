"""Which keys and prefixes a backend can carry."""

from __future__ import annotations

from typing import Final

from slipstream.errors import InvalidKey

_FORBIDDEN: Final = frozenset(" \t\r\n\0*>")
_KEY_BYTES_MAX: Final = 0xFFFF  # what the fold's file format can say


def checked_key(key: str) -> str:
    """Give the key back, or raise `InvalidKey`: no blanks, no wildcards, no empty token."""
    if not _FORBIDDEN.isdisjoint(key) or "" in key.split("."):
        raise InvalidKey("a key has no blanks, no * or >, and no empty token", key=key)
    if len(key) > _KEY_BYTES_MAX // 4 and len(key.encode()) > _KEY_BYTES_MAX:
        raise InvalidKey("a key has at most 65,535 bytes", key_bytes=len(key.encode()))
    return key


def checked_prefix(prefix: str) -> str:
    """Give the prefix back, or raise `InvalidKey`: it is plain text, never a pattern.

    A server takes `k*` for the literal token and silently matches nothing; so we refuse it.
    """
    if not _FORBIDDEN.isdisjoint(prefix) or prefix.startswith(".") or ".." in prefix:
        raise InvalidKey("a prefix is plain text, not a pattern", prefix=prefix)
    return prefix
