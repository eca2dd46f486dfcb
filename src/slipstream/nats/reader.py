"""Reads: one message for one key, one ephemeral consumer for many."""

from __future__ import annotations

import asyncio
from typing import Any

import nats.js.errors
from nats.aio.msg import Msg
from nats.js import api

from slipstream.errors import StoreFailure, Timeout
from slipstream.keys import checked_key
from slipstream.nats.ack import parse_ack
from slipstream.nats.filters import plan_filters
from slipstream.nats.link import NatsBucketLink
from slipstream.nats.messages import kind_of, value_bytes_of
from slipstream.types import KvEntry, UpdateKind, VersionToken, WatchScope


class NatsKvReader:
    """Reads of one bucket, from its leader: a read sees every write acknowledged before it."""

    def __init__(self, link: NatsBucketLink) -> None:
        self._link = link

    async def get(self, key: str) -> KvEntry | None:
        """Give the live entry, or None when the key is absent or deleted."""
        entry = await self.entry(key)
        return None if entry is None or entry.deleted else entry

    async def entry(self, key: str) -> KvEntry | None:
        """Give what the bucket holds for the key, a deletion included."""
        subject = self._link.subject_prefix + checked_key(key)
        request = self._link.jetstream.get_msg(self._link.stream, subject=subject)
        try:
            message = await self._link.timed("read a key", request)
        except StoreFailure as error:
            if isinstance(error.__cause__, nats.js.errors.NotFoundError):
                return None
            raise
        value = message.data or b""
        kind = kind_of(message.headers, len(value))
        assert message.seq is not None
        version = VersionToken.from_u64(message.seq)
        return KvEntry(key, value, version, kind is not UpdateKind.PUT)

    async def keys(self, prefix: str = "") -> list[str]:
        """List the live keys in order; no value crosses the wire."""
        return [entry.key for entry in await self.versions(prefix) if not entry.deleted]

    async def scan(self, prefix: str = "") -> list[KvEntry]:
        """List the live entries in order of their keys."""
        entries = await self._last_per_subject(prefix, headers_only=False)
        return [entry for entry in entries if not entry.deleted]

    async def versions(self, prefix: str = "") -> list[KvEntry]:
        """List what stands for every key, deletions included, without values."""
        return await self._last_per_subject(prefix, headers_only=True)

    async def _last_per_subject(self, prefix: str, *, headers_only: bool) -> list[KvEntry]:
        plan = plan_filters(WatchScope.prefix(prefix), self._link.subject_prefix)
        # No acknowledgements: with them the server stops after 1,000 unacknowledged messages.
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT,
            ack_policy=api.AckPolicy.NONE,
            max_deliver=1,
            mem_storage=True,
            num_replicas=1,
            headers_only=headers_only,
            inactive_threshold=self._link.operation_seconds,
            filter_subjects=list(plan.subjects),
        )
        messages = await _drain(self._link, config)
        entries = [self._entry(message) for message in messages]
        in_scope = [entry for entry in entries if plan.accepts(entry.key)]
        return sorted(in_scope, key=lambda entry: entry.key.encode())

    def _entry(self, message: Msg) -> KvEntry:
        ack = parse_ack(message.reply)
        version = VersionToken() if ack is None else VersionToken.from_u64(ack.stream_sequence)
        kind = kind_of(message.headers, value_bytes_of(message.headers, message.data))
        key = message.subject[len(self._link.subject_prefix) :]
        return KvEntry(key, message.data, version, kind is not UpdateKind.PUT)


async def _drain(link: NatsBucketLink, config: api.ConsumerConfig) -> list[Msg]:
    """Collect everything that one ephemeral push consumer has to give, and remove it.

    The inbox is subscribed before the consumer exists: the server may deliver before an answer
    to the creation is read.
    """
    messages: list[Msg] = []
    finished, progress = asyncio.Event(), asyncio.Event()

    async def collect(message: Msg) -> None:
        messages.append(message)
        progress.set()
        ack = parse_ack(message.reply)
        if ack is None or ack.pending == 0:
            finished.set()

    config.deliver_subject = link.client.new_inbox()
    subscription = await link.client.subscribe(
        config.deliver_subject, cb=collect, pending_msgs_limit=0, pending_bytes_limit=0
    )
    info: Any = None
    try:
        info = await link.timed("scan", link.jetstream.add_consumer(link.stream, config))
        if info.num_pending + info.delivered.consumer_seq > 0:
            await _until_finished(finished, progress, link.operation_seconds)
    finally:
        await subscription.unsubscribe()
        if info is not None:
            removal = link.jetstream.delete_consumer(link.stream, info.name)
            await link.timed("remove a scan's consumer", removal)
    if any((ack := parse_ack(message.reply)) is None for message in messages):
        return messages
    sequences = [ack.consumer_sequence for m in messages if (ack := parse_ack(m.reply))]
    if sequences != list(range(1, len(sequences) + 1)):
        raise StoreFailure("a scan lost messages on the way", received=len(sequences))
    return messages


async def _until_finished(
    finished: asyncio.Event, progress: asyncio.Event, silence_seconds: float
) -> None:
    """Wait for the last message; a scan may be long, but it may not be silent."""
    while not finished.is_set():
        progress.clear()
        try:
            async with asyncio.timeout(silence_seconds):
                await progress.wait()
        except TimeoutError as error:
            raise Timeout("a scan fell silent", seconds=silence_seconds) from error
