"""Compaction of topics on a node: the leader logs how far, and every replica rewrites its files.

Two offsets are all that the log is told (`quantum.broker.streams.compacting`). The leader of a
partition chooses them by the topic's configs and by the log's clock, once its own files are where
the last pass wanted them. Tombstones are purged only when every member has in its log the pass that
first covered them: one that was away since must not meet a later record's absence with an older
record that it still has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from clustor.log.errors import LogError
from clustor.runtime.errors import NodeError
from clustor.runtime.stream_reads import StreamReads
from clustor.runtime.stream_rewrites import rewrite_stream
from clustor.streams.files import StreamFiles
from quantum.broker.streams import StreamRefusal
from quantum.broker.streams.compacting import PartitionCompaction
from quantum.broker.streams.hosted_partition import HostedPartition
from quantum.broker.streams.section import encode_compaction
from quantum.broker.streams.topic_configs import (
    COMPACTION_LAG_MS,
    DEFAULTS,
    DELETE_RETENTION_MS,
    DIRTY_RATIO,
    is_compacted,
)
from quantum.node.topic_files import told
from quantum.partition.leader import PartitionLeader
from quantum.partition.stream_side import section_of
from quantum.protocols.kafka.codec import KeyCompaction, max_timestamp_of

PASS_SECONDS_MIN: Final = 5.0
"""Between two passes over a partition at least, and ten times as long as the last one took."""
_REST_TIMES: Final = 10

journal = logging.getLogger("quantum.streams")
_Key = tuple[int, int]


class KafkaRule:
    """What compaction leaves of a topic's stored batches (`RewriteRule`)."""

    def __init__(self, compaction: KeyCompaction, since: int) -> None:
        self._compaction = compaction
        self.since = since

    @property
    def mark(self) -> tuple[int, int]:
        return self._compaction.through, self._compaction.purged

    def note(self, payload: memoryview) -> bool:
        return self._compaction.note(payload[1:])

    def left_of(self, timestamp: int, payload: memoryview) -> tuple[int, bytes | memoryview] | None:
        """Leave the tag before a batch where it is."""
        batch = payload[1:]
        left = self._compaction.left_of(batch)
        if left is batch:
            return timestamp, payload
        if left is None:
            return None
        return max_timestamp_of(left), bytes(payload[:1]) + left


@dataclass(frozen=True, slots=True)
class _Place:
    """One partition of a compacted topic, on this node."""

    key: _Key
    hosted: HostedPartition
    files: StreamFiles
    compaction: PartitionCompaction
    configs: dict[str, str]


