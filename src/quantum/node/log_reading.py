"""Entries of a partition's log, read from this node's own disk and beside its loop.

A reader is made in the loop and used in a thread: it has a copy of the map of the log, so that the
log may go on, and sees only what is committed and durable here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from clustor.log.errors import LogError
from clustor.log.image import gather_facts
from clustor.log.keys import KeyRing
from clustor.log.ledger import LEDGER_FILE, scan_ledger
from clustor.log.reader import read_entries
from clustor.log.types import Entry, EntryKind
from clustor.replica import decode_batch
from clustor.replica.jobs import frozen_map
from quantum.broker.mentions import stamp_of
from quantum.partition.leader import PartitionLeader

READ_BYTES_MAX: Final = 64 << 20
"""What one question may cost of each log."""
_LOOKS: Final = 40
_LOOK_SECONDS: Final = 0.025
"""A follower hears of a commit with its leader's next word, and that is soon."""


async def wait_for_entry(prg: PartitionLeader, index: int) -> None:
    """Wait a moment for an entry that this replica may not know to be committed yet."""
    replica = prg.group.replica
    for _ in range(_LOOKS):
        core = replica.group.core
        if min(core.commit_index, replica.log.durable_index) >= index or replica.failed is not None:
            return
        await asyncio.sleep(_LOOK_SECONDS)


class CommittedLog:
    """One partition's log as this replica has it at a moment."""

    def __init__(self, prg: PartitionLeader, keys: KeyRing) -> None:
        replica = prg.group.replica
        core = replica.group.core
        self.number = prg.number
        self.group = int(prg.group.partition_id)
        self.settings = prg.broker.settings
        self.keys = keys
        self.base = int(replica.log.entries.base_index)
        self.durable_index = int(replica.log.durable_index)
        """Synced, as the writer of the log knows it."""
        self.last = min(int(core.commit_index), self.durable_index)
        self.mode = core.hard.durability_mode
        self.config = core.config
        self._entries = frozen_map(replica.log.entries)
        self.storage = prg.group.storage.again()
        self.is_cut = False
        """Whether reading ended before the log did."""

    def close(self) -> None:
        self.storage.close()

    def entry(self, index: int) -> Entry | None:
        """Read one entry from disk; None: it is not in this log, or not any more."""
        if not self.base < index <= self.last:
            return None
        return next(read_entries(self.storage, self.keys, self._entries, index, index))

    def entries(self, first: int) -> Iterator[Entry]:
        """Read entries from one on, as far as a question may."""
        first = max(first, self.base + 1)
        left = READ_BYTES_MAX
        if first > self.last:
            return
        for entry in read_entries(self.storage, self.keys, self._entries, first, self.last):
            yield entry
            left -= len(entry.payload) + 64
            if left <= 0:
                self.is_cut = True
                return

    def first_since(self, at_ms: int) -> int:
        """Return an index before which every entry is older, as far as their times tell."""
        low, high = self.base + 1, self.last
        while low < high:
            middle = (low + high) // 2
            stamp, at = self._stamp_from(middle, high)
            if stamp and stamp < at_ms:
                low = at + 1
            else:
                high = middle
        return low

    def _stamp_from(self, index: int, last: int) -> tuple[int, int]:
        """Return the first time that entries from here on say, and where."""
        for at in range(index, last + 1):
            entry = self.entry(at)
            if entry is not None and entry.kind is EntryKind.DATA:
                stamp = next(filter(None, map(stamp_of, commands_of(entry))), 0)
                if stamp:
                    return stamp, at
        return 0, last

    def proven_index(self) -> int:
        """Return how far the ledger on disk proves the log, and its writer has synced it."""
        size = self.storage.size(LEDGER_FILE)
        found = gather_facts(scan_ledger(self.storage.read(LEDGER_FILE, 0, size)))
        return min(int(found.proven_index), self.durable_index)


def commands_of(entry: Entry) -> list[bytes]:
    """Return the commands of an entry; none where it is not the machine's."""
    if entry.kind is not EntryKind.DATA:
        return []
    try:
        return decode_batch(entry.payload)
    except ValueError as error:
        raise LogError("an entry that is no batch", index=entry.index) from error
