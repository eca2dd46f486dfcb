"""A plan under way on a ring: which of its steps make one chain, and how a chain is judged.

A chain reports once: when its last entry is done, or when one of them is not as it was asked.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from clustor.log.steps import Plan, Sync, WriteFile
from clustor.runtime.disk.files import OpenFile
from clustor.runtime.disk.partition import Partition
from clustor.runtime.disk.types import PlanToken

CHAIN_STEPS_MAX = 64
CHAINABLE = (WriteFile, Sync)
_OFFSET_MAX = 2**63 - 1
_ROOM_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

ChainLink: TypeAlias = tuple[int, bool, OpenFile]
"""A step of a plan, whether it stands for the Sync behind it too, and its file."""


@dataclass(slots=True)
class RingJob:
    """One plan under way."""

    partition: Partition
    plan: Plan
    token: PlanToken
    failures_seen: int
    position: int = 0
    """The first step that is not done."""
    links: list[ChainLink] = field(default_factory=list)
    """The chain under way."""
    buffers: list[int] = field(default_factory=list)
    began_ns: int = 0
    """When the kernel was given the chain under way; 0: it has none."""
    busy_ns: int = 0
    """What its owner's thread had worked in all by then."""
    durations: list[int] = field(default_factory=list)
    given_ns: int = 0
    queued_ns: int = 0
    seen_late_ns: int = 0

    def judge(self, link: int, result: int) -> bool:
        """Settle the chain up to the entry that reported; say whether all of it is done.

        A write that the kernel left short is finished here. Raises DiskError when one failed.
        """
        at, folds, _ = self.links[link]
        step = self.plan[at]
        whole = result == (len(step.data) if isinstance(step, WriteFile) else 0)
        for done in self.links[: link + 1 if whole else link]:
            self._note_synced(*done)
        if whole:
            assert link == len(self.links) - 1, "only the last entry reports success"
            self.position = at + 2 if folds else at + 1
            return True
        if isinstance(step, WriteFile):
            self._on_partial_write(at, result, folds=folds)
        else:
            self.partition.fail(at, step, -result, sync=True)
        return False

    def _note_synced(self, at: int, folds: bool, file: OpenFile) -> None:
        step = self.plan[at]
        if isinstance(step, Sync):
            file.on_synced()
        elif isinstance(step, WriteFile) and folds:
            file.on_range_synced(step.offset + len(step.data))
        else:
            file.dirty = True

    def _on_partial_write(self, at: int, result: int, *, folds: bool) -> None:
        """Finish a short write, or tell a write that failed from a sync that failed."""
        step = self.plan[at]
        assert isinstance(step, WriteFile)
        if result < 0 and not folds:
            self.partition.fail(at, step, -result)
        if result < 0 and -result not in _ROOM_ERRORS:
            self.partition.fail(at + 1, self.plan[at + 1], -result, sync=True)
        done = max(result, 0)
        try:
            self.partition.write(step.file, step.offset + done, step.data[done:])
        except OSError as error:
            self.partition.fail(at, step, error.errno or errno.EIO)
        if result < 0:
            # There was room for the bytes after all: it was their sync that had none.
            self.partition.fail(at + 1, self.plan[at + 1], -result, sync=True)
        self.position = at + 1


def choose_links(
    job: RingJob, file_of: Callable[[Partition, str], OpenFile | None]
) -> list[ChainLink]:
    """Choose the chain's entries: up to the first Sync that cannot be folded into a write.

    `file_of` opens a file by its name; None: a blocking call shall say why it cannot.
    """
    links: list[ChainLink] = []
    dirty: set[int] = set()
    at = job.position
    plan = job.plan
    while at < len(plan) and len(links) < CHAIN_STEPS_MAX:
        step = plan[at]
        if not isinstance(step, CHAINABLE):
            break
        file = file_of(job.partition, step.file)
        if file is None:
            break
        if isinstance(step, Sync):
            links.append((at, False, file))
            break
        if not _fits_ring(step):
            break
        if step.offset + len(step.data) > file.reserved:
            job.partition.make_room(file, step.offset + len(step.data))
        follower = plan[at + 1] if at + 1 < len(plan) else None
        synced = isinstance(follower, Sync) and follower.file == step.file
        # RWF_DSYNC covers only its own range: older bytes, and the end of the last page before
        # a gap, which the kernel fills with zeros, need a whole sync.
        folds = synced and not file.dirty and step.offset <= file.length
        folds = folds and file.descriptor not in dirty
        links.append((at, folds, file))
        if not folds:
            dirty.add(file.descriptor)
        at += 2 if folds else 1
    return links


def _fits_ring(step: WriteFile) -> bool:
    """Say whether the ring can take this write as it stands; -1 would mean the file's position."""
    return type(step.data) is bytes and 0 <= step.offset <= _OFFSET_MAX - len(step.data)