class TopicCompaction:
    """What one node compacts: files of all its replicas, and passes where it leads."""

    def __init__(
        self,
        reader: Callable[[PartitionLeader], StreamReads],
        knows: Callable[[PartitionLeader], bool],
    ) -> None:
        self._reader = reader
        self._knows = knows
        self._pool = ThreadPoolExecutor(1, "compaction")
        self._due: dict[tuple[PartitionLeader, _Key], float] = {}
        """When the next pass over a partition may be asked for."""
        self._seen: dict[tuple[PartitionLeader, _Key, int], int] = {}
        """An entry of the log that is no earlier than a pass, by how far the pass went."""

    def close(self) -> None:
        """Let the thread go; what was not committed is void."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def compact(self, prg: PartitionLeader, now_ms: int) -> None:
        """Rewrite what the log wants rewritten here, and log new passes where this node leads."""
        passes = []
        for place in _places(prg):
            if _is_behind(place.files.compacted, place.compaction.mark):
                await self._rewrite(prg, place)
            elif prg.leading and self._knows(prg):
                through = await self._wanted(prg, place, now_ms)
                purged = self._purgeable(prg, place, now_ms)
                if (through, purged) != place.compaction.mark:
                    passes.append((*place.key, through, purged))
        if passes and prg.leading:
            prg.ask(encode_compaction(now_ms, passes), lambda _reply: None)

    async def _rewrite(self, prg: PartitionLeader, place: _Place) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        through, purged = place.compaction.mark
        # Of the last batch of the pass before too much was kept: it is looked at again.
        log, since = place.hosted.log, max(0, place.files.compacted[0] - 1)
        ranges = log.aborted_between(log.start_offset, through)
        aborted = [(at.producer_id, at.first_offset, at.last_offset) for at in ranges]
        compaction = KeyCompaction(through, purged, aborted, before=since + 1)
        rule = KafkaRule(compaction, since)
        before = place.files.size_bytes
        try:
            await rewrite_stream(prg.group, self._pool, place.hosted.file_id, rule)
        except (LogError, NodeError) as error:
            journal.warning("compaction of %s/%d: %s", prg.tenant.name, prg.number, error)
            return
        took = loop.time() - begun
        self._due[prg, place.key] = loop.time() + max(PASS_SECONDS_MIN, took * _REST_TIMES)
        journal.info(
            "compacted partition %d of topic %d through %d: %d bytes to %d in %.1f s",
            *(place.key[1], place.key[0], rule.mark[0], before, place.files.size_bytes, took),
        )

    async def _wanted(self, prg: PartitionLeader, place: _Place, now_ms: int) -> int:
        """Say how far a pass should go now; where the last one went if there is too little new."""
        done = place.compaction.through
        if asyncio.get_running_loop().time() < self._due.get((prg, place.key), 0.0):
            return done
        stable = place.hosted.log.last_stable_offset
        lag_ms = int(place.configs[COMPACTION_LAG_MS])
        if stable <= done or _dirty_ratio(place) < float(place.configs[DIRTY_RATIO]):
            return done
        if lag_ms > 0:
            found = await told(
                self._reader(prg).find_time(place.hosted.file_id, now_ms - lag_ms + 1)
            )
            if isinstance(found, StreamRefusal):
                return done
            stable = stable if found is None else min(stable, int(found))
        return max(done, stable)

    def _purgeable(self, prg: PartitionLeader, place: _Place, now_ms: int) -> int:
        """Say below which offset tombstones are old enough, and known to every member."""
        found = place.compaction.purged
        retention_ms = int(place.configs[DELETE_RETENTION_MS])
        replica = prg.group.replica
        core = replica.group.core
        for each in place.compaction.passes:
            entry = self._seen.setdefault(
                (prg, place.key, each.through), int(replica.applied_index)
            )
            others = [peer for peer in core.config.members if peer != replica.identity.replica_id]
            is_known = all(
                peer in core.progress and core.progress[peer].durable_index >= entry
                for peer in others
            )
            if now_ms - each.since_ms >= retention_ms and is_known:
                found = max(found, each.through)
        for key in [at for at in self._seen if at[:2] == (prg, place.key) and at[2] <= found]:
            del self._seen[key]
        return found


def _is_behind(files: tuple[int, int], wanted: tuple[int, int]) -> bool:
    return files[0] < wanted[0] or files[1] < wanted[1]


def _places(prg: PartitionLeader) -> list[_Place]:
    streams = prg.group.replica.streams
    if streams is None:
        return []
    section, found = section_of(prg.broker), []
    for key, hosted in section.partitions.items():
        spec = section.topics.get(key[0])
        files = streams.store.partitions.get(hosted.file_id)
        if spec is None or files is None:
            continue
        configs, compaction = dict(spec.configs), section.compaction(*key)
        if is_compacted(configs) or _is_behind(files.compacted, compaction.mark):
            found.append(_Place(key, hosted, files, compaction, {**DEFAULTS, **configs}))
    return found


def _dirty_ratio(place: _Place) -> float:
    """Say how much of a partition's bytes no pass has looked at."""
    files, through = place.files, place.compaction.through
    waiting = [*files.in_flight, *(() if files.tail is None else (files.tail,))]
    total = dirty = float(sum(piece.size_bytes for piece in waiting))
    for segment in files.segments:
        new = max(0, segment.next_index - max(through, segment.first_index))
        total += segment.size_bytes
        dirty += segment.size_bytes * new / (segment.next_index - segment.first_index)
    return dirty / total if dirty else 0.0
