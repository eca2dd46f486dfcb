"""The last request of each client and its reply, so that a repeated request is not redone.

The table is bounded: the client that wrote least recently is forgotten first. To forget must
not mean to do again: a client that is not known may only begin, with sequence 1, and any
other sequence of it is refused. What remains is a repeated first request after as many other
clients wrote as the table holds; a client whose first request must not be redone makes a
harmless one before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from clustor.kv.commands import KvRefused, encode_reply
from clustor.kv.fingerprint import fingerprint
from clustor.kv.types import ClientId, ErrorCode, KvLimits

CLIENT_ID_BYTES_MAX = 64


class ClientEntry(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """The latest request of one client, and the very bytes of its reply."""

    client_id: ClientId
    sequence: int
    reply: bytes


class ClientTable:
    """Entries in the order of their last request, oldest first: that order is replicated."""

    def __init__(self, limits: KvLimits, entries: Iterable[ClientEntry] = ()) -> None:
        self._limits = limits
        self._entries: OrderedDict[ClientId, ClientEntry] = OrderedDict()
        self._bytes = 0
        self._stamps: dict[ClientId, int] = {}
        self.stamp = 0
        """Counts the requests that were remembered; each entry has that of its own."""
        self.fingerprint_sum = 0
        for entry in entries:
            self._add(entry)

    def known_reply(self, client_id: ClientId, sequence: int) -> bytes | None:
        """Return the reply to a request that must not be applied, or None to apply it."""
        if len(client_id) > CLIENT_ID_BYTES_MAX:
            return encode_reply(
                KvRefused(ErrorCode.CLIENT_ID_TOO_LARGE, len(client_id), CLIENT_ID_BYTES_MAX)
            )
        entry = self._entries.get(client_id)
        if entry is None:
            if sequence == 1:
                return None
            return encode_reply(KvRefused(ErrorCode.CLIENT_UNKNOWN, sequence, 1))
        if sequence > entry.sequence:
            return None
        if sequence == entry.sequence:
            return entry.reply
        return encode_reply(KvRefused(ErrorCode.SEQUENCE_TOO_OLD, sequence, entry.sequence))

    def remember(self, client_id: ClientId, sequence: int, reply: bytes) -> None:
        """Replace the client's entry, and forget the oldest beyond the limits."""
        if client_id in self._entries:
            self._drop(client_id)
        self._add(ClientEntry(client_id, sequence, reply))
        limits = self._limits
        while len(self._entries) > limits.clients_max or (
            self._bytes > limits.client_replies_bytes_max and len(self._entries) > 1
        ):
            self._drop(next(iter(self._entries)))

    def use_limits(self, limits: KvLimits) -> None:
        """Keep other limits from the next request on."""
        self._limits = limits

    def __len__(self) -> int:
        return len(self._entries)

    def since(self, stamp: int) -> list[ClientEntry]:
        """Return what was remembered after `stamp` was the newest, oldest first."""
        found: list[ClientEntry] = []
        for entry in reversed(self._entries.values()):
            if self._stamps[entry.client_id] <= stamp:
                break
            found.append(entry)
        return found[::-1]

    def merge(self, entries: Iterable[ClientEntry], count: int) -> None:
        """Take what another table of the same past has remembered since; it has `count` now."""
        for entry in entries:
            if entry.client_id in self._entries:
                self._drop(entry.client_id)
            self._add(entry)
        while len(self._entries) > count:
            self._drop(next(iter(self._entries)))

    def copy(self) -> list[ClientEntry]:
        return list(self._entries.values())

    def _add(self, entry: ClientEntry) -> None:
        self._entries[entry.client_id] = entry
        self.stamp += 1
        self._stamps[entry.client_id] = self.stamp
        self._bytes += len(entry.reply)
        self.fingerprint_sum += fingerprint(entry)

    def _drop(self, client_id: ClientId) -> None:
        entry = self._entries.pop(client_id)
        del self._stamps[client_id]
        self._bytes -= len(entry.reply)
        self.fingerprint_sum -= fingerprint(entry)
