"""Where a bucket lies in the store, and how its records are read. Pure.

    slipstream/bucket/<name>/         the bucket's record: settings, and a mark drawn at its birth
    slipstream/entry/<name>/<key>     one key of it

A name has no `/`, so that no bucket's prefix covers another's keys, and the keys of a bucket lie
in the order of their own bytes. An empty value is a deletion that still stands: it has a revision
for conditional writes, and a time to live, so that deletions do not pile up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from clustor.kv import Key, KvRecord
from slipstream.errors import InvalidKey, StoreFailure
from slipstream.keys import checked_key, checked_prefix
from slipstream.types import (
    UNKNOWN_VERSION,
    KvEntry,
    KvUpdate,
    StoreConfig,
    UpdateKind,
    VersionToken,
    WatchEvent,
    WatchScope,
)

MARK_BYTES: Final = 16
_BUCKETS: Final = b"slipstream/bucket/"
_ENTRIES: Final = b"slipstream/entry/"
_FORMAT_VERSION: Final = 1
_WITNESS_MASK: Final = (1 << 63) - 1


class _BucketRecord(msgspec.Struct, frozen=True):
    """What stands at a bucket's record; never changed while the bucket lives."""

    format_version: int
    mark: bytes
    config: StoreConfig


_record_decoder = msgspec.msgpack.Decoder(_BucketRecord)


def encode_bucket(mark: bytes, config: StoreConfig) -> bytes:
    """Give the value of a new bucket's record; `mark` is drawn for this life of it."""
    return msgspec.msgpack.encode(_BucketRecord(_FORMAT_VERSION, mark, config))


@dataclass(frozen=True, slots=True)
class BucketFacts:
    """One life of a bucket.

    `identity` names it: no other life has its mark, and in one store no other has its revision
    of birth. `revision` is the store's at the moment of reading.
    """

    identity: bytes
    born: int
    revision: int
    config: StoreConfig


def read_bucket(record: KvRecord, revision: int) -> BucketFacts:
    """Read a bucket's record as it stood at `revision`; raises `StoreFailure`."""
    try:
        held = _record_decoder.decode(record.value)
    except msgspec.DecodeError as error:
        raise StoreFailure("the bucket's record cannot be read", cause=str(error)) from error
    if held.format_version != _FORMAT_VERSION:
        raise StoreFailure("a bucket of another version", version=held.format_version)
    born = record.create_revision
    digest = hashlib.blake2b(held.mark + born.to_bytes(8, "big"), digest_size=8).digest()
    return BucketFacts(digest, born, revision, held.config)


class BucketLayout:
    """The keys of one bucket."""

    def __init__(self, name: str) -> None:
        if not name or not all(
            mark.isascii() and (mark.isalnum() or mark in "-_") for mark in name
        ):
            raise InvalidKey("a bucket name has letters, digits, - and _ only", bucket=name)
        self.name = name
        self.record = Key(_BUCKETS + name.encode() + b"/")
        self._entries = _ENTRIES + name.encode() + b"/"

    def key(self, key: str) -> Key:
        """Give where a key lies; raises `InvalidKey`."""
        return Key(self._entries + _encoded(checked_key(key)))

    def prefix(self, prefix: str) -> bytes:
        """Give where the keys with a prefix lie; raises `InvalidKey`."""
        return self._entries + _encoded(checked_prefix(prefix))

    def prefixes(self, scope: WatchScope) -> list[bytes]:
        """Give the prefixes of a scope, none of which covers another."""
        kept: list[bytes] = []
        for prefix in sorted(self.prefix(each) for each in scope.prefixes):
            if not kept or not prefix.startswith(kept[-1]):
                kept.append(prefix)
        return kept

    def entry(self, record: KvRecord) -> KvEntry:
        """Read what stands at a key."""
        version = VersionToken.from_u64(record.mod_revision)
        return KvEntry(self._name_of(record), record.value, version, not record.value)

    def updates(self, records: Sequence[KvRecord]) -> list[WatchEvent]:
        """Turn records in order of their revisions, each revision's whole, into watch events.

        One revision may have changed several keys (a batch of expiries): only the last of them
        carries it, because a cursor at a revision means that all of it was seen.
        """
        updates: list[WatchEvent] = []
        for record, following in zip_longest(records, records[1:]):
            kind = UpdateKind.PUT if record.value else UpdateKind.DELETE
            version, mark = UNKNOWN_VERSION, 0
            if following is None or following.mod_revision != record.mod_revision:
                version, mark = VersionToken.from_u64(record.mod_revision), witness(record)
            updates.append(KvUpdate(kind, self._name_of(record), record.value, version, mark))
        return updates

    def _name_of(self, record: KvRecord) -> str:
        return record.key[len(self._entries) :].decode()


def witness(record: KvRecord) -> int:
    """Give a stamp of what a revision did, to tell it from the same revision of another past."""
    return xxh3_64_intdigest(msgspec.msgpack.encode(record)) & _WITNESS_MASK | 1


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidKey("a key is text that UTF-8 can carry", cause=error.reason) from error
