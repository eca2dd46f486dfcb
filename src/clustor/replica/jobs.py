"""What is read from disk while the replica runs: jobs that a driver may run on any thread."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from clustor.log.keys import KeyRing
from clustor.log.logmap import LogMap
from clustor.log.reader import read_entries
from clustor.log.steps import Storage
from clustor.log.types import Entry, LogIndex
from clustor.raft.memory_log import ENTRY_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read entries that are durable, up to a number of bytes but at least one."""

    keys: KeyRing
    entries: LogMap  # a copy: the log goes on while the job runs
    first_index: LogIndex
    last_index: LogIndex
    bytes_max: int

    def run(self, storage: Storage) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        for entry in read_entries(
            storage, self.keys, self.entries, self.first_index, self.last_index
        ):
            size += len(entry.payload) + ENTRY_OVERHEAD_BYTES
            if found and size > self.bytes_max:
                break
            found.append(entry)
        return found


def frozen_map(entries: LogMap) -> LogMap:
    """Copy a map: its extents are few, one for a segment or a truncation."""
    return copy.deepcopy(entries)
