"""The words of the disk: tokens, completions, and what a start found out about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NewType, Protocol

from clustor.log.steps import Plan
from clustor.log.types import IoWriterMode
from clustor.runtime.disk.errors import DiskError
from clustor.runtime.disk.partition import Partition, SyncDurations

PlanToken = NewType("PlanToken", int)
"""Chosen by whoever submits a plan, and handed back with its completion."""


@dataclass(slots=True)
class Completion:
    """One plan is over: wholly durable as far as it says, or failed with `error`."""

    partition: Partition
    token: PlanToken
    sync_durations: SyncDurations
    """What the device took; neither what waited before it, nor that it was noticed late (C20)."""
    error: DiskError | None
    queued_ns: int = 0
    """How long it waited behind other plans before its first step began."""
    seen_late_ns: int = 0
    """How much of its time its owner was busy elsewhere, and may have added by looking late."""


@dataclass(frozen=True, slots=True)
class Downgrade:
    """A mode that cannot be used here, and why."""

    mode: IoWriterMode
    reason: str


class Disk(Protocol):
    """What every executor offers. One thread owns it: submits, drains, executes and closes."""

    @property
    def mode(self) -> IoWriterMode:
        """How bytes reach the disk now; a ring that breaks turns this to BLOCKING."""

    @property
    def downgrades(self) -> Sequence[Downgrade]:
        """The better modes that were tried and given up, in order."""

    @property
    def is_quick(self) -> bool:
        """Whether a small plan that is submitted `alone` would be run at once now."""

    def fileno(self) -> int:
        """Return an eventfd that is readable while completions wait."""

    def open_partition(self, root: Path) -> Partition:
        """Take charge of the files below `root`, an existing directory."""

    def submit(
        self, partition: Partition, plan: Plan, token: PlanToken, *, alone: bool = False
    ) -> Completion | None:
        """Queue a plan. Plans of one partition run one after the other, in this order.

        `alone` says that the caller has no other work for the disk or for itself now: then a
        small plan may be run at once, and its completion is returned instead of announced.
        """

    def completions(self) -> list[Completion]:
        """Take the plans that are over, and reset the eventfd."""

    def look(self) -> None:
        """See what the kernel has done, so that later lateness is not the device's (C20)."""

    def age_ns(self) -> int:
        """Return for how long the device has had the oldest work that it has not done (C20)."""

    def execute(self, partition: Partition, plan: Plan) -> SyncDurations:
        """Run a plan here and now, in the caller's thread; raise a DiskError when it fails."""

    def close_partition(self, partition: Partition) -> None:
        """Close the partition's files; none of its plans may be under way."""

    def close(self) -> None:
        """Wait for what was submitted, and close every file."""
