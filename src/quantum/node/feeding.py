"""The feed of a node: its partitions' committed entries, page by page, for whoever has the keys.

    GET /v1/feed                                         which partitions, from where to where
    GET /v1/feed/TENANT/NUMBER?from=&bytes=&at=&proof=   a page of entries

Feeds are observers: they have a tenth of the snapshots' bandwidth, for each partition, and see
nothing while the gates are closed. Every answer that is no page says why, and whether to try
again: 403 never, 410 not here (the archive may have it), 429 and 503 later.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from clustor.log.errors import LogError
from clustor.log.keys import KeyRing
from clustor.log.types import Entry, LogIndex
from clustor.raft.memory_log import MemoryLog
from clustor.replica.jobs import ReadEntries, frozen_map
from clustor.runtime.disk import DirectoryStorage
from clustor.snapshot.bandwidth import Budget, observer_bytes_per_second
from clustor.wall_clock import wall_clock_ms
from quantum.archive.feed_page import (
    NONCE_BYTES,
    PAGE_BYTES_MAX,
    PROOF_AGE_MS_MAX,
    FeedRequest,
    PageHead,
    encode_page,
    is_proven,
    key_name,
)
from quantum.node.outflow import facts_of, outflow
from quantum.node.rows import FeedDirectory, FeedPartition
from quantum.partition.leader import PartitionLeader

if TYPE_CHECKING:
    from clustor.runtime.node import Node
    from quantum.node.service import BrokerService

Answer = tuple[int, object]

_RETRY_MS: Final = 100
_PAGES_AT_ONCE: Final = 16
_READERS: Final = 2


class Feeding:
    """What this node tells of its logs. Everything is called in the loop's thread."""

    def __init__(self, node: Node, service: BrokerService) -> None:
        self._node = node
        self._service = service
        peer = node.settings.profile.replication.snapshot_bytes_per_second_max
        self._rate = max(1, observer_bytes_per_second(peer))
        self._budgets: dict[PartitionLeader, Budget] = {}
        self._readers = ThreadPoolExecutor(_READERS, "feed")
        """Threads of its own: those of the node read for its followers."""
        self._open = 0

    def directory(self) -> FeedDirectory:
        """List the partitions, and how far each can be read here."""
        prgs = [prg for tenant in self._service.tenants.values() for prg in tenant.prgs]
        return FeedDirectory(
            cluster=self._node.cluster.birth, partitions=[_row(prg) for prg in prgs]
        )

    def page(self, request: FeedRequest, proof: str) -> Answer | asyncio.Future[Answer]:
        """Answer for a page."""
        found = self._service.tenants.get(request.tenant)
        if found is None or request.prg >= len(found.prgs):
            return 404, {"error": "no such partition", "prg": f"{request.tenant}/{request.prg}"}
        prg = found.prgs[request.prg]
        keys, partition = self._node.settings.keys, prg.group.partition_id
        now_ms = wall_clock_ms()
        if not is_proven(request, proof, keys, partition, now_ms):
            return 403, _unproven(request, keys, now_ms)
        return self._refusal(prg, request) or self._read(prg, request, keys)

    def _refusal(self, prg: PartitionLeader, request: FeedRequest) -> Answer | None:
        row = _row(prg)
        if row.refusal:
            return 503, {"error": row.refusal, "retry_ms": 5 * _RETRY_MS}
        if request.first < row.first:
            return 410, {"error": "compacted", "first": row.first, "last": row.last}
        if self._open >= _PAGES_AT_ONCE:
            return 429, {"error": "too many pages at once", "retry_ms": _RETRY_MS}
        if not self._budget(prg).available(self._node.now_ms()):
            return 429, {"error": "the observers' share is used up", "retry_ms": _RETRY_MS}
        return None

    def _budget(self, prg: PartitionLeader) -> Budget:
        found = self._budgets.get(prg)
        if found is None:
            found = self._budgets[prg] = Budget(self._rate, updated_ms=self._node.now_ms())
        return found

    def _read(
        self, prg: PartitionLeader, request: FeedRequest, keys: KeyRing
    ) -> Answer | asyncio.Future[Answer]:
        row, replica = _row(prg), prg.group.replica
        first, last = LogIndex(request.first), LogIndex(row.last)
        window = replica.group.core.log
        size = self._spent(prg, min(request.bytes_max, _bytes_left(window, first, last)))
        job: Callable[[DirectoryStorage], list[Entry]]
        if first > last:
            job = _nothing
        elif first >= window.cache_first:
            cached = window.slice(first, last, size)
            job = lambda _: cached  # noqa: E731
        else:
            job = ReadEntries(keys, frozen_map(replica.log.entries), first, last, size).run
        head = PageHead(
            f"{request.tenant}/{request.prg}",
            first,
            0,
            row.first,
            row.last,
            keys.dek_epoch,
            os.urandom(NONCE_BYTES).hex(),
        )
        storage = prg.group.storage.again()
        self._open += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(
            self._readers, _make_page, job, storage, head, keys, prg.group.partition_id
        )
        future.add_done_callback(self._closed)
        return future

    def _spent(self, prg: PartitionLeader, wanted_bytes: int) -> int:
        """Take bytes out of the observers' share; return how many there were."""
        budget = self._budget(prg)
        size = min(wanted_bytes, budget.available(self._node.now_ms()))
        budget.spend(size)
        return size

    def _closed(self, _page: object) -> None:
        self._open -= 1


