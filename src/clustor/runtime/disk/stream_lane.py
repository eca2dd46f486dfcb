"""The lane of the streams to the disk: a thread of its own, so that no sync of a log waits for it.

A checkpoint may write and sync many files. The log's own writer goes on meanwhile; what both share
is the device. Nothing is opened before the first plan: a node without streams has no such thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from clustor.replica import DiskToken, DiskWork, Replica
from clustor.runtime.disk.blocking import BlockingDisk
from clustor.runtime.disk.partition import Partition
from clustor.runtime.disk.types import Completion, PlanToken


class StreamGroup(Protocol):
    """A hosted group, as far as this lane sees it."""

    @property
    def directory(self) -> Path: ...

    @property
    def replica(self) -> Replica: ...

    @property
    def stream_tokens(self) -> deque[DiskToken]:
        """The plans under way, in order."""


class StreamLane:
    """Carries out the plans of all groups' streams. The node's loop owns it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settle: Callable[[StreamGroup, Callable[[], None]], None],
    ) -> None:
        self._loop = loop
        self._settle = settle  # lets a group take a completion, and have its turn
        self._disk: BlockingDisk | None = None
        self._partitions: dict[Path, Partition] = {}
        self._groups: dict[int, StreamGroup] = {}

    def submit(self, group: StreamGroup, works: list[DiskWork]) -> None:
        """Queue plans, behind those that are under way."""
        disk, partition = self._opened(group)
        for work in works:
            group.stream_tokens.append(work.token)
            disk.submit(partition, work.plan, PlanToken(work.token))

    def forget(self, group: StreamGroup) -> None:
        """Close a group's files; none of its plans may be under way."""
        partition = self._partitions.pop(group.directory, None)
        if partition is not None and self._disk is not None:
            del self._groups[partition.number]
            self._disk.close_partition(partition)

    def close(self) -> None:
        """Wait for what was submitted, and close every file."""
        if self._disk is not None:
            self._loop.remove_reader(self._disk.fileno())
            self._disk.close()
            self._disk = None

    def _opened(self, group: StreamGroup) -> tuple[BlockingDisk, Partition]:
        if self._disk is None:
            self._disk = BlockingDisk()
            self._loop.add_reader(self._disk.fileno(), self._on_disk)
        partition = self._partitions.get(group.directory)
        if partition is None:
            partition = self._disk.open_partition(group.directory)
            self._partitions[group.directory] = partition
            self._groups[partition.number] = group
        return self._disk, partition

    def _on_disk(self) -> None:
        assert self._disk is not None
        for completion in self._disk.completions():
            group = self._groups.get(completion.partition.number)
            if group is not None:
                self._conclude(group, completion)

    def _conclude(self, group: StreamGroup, completion: Completion) -> None:
        token = group.stream_tokens.popleft()
        assert PlanToken(token) == completion.token, "plans of one directory end in their order"
        error = completion.error
        if error is None:
            self._settle(group, lambda: group.replica.stream_disk_done(token))
        else:
            self._settle(group, lambda: group.replica.stream_disk_failed(token, error))
