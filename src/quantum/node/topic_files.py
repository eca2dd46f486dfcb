"""The files of topics on a node: read off the loop for adapters, and kept within their retention.

Whoever leads a partition looks now and then how much of each topic's partition its retention still
wants, and logs a trim: the start never goes back, and no replica's own clock decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from clustor.log.errors import LogError
from clustor.runtime.containment import contained
from clustor.runtime.errors import NodeError
from clustor.runtime.stream_reads import ReaderBusy, StreamReads
from clustor.streams import StreamChunk, StreamOutOfRange, UnknownStream
from clustor.streams.files import StreamFiles
from quantum.broker.retention import Stretch, first_wanted
from quantum.broker.streams import StreamRefusal
from quantum.broker.streams.hosted_partition import HostedPartition
from quantum.broker.streams.section import encode_trims
from quantum.broker.streams.topic_configs import (
    DEFAULTS,
    RETENTION_BYTES,
    RETENTION_MS,
    is_trimmed,
)
from quantum.partition.leader import PartitionLeader
from quantum.partition.stream_side import section_of

_R = StreamRefusal
BYTES_LOOK_SECONDS: Final = 5.0
AGE_LOOK_SECONDS_MAX: Final = 600.0
_LOOKS_PER_RETENTION: Final = 50
_LOOKS_PER_ROUND: Final = 256
"""Partitions whose age is asked of the disk in one round: others wait for the next."""

journal = logging.getLogger("quantum.streams")


class TopicFiles:
    """Reads for all tenants of a node (`quantum.mesh.topic_reads.StreamFilesPort`)."""

    def __init__(self, reader: Callable[[PartitionLeader], StreamReads]) -> None:
        self._reader = reader

    def read_file(
        self,
        prg: PartitionLeader,
        file_id: int,
        offset: int,
        bytes_max: int,
        done: Callable[[list[StreamChunk] | StreamRefusal], None],
    ) -> None:
        """Read whole batches in a thread; `done` is called on the loop."""

        async def read() -> None:
            done(await told(self._reader(prg).read(file_id, offset, bytes_max)))

        contained.spawn("topic read", read())

    def find_file_time(
        self,
        prg: PartitionLeader,
        file_id: int,
        time_ms: int,
        done: Callable[[int | StreamRefusal | None], None],
    ) -> None:
        """Find the first offset that is as new as a time, in a thread."""

        async def find() -> None:
            done(await told(self._reader(prg).find_time(file_id, time_ms)))

        contained.spawn("topic read", find())


async def told(reading: Coroutine[Any, Any, Any]) -> Any:
    """Return what was read, or the reason why it was not."""
    try:
        return await reading
    except StreamOutOfRange:
        return _R.OFFSET_OUT_OF_RANGE
    except UnknownStream:
        return _R.TOPIC_UNKNOWN
    except ReaderBusy:
        return _R.BUSY
    except (LogError, NodeError) as error:
        journal.warning("a read of a topic failed: %s", error)
        return _R.BUSY


class TopicRetention:
    """What one node trims of the topics in the partitions that it leads."""

    def __init__(self, reader: Callable[[PartitionLeader], StreamReads]) -> None:
        self._reader = reader
        self._due: dict[PartitionLeader, dict[tuple[int, int], float]] = {}
        """When to look at each partition of a topic again."""

    async def trim(self, prg: PartitionLeader, now_ms: int) -> None:
        """Log what the retention of a PRG's topics does not want any more."""
        trims = []
        for key, hosted, configs in self._take_due(prg):
            first = await self._first_wanted(prg, hosted, configs, now_ms)
            if first is not None and first > hosted.log.start_offset:
                trims.append((*key, min(first, hosted.log.end_offset)))
        if trims and prg.leading:
            prg.ask(encode_trims(now_ms, trims), lambda _reply: None)

    def _take_due(
        self, prg: PartitionLeader
    ) -> Iterator[tuple[tuple[int, int], HostedPartition, dict[str, str]]]:
        section, now = section_of(prg.broker), asyncio.get_running_loop().time()
        before, times = self._due.get(prg, {}), {}
        looks = _LOOKS_PER_ROUND
        for key, hosted in list(section.partitions.items()):
            spec = section.topics.get(key[0])
            times[key] = before.get(key, 0.0)
            is_empty = hosted.log.start_offset == hosted.log.end_offset
            if now < times[key] or spec is None or is_empty or not looks:
                continue
            configs = {**DEFAULTS, **dict(spec.configs)}
            if not is_trimmed(configs):
                continue
            times[key] = now + _look_again_seconds(configs)
            looks -= 1
            yield key, hosted, configs
        self._due[prg] = times

    async def _first_wanted(
        self, prg: PartitionLeader, hosted: HostedPartition, configs: dict[str, str], now_ms: int
    ) -> int | None:
        streams = prg.group.replica.streams
        files = None if streams is None else streams.store.partitions.get(hosted.file_id)
        if files is None:
            return None
        wanted = [_by_size(files, int(configs[RETENTION_BYTES]), now_ms)]
        age_ms = int(configs[RETENTION_MS])
        if age_ms >= 0:
            # What is taken while the disk is asked was not looked at, and is not too old.
            end = hosted.log.end_offset
            found = await told(self._reader(prg).find_time(hosted.file_id, now_ms - age_ms))
            if not isinstance(found, StreamRefusal):
                wanted.append(end if found is None else int(found))
        return max((each for each in wanted if each is not None), default=None)


def _by_size(files: StreamFiles, bytes_max: int, now_ms: int) -> int | None:
    if bytes_max < 0:
        return None
    stretches = [Stretch(at.next_index, at.size_bytes, at.max_timestamp) for at in files.segments]
    return first_wanted(stretches, now_ms, bytes_max=max(bytes_max, 1))


def _look_again_seconds(configs: dict[str, str]) -> float:
    if int(configs[RETENTION_BYTES]) >= 0:
        return BYTES_LOOK_SECONDS
    age_ms = int(configs[RETENTION_MS])
    if age_ms < 0:
        return AGE_LOOK_SECONDS_MAX
    return min(max(age_ms / 1000 / _LOOKS_PER_RETENTION, 1.0), AGE_LOOK_SECONDS_MAX)
