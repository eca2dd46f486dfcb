"""The words of the store: revisions, records, limits, and why a command was refused."""

from __future__ import annotations

from enum import IntEnum
from typing import NewType

import msgspec

Key = NewType("Key", bytes)
# Counts the commands that changed something; 0 is the empty store, and "no such key".
Revision = NewType("Revision", int)
ClientId = NewType("ClientId", bytes)  # drawn anew by each incarnation of a client
StoreId = NewType("StoreId", bytes)  # drawn when a store is created; tells it from a later one


class KvRecord(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """What one revision did to one key; never changed once made.

    `version` counts the puts since the key was created. A record of version 0 is the
    tombstone of a key: it stands among the events only, never among the live keys.
    """

    key: Key
    value: bytes
    create_revision: Revision
    mod_revision: Revision
    version: int
    expires_ms: int  # 0: never

    @property
    def is_delete(self) -> bool:
        return self.version == 0


class KvLimits(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True, frozen=True):
    """Bounds that all replicas of a store share; they travel in its snapshots."""

    key_bytes_max: int = 1024
    value_bytes_max: int = 1024 * 1024
    txn_operations_max: int = 128
    # A page of records ends when its keys and values pass this; it holds at least one record.
    reply_bytes_max: int = 4 * 1024 * 1024
    # Beyond either of these the oldest events are compacted away, whole revisions at a time.
    events_max: int = 100_000
    events_bytes_max: int = 64 * 1024 * 1024
    # Beyond either of these the client that wrote least recently is forgotten.
    clients_max: int = 10_000
    client_replies_bytes_max: int = 8 * 1024 * 1024


class ErrorCode(IntEnum):
    """Why a command was refused. Numbers are on the wire: never reuse one."""

    MALFORMED = 1  # not a command of this version
    KEY_EMPTY = 2
    KEY_TOO_LARGE = 3
    VALUE_TOO_LARGE = 4
    TOO_MANY_OPERATIONS = 5
    OVERLAPPING_OPERATIONS = 6  # two operations of a transaction write one key
    REPLY_TOO_LARGE = 7  # the reads of a transaction together
    FUTURE_REVISION = 8
    SEQUENCE_TOO_OLD = 9  # a later request of this client was applied already
    CLIENT_UNKNOWN = 10  # not its first request, and its earlier ones are forgotten
    CLIENT_ID_TOO_LARGE = 11
    KEY_RESERVED = 12  # of a prefix that an embedding machine changes by its own commands only


class EventsCompacted(msgspec.Struct, frozen=True):
    """The events that were asked for are gone: list the keys, then watch from their revision."""

    # The oldest revision that `events_since` still takes.
    oldest_available: Revision
    revision: Revision


class NotYet(msgspec.Struct, frozen=True):
    """This replica is behind the revision that was asked for, or the store is another one."""

    revision: Revision


class Events(msgspec.Struct, frozen=True):
    """Events in order. All of a revision's events are in it, or none."""

    events: list[KvRecord]
    # Nothing that was asked for is missing up to here: resume from this revision.
    through: Revision
    more: bool
