"""Entries for a slow follower: read from disk, because memory has let go of them."""

from __future__ import annotations

from collections.abc import Callable

from clustor.log.keys import KeyRing
from clustor.log.log import Log
from clustor.raft.group import Group
from clustor.raft.output import EntriesFetch
from clustor.replica.jobs import ReadEntries, frozen_map
from clustor.replica.reading import DiskReader


class Fetching:
    """Turns the group's fetches into jobs. What cannot be read any more is damage."""

    def __init__(
        self,
        keys: KeyRing,
        group: Group,
        log: Log,
        reader: DiskReader,
        damaged: Callable[[str], None],
    ) -> None:
        self._keys = keys
        self._group = group
        self._log = log
        self._reader = reader
        self._damaged = damaged

    def begin(self, fetch: EntriesFetch) -> None:
        job = ReadEntries(
            self._keys,
            frozen_map(self._log.entries),
            fetch.first_index,
            fetch.last_index,
            fetch.bytes_max,
        )

        def found(entries: object) -> None:
            assert isinstance(entries, list)
            self._group.fetched(fetch, entries)

        def failed(error: Exception) -> None:
            if fetch.first_index <= self._group.core.log.base_index:
                self._group.fetched(fetch, [])  # compacted meanwhile: a snapshot takes its place
            else:
                self._damaged(f"entries {fetch.first_index} and following: {error}")

        self._reader.submit(job, found, failed)