def _unproven(request: FeedRequest, keys: KeyRing, now_ms: int) -> dict[str, object]:
    """Say what a proof lacks: it was made with other keys, or by another clock."""
    if abs(now_ms - request.at_ms) > PROOF_AGE_MS_MAX:
        seconds = (now_ms - request.at_ms) // 1_000
        return {"error": f"the proof is not of now: the reader's clock is {seconds} s behind ours"}
    return {"error": "no proof of this tenant's keys", "wanted": key_name(keys)}


def _bytes_left(window: MemoryLog, first: int, last: int) -> int:
    """Return about how many bytes there are from `first` on: what is not there costs nothing."""
    if first <= window.base_index:
        return PAGE_BYTES_MAX
    return (
        max(0, window.bytes_through(last) - window.bytes_through(first - 1)) if first <= last else 0
    )


def _nothing(_storage: DirectoryStorage) -> list[Entry]:
    return []


def _make_page(
    job: Callable[[DirectoryStorage], list[Entry]],
    storage: DirectoryStorage,
    head: PageHead,
    keys: KeyRing,
    partition: Any,
) -> Answer:
    """Read and seal, beside the loop; an error becomes an answer."""
    try:
        entries = job(storage)
        whole = PageHead(
            head.prg,
            head.first,
            len(entries),
            head.log_first,
            head.log_last,
            head.dek_epoch,
            head.nonce,
        )
        return 200, encode_page(entries, whole, keys, partition)
    except FileNotFoundError:
        return 503, {"error": "compacted while it was read", "retry_ms": _RETRY_MS}
    except (LogError, OSError) as error:
        return 503, {"error": f"this replica cannot read its log: {error}", "retry_ms": 1_000}
    finally:
        storage.close()


def _row(prg: PartitionLeader) -> FeedPartition:
    replica = prg.group.replica
    flow = outflow(facts_of(replica))
    base = replica.log.entries.base_index
    settings = prg.broker.settings
    return FeedPartition(
        tenant=prg.tenant.name,
        number=prg.number,
        partition=int(prg.group.partition_id),
        first=base + 1,
        last=max(base, flow.through),
        bytes=replica.group.core.log.bytes_total,
        leader=prg.leader_node,
        refusal=flow.refusal,
        prgs=settings.prg_count,
        rings=[ring.prg_count for ring in prg.tenant.rings],
        queue_messages_max=settings.queue_messages_max,
        queue_bytes_max=settings.queue_bytes_max,
        dedupe_horizon_seconds=settings.dedupe_horizon_ms // 1_000,
    )
