"""A draft: what one command reads, and what it would change; nothing stands before it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from clustor.control.indexes import Indexes
from clustor.control.objects import ControlObject, Object, canonical, decode_object, key_of
from clustor.control.types import RefusalCode
from clustor.kv import Key, KvRecord, RecordPage, prefix_end

_PAGE = 1024


class Refuse(Exception):  # it is a decision, not an error
    """A handler's decision to refuse; with `keep_changes` what was drafted stands all the same."""

    def __init__(
        self, code: RefusalCode, reason: str, *, keep_changes: bool = False, **facts: object
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.keep_changes = keep_changes
        self.facts = facts


class DraftReading(Protocol):
    """What can be read of a store: a machine's, a cache's."""

    def get(self, key: Key, /) -> KvRecord | None: ...

    def range(self, start: bytes, end: bytes | None, limit: int, /) -> RecordPage: ...


def find(store: DraftReading, kind: type[Object], *parts: str | int) -> Object | None:
    """Return an object as it stands, or None."""
    record = store.get(key_of(kind, *parts))
    return None if record is None else decode_object(kind, record.value)


def scan(store: DraftReading, kind: type[Object], *parts: str | int) -> Iterator[Object]:
    """Walk the objects of a kind (below `parts`) by key."""
    for record in scan_records(store, prefix_of(kind, *parts)):
        yield decode_object(kind, record.value)


def scan_records(store: DraftReading, prefix: bytes) -> Iterator[KvRecord]:
    """Walk the records below a prefix by key."""
    start, end = prefix, prefix_end(prefix)
    while True:
        page = store.range(start, end, _PAGE)
        yield from page.records
        if not page.more:
            return
        start = page.records[-1].key + b"\0"


def prefix_of(kind: type[ControlObject], *parts: str | int) -> bytes:
    key = key_of(kind, *parts)
    return key + b"/" if parts else key


class Draft:
    """Reads see what was drafted before them; `scan` sees what stands."""

    def __init__(self, store: DraftReading, indexes: Indexes, now_ms: int) -> None:
        self.store = store
        self.indexes = indexes
        self.now_ms = now_ms
        self.changes: dict[Key, bytes | None] = {}
        self.compact_through: int | None = None  # forget the history up to this revision

    def find(self, kind: type[Object], *parts: str | int) -> Object | None:
        key = key_of(kind, *parts)
        if key in self.changes:
            value = self.changes[key]
            return None if value is None else decode_object(kind, value)
        return find(self.store, kind, *parts)

    def need(self, kind: type[Object], *parts: str | int) -> Object:
        """Return the object, or refuse the call because there is none."""
        found = self.find(kind, *parts)
        if found is None:
            name = "/".join(map(str, parts))
            raise Refuse(RefusalCode.NOT_FOUND, f"no such {kind.__name__}", name=name)
        return found

    def absent(self, kind: type[ControlObject], *parts: str | int) -> None:
        """Refuse the call if there is such an object already."""
        if self.find(kind, *parts) is not None:
            name = "/".join(map(str, parts))
            raise Refuse(RefusalCode.ALREADY_EXISTS, f"{kind.__name__} exists", name=name)

    def scan(self, kind: type[Object], *parts: str | int) -> Iterator[Object]:
        return scan(self.store, kind, *parts)

    def put(self, value: ControlObject) -> None:
        self.changes[value.key()] = canonical(value)

    def delete(self, kind: type[ControlObject], *parts: str | int) -> None:
        self.changes[key_of(kind, *parts)] = None
