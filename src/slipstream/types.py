"""The words of the library: entries, updates, versions, cursors, scopes, settings."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import Final, Self

from slipstream.errors import InvalidFormat, Misuse

_U64_BYTES: Final = 8
_VERSIONSTAMP_BYTES: Final = 10
_TOKEN_SIZES: Final = frozenset({0, _U64_BYTES, _VERSIONSTAMP_BYTES})
_BINDING_BYTES: Final = 24  # store identity, scope identity, witness: eight bytes each


@dataclass(frozen=True, slots=True)
class VersionToken:
    """One key's version, opaque to callers: 8 bytes (a revision), 10 (a versionstamp), or none."""

    raw: bytes = b""

    def __post_init__(self) -> None:
        if len(self.raw) not in _TOKEN_SIZES:
            raise Misuse("a version token has 0, 8 or 10 bytes", got=len(self.raw))

    @classmethod
    def from_u64(cls, revision: int) -> Self:
        """Make the token of a revision number."""
        return cls(revision.to_bytes(_U64_BYTES, "big"))

    def as_u64(self) -> int | None:
        """Give the revision number, or None where the token is not one."""
        return int.from_bytes(self.raw, "big") if len(self.raw) == _U64_BYTES else None

    @property
    def is_unknown(self) -> bool:
        """True for a version that could not be told; it never moves a cursor."""
        return not self.raw


UNKNOWN_VERSION: Final = VersionToken()


@dataclass(frozen=True, slots=True)
class WatchCursor:
    """A resume position, bound to the life of the store and the scope that it was taken from.

    `position` is empty for 'from the beginning'. `store` and `scope` identify what was watched;
    `witness` is the store's own stamp on the revision at `position`, so that a store restored
    from an older copy is told from the one that gave the cursor. All three may be absent.
    """

    position: bytes = b""
    store: bytes = b""
    scope: bytes = b""
    witness: int = 0

    def __post_init__(self) -> None:
        if len(self.position) not in _TOKEN_SIZES:
            raise Misuse("a cursor position has 0, 8 or 10 bytes", got=len(self.position))
        if len(self.store) not in {0, 8} or len(self.scope) not in {0, 8}:
            raise Misuse("a cursor's identities have 0 or 8 bytes")

    @classmethod
    def from_u64(cls, revision: int) -> Self:
        """Make an unbound cursor at a revision number."""
        return cls(revision.to_bytes(_U64_BYTES, "big"))

    def as_u64(self) -> int | None:
        """Give the revision number, or None where the position is not one."""
        return int.from_bytes(self.position, "big") if len(self.position) == _U64_BYTES else None

    @property
    def is_none(self) -> bool:
        """True when there is nothing to resume from."""
        return not self.position

    def encode(self) -> bytes:
        """Give the bytes that a fold, a lease or a manifest stores."""
        if not self.position or not (self.store or self.scope or self.witness):
            return self.position
        return (
            self.position
            + self.store.ljust(8, b"\0")
            + self.scope.ljust(8, b"\0")
            + self.witness.to_bytes(8, "big")
        )

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Read what `encode` wrote; refuse a length that it never writes."""
        if len(raw) in _TOKEN_SIZES:
            return cls(raw)
        size = len(raw) - _BINDING_BYTES
        if size not in {_U64_BYTES, _VERSIONSTAMP_BYTES}:
            raise InvalidFormat("not a watch cursor", cursor_bytes=len(raw))
        store, scope = raw[size : size + 8], raw[size + 8 : size + 16]
        return cls(
            raw[:size],
            store if store != bytes(8) else b"",
            scope if scope != bytes(8) else b"",
            int.from_bytes(raw[size + 16 :], "big"),
        )


NO_CURSOR: Final = WatchCursor()


class UpdateKind(enum.Enum):
    """What happened to a key."""

    PUT = "put"
    DELETE = "delete"
    PURGE = "purge"


@dataclass(slots=True)
class KvUpdate:
    """One watch event. Not frozen: a watch makes one of these per message (see STYLE, Sizes).

    `witness` is the store's stamp on this revision (NATS: its time in microseconds), 0 if none.
    """

    kind: UpdateKind
    key: str
    value: bytes = b""
    version: VersionToken = UNKNOWN_VERSION
    witness: int = 0


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Marks, once and in order, that everything that stood at the start has been delivered."""


WatchEvent = KvUpdate | CaughtUp


@dataclass(frozen=True, slots=True)
class KvEntry:
    """One key as it was read. `deleted` entries are seen through `entry()` alone."""

    key: str
    value: bytes
    version: VersionToken
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class WatchScope:
    """What a watch covers: every key, or the keys with any of some prefixes."""

    prefixes: tuple[str, ...] = ("",)

    @classmethod
    def all(cls) -> Self:
        """Cover every key."""
        return cls()

    @classmethod
    def prefix(cls, prefix: str) -> Self:
        """Cover the keys that start with `prefix`."""
        return cls((prefix,))

    @classmethod
    def of_prefixes(cls, *prefixes: str) -> Self:
        """Cover the union of several prefixes with one consumer."""
        if not prefixes:
            raise Misuse("a scope of prefixes needs at least one")
        return cls(tuple(sorted(set(prefixes))))

    @property
    def is_all(self) -> bool:
        """True when no key is left out."""
        return "" in self.prefixes

    def covers(self, key: str) -> bool:
        """Say whether the key is in scope."""
        return key.startswith(self.prefixes)

    @property
    def identity(self) -> bytes:
        """Eight bytes that differ between scopes, for binding a cursor."""
        words = ("",) if self.is_all else self.prefixes
        return hashlib.blake2b("\n".join(words).encode(), digest_size=8).digest()


class StorageType(enum.Enum):
    """Where the backend keeps a bucket."""

    FILE = "file"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How to create a bucket; an existing one is taken as it is."""

    bytes_max: int | None = 10 * 1024 * 1024
    history_max: int = 1
    replicas: int = 1
    age_seconds_max: float | None = None
    storage: StorageType = StorageType.FILE
    per_key_ttl: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionCapabilities:
    """What the backend can do; advisory, for callers that want to branch."""

    compare_and_set: bool = False
    streaming_watch: bool = False
    resumable_watch: bool = False
    multi_prefix_watch: bool = False
    per_key_ttl: bool = False


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """When `watch_applied` flushes, and how far the watch may run ahead of it."""

    window_seconds: float = 0.010
    updates_max: int = 100
    channel_capacity: int = 256

    def __post_init__(self) -> None:
        if self.window_seconds < 0 or self.updates_max < 1 or self.channel_capacity < 1:
            raise Misuse("a batch needs a window ≥ 0, and room for one update")


@dataclass(slots=True)
class AppliedReport:
    """What one run of `watch_applied` did; `cursor` names only what was applied."""

    cursor: WatchCursor = NO_CURSOR
    resumed_from: WatchCursor = NO_CURSOR
    delivered: int = 0
    applied: int = 0
    rejected: int = 0
    flushes: int = 0
    store_failures: int = 0
    audited: bool = False
    resynced: bool = False
    stale_keys_removed: int = 0
    stale_keys_unchecked: bool = False
    caught_up: bool = False
    exports: int = 0
