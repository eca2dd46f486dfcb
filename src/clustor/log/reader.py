"""Read entries back: from a log that is open, from a directory without its writer, from archives.

Nothing is yielded that is not authentic, and a reader of a directory yields only what the ledger
proves, unless asked for more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from clustor.log.errors import CorruptLog, MissingFile
from clustor.log.image import LogImage, read_identity, read_image
from clustor.log.keys import KeyRing
from clustor.log.logmap import LogMap
from clustor.log.scan import SegmentScanner
from clustor.log.steps import Storage
from clustor.log.types import Entry, LogIndex


def read_entries(
    storage: Storage, keys: KeyRing, entries: LogMap, first_index: int, last_index: int
) -> Iterator[Entry]:
    """Yield the live entries from `first_index` through `last_index`.

    Raises LogMisuse for an index that is not live, CorruptLog where the bytes are not what was
    written; what was yielded before is good.
    """
    index = first_index
    while index <= last_index:
        extent, offset = entries.locate(index)
        stop = min(last_index, extent.last_index)
        scanner = SegmentScanner(storage, extent.segment_seq, keys)
        for run in scanner.runs(offset):
            for entry in run.frames.entries:
                if index == entry.index <= stop:
                    yield entry
                    index += 1
            if index > stop:
                break
        else:
            raise scanner.problem or CorruptLog("a segment ends early", index=index)


class LogReader:
    """A log directory, read without its writer. Opening it authenticates every byte."""

    def __init__(self, storage: Storage, keys: KeyRing, image: LogImage) -> None:
        self._storage = storage
        self._keys = keys
        self.image = image

    @classmethod
    def open(
        cls, storage: Storage, keys: KeyRing, progress: Callable[[int], None] = lambda _: None
    ) -> LogReader:
        """Raises MissingFile where there is no log, and what `read_image` raises."""
        identity = read_identity(storage)
        if identity is None:
            raise MissingFile("there is no log here")
        return cls(storage, keys, read_image(storage, keys, identity, progress))

    @property
    def proven_index(self) -> LogIndex:
        """The last entry that the ledger proves and that could be read."""
        return min(self.image.facts.proven_index, self.image.entries.last_index)

    def entries(self, first_index: int = 1, *, unproven: bool = False) -> Iterator[Entry]:
        """Yield entries from `first_index`, or from the log's start where that is later.

        Raises the problem at once where the ledger is damaged: a truncation may be lost in it.
        """
        if self.image.ledger.damaged_at is not None and self.image.problem is not None:
            raise self.image.problem
        first = max(first_index, self.image.entries.base_index + 1)
        last = self.image.entries.last_index if unproven else self.proven_index
        return read_entries(self._storage, self._keys, self.image.entries, first, last)
