"""A bucket and its roles."""

from __future__ import annotations

from slipstream.nats.link import NatsBucketLink
from slipstream.nats.reader import NatsKvReader
from slipstream.nats.watcher import NatsKvWatcher
from slipstream.nats.writer import NatsKvWriter


class NatsKvStore:
    """One JetStream key-value bucket."""

    def __init__(self, link: NatsBucketLink, *, per_key_ttl: bool) -> None:
        self._link = link
        self._per_key_ttl = per_key_ttl

    @property
    def name(self) -> str:
        """The bucket's name."""
        return self._link.bucket

    def reader(self) -> NatsKvReader:
        """Give the reading role."""
        return NatsKvReader(self._link)

    def watcher(self) -> NatsKvWatcher:
        """Give the watching role."""
        return NatsKvWatcher(self._link)

    def writer(self) -> NatsKvWriter:
        """Give the writing role."""
        return NatsKvWriter(self._link)

    def ttl(self) -> NatsKvWriter | None:
        """Give the role of keys that expire, where the bucket allows them."""
        return NatsKvWriter(self._link) if self._per_key_ttl else None
