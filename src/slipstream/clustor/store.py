"""A bucket and its roles."""

from __future__ import annotations

from slipstream.clustor.link import ClustorBucketLink
from slipstream.clustor.reader import ClustorKvReader
from slipstream.clustor.watcher import ClustorKvWatcher
from slipstream.clustor.writer import ClustorKvWriter
from slipstream.types import StoreConfig


class ClustorKvStore:
    """One bucket of a Clustor cluster; `config` is what it was created with."""

    def __init__(self, link: ClustorBucketLink, config: StoreConfig) -> None:
        self._link = link
        self.config = config

    @property
    def name(self) -> str:
        """The bucket's name."""
        return self._link.layout.name

    def reader(self) -> ClustorKvReader:
        """Give the reading role."""
        return ClustorKvReader(self._link)

    def watcher(self) -> ClustorKvWatcher:
        """Give the watching role."""
        return ClustorKvWatcher(self._link)

    def writer(self) -> ClustorKvWriter:
        """Give the writing role."""
        return ClustorKvWriter(self._link, self.config)

    def ttl(self) -> ClustorKvWriter:
        """Give the role of keys that expire: every bucket has it."""
        return ClustorKvWriter(self._link, self.config)
