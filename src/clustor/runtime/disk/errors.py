"""What can go wrong between a plan and the disk.

DiskError
├── PathRefused      a name that leads, or could lead, out of the partition's directory
├── PlanFailed       a step failed; the steps after it were not run
│   ├── DiskFull         there was no room for it
│   └── SyncFailed       bytes may be lost although they can still be read; the file is fenced
├── FileFenced       the plan touches a file whose sync failed before; nothing of it was run
├── PlanAbandoned    an earlier plan of this partition failed; nothing of this one was run
├── RingBroken       io_uring itself failed: at start it is left aside, later the plans fail
└── DiskClosed       the disk was closed
"""

from __future__ import annotations

import errno
import os

from clustor.log.steps import Step


class DiskError(Exception):
    """Root of the disk's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class PathRefused(DiskError):
    """A name that leads, or could lead, out of the partition's directory."""


class PlanFailed(DiskError):
    """A step failed; those before it were run, those after it were not."""

    def __init__(self, reason: str, *, step_number: int, step: str, file: str, code: int) -> None:
        name = errno.errorcode.get(code, str(code))
        super().__init__(reason, step_number=step_number, step=step, file=file, errno=name)
        self.step_number = step_number
        self.step = step
        self.file = file
        self.errno = code


class DiskFull(PlanFailed):
    """There was no room for the step."""


class SyncFailed(PlanFailed):
    """Bytes may be lost although they can still be read; the file is fenced."""


class FileFenced(DiskError):
    """The plan touches a file whose sync failed before; nothing of the plan was run."""

    def __init__(self, file: str, since: str) -> None:
        super().__init__("the file is fenced", file=file, since=since)
        self.file = file
        self.since = since


class PlanAbandoned(DiskError):
    """An earlier plan of this partition failed; nothing of this one was run."""


class RingBroken(DiskError):
    """The ring cannot be used, or failed while plans were under way."""


class DiskClosed(DiskError):
    """The disk was closed."""


_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


def plan_failed(step_number: int, step: Step, file: str, code: int, *, sync: bool) -> PlanFailed:
    """Name the failure of one step by its cause."""
    kind = SyncFailed if sync else DiskFull if code in _NO_ROOM else PlanFailed
    name = type(step).__name__
    return kind(os.strerror(code), step_number=step_number, step=name, file=file, code=code)
