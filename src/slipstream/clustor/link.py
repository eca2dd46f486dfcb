"""One bucket's way to the store: commands with mapped errors, its facts, and states of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from clustor.kv import (
    CasRevision,
    Command,
    Found,
    Get,
    Key,
    KvRecord,
    ReadRange,
    RecordPage,
    Reply,
    prefix_end,
)
from clustor.runtime.kv.client import KvClient, KvRejected, KvUnavailable, WatchCompacted
from clustor.runtime.kv.stream import NEVER_REACHED, WatchEvents
from slipstream.clustor.layout import (
    MARK_BYTES,
    BucketFacts,
    BucketLayout,
    encode_bucket,
    read_bucket,
)
from slipstream.errors import (
    BucketUnavailable,
    ConnectionFailed,
    InvalidKey,
    KvError,
    Misuse,
    NotConnected,
    StoreFailure,
    Timeout,
)
from slipstream.types import StoreConfig

_PAGE_RECORDS: Final = 4_096
_PAGE_EVENTS: Final = 1_024
_STATE_ATTEMPTS: Final = 3
_KEY_REFUSALS: Final = ("KEY_TOO_LARGE", "KEY_EMPTY")


@dataclass(frozen=True, slots=True)
class PrefixState:
    """The records of some prefixes as they stood at one revision."""

    records: dict[Key, KvRecord]
    revision: int


@contextmanager
def speaking(operation: str) -> Iterator[None]:
    """Speak of the client's failures in our words.

    An unknown outcome is a `Timeout`, never a refusal: the write may have happened, or may yet.
    The client has sent it under one request id all the time, so that it happens at most once.
    """
    try:
        yield
    except KvUnavailable as error:
        outcome = "unknown" if error.maybe_applied else "not done"
        raise Timeout(str(error), operation=operation, outcome=outcome) from error
    except KvRejected as error:
        raise _from_refusal(operation, error) from error


def _from_refusal(operation: str, error: KvRejected) -> KvError | Misuse:
    if error.reason.startswith(_KEY_REFUSALS):
        return InvalidKey("the store cannot carry this key", cause=error.reason)
    if error.reason == "NoSuchGroup":
        return ConnectionFailed("the cluster has no such group", operation=operation)
    return StoreFailure("the store refused", operation=operation, cause=error.reason)


class ClustorBucketLink:
    """What the roles of one bucket share."""

    def __init__(self, client: KvClient, layout: BucketLayout) -> None:
        self.client = client
        self.layout = layout
        self.born = 0
        """The life of the bucket that writes are bound to; follows `facts`."""

    async def execute(self, operation: str, command: Command) -> Reply:
        """Run one command, once, within the client's time."""
        if self.client.is_closed:
            raise NotConnected("the connection was shut down")
        with speaking(operation):
            return await self.client.execute(command)

    async def open(self, config: StoreConfig) -> BucketFacts:
        """Make sure that the bucket is there; an existing one keeps its settings."""
        try:
            return await self.facts()
        except BucketUnavailable:
            value = encode_bucket(os.urandom(MARK_BYTES), config)
            await self.execute("create a bucket", CasRevision(self.layout.record, 0, value))
            return await self.facts()  # ours, or that of whoever was quicker

    async def facts(self) -> BucketFacts:
        """Ask what this bucket is now; raises `BucketUnavailable` where there is none."""
        reply = await self.execute("open a bucket", Get(self.layout.record))
        assert isinstance(reply, Found)
        return self.facts_of(reply.record, reply.revision)

    def facts_of(self, record: KvRecord | None, revision: int) -> BucketFacts:
        """Read the bucket's record, and bind later writes to this life of it."""
        if record is None:
            raise BucketUnavailable("there is no such bucket", bucket=self.layout.name)
        facts = read_bucket(record, revision)
        self.born = facts.born
        return facts

    async def poll(
        self,
        prefixes: Sequence[bytes],
        revision: int,
        *,
        events_max: int = _PAGE_EVENTS,
        reached: int = NEVER_REACHED,
    ) -> WatchEvents:
        """Give some of what happened after `revision`; raises `WatchCompacted`, too."""
        with speaking("watch"):
            return await self.client.poll(
                prefixes, revision, events_max=events_max, reached=reached
            )

    async def state(self, prefixes: Sequence[bytes]) -> PrefixState:
        """Give every record with one of these prefixes, as of one revision."""
        for _ in range(_STATE_ATTEMPTS):
            try:
                return await self._state(prefixes)
            except WatchCompacted:
                continue
        raise StoreFailure("the history is compacted faster than the bucket can be listed")

    async def _state(self, prefixes: Sequence[bytes]) -> PrefixState:
        """Read page by page, then bring what was read first up to the revision of the last page."""
        pages = [page for prefix in prefixes for page in await self._pages(prefix)]
        records = {record.key: record for page in pages for record in page.records}
        revision, last = int(pages[0].revision), int(pages[-1].revision)
        while revision < last:
            found = await self.poll(prefixes, revision, reached=last)
            for event in found.events:
                if event.is_delete:
                    records.pop(event.key, None)
                else:
                    records[event.key] = event
            revision = found.through
        return PrefixState(records, revision)

    async def _pages(self, prefix: bytes) -> list[RecordPage]:
        start, end = prefix, prefix_end(prefix)
        pages: list[RecordPage] = []
        while not pages or pages[-1].more:
            page = await self.execute("list keys", ReadRange(start, end, _PAGE_RECORDS))
            assert isinstance(page, RecordPage)
            pages.append(page)
            if page.more:
                start = page.records[-1].key + b"\0"
        return pages
