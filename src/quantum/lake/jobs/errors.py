"""What the jobs refuse, beside what sources and tables raise.

LakeError
└── JobError
    ├── StateUnknown     what the broker had taken before an index is not known
    ├── StateTaken       the state of another moment lies where one is to be written
    ├── SparkFailed      Spark gave a task up; the table is as it was
    ├── BadView          the description of a typed view has a mistake
    ├── PackageMissing   a package that was asked for is not installed
    └── BadResume        a file of finished tasks that is not ours to believe
"""

from __future__ import annotations

from quantum.lake.errors import LakeError


class JobError(LakeError):
    """Root of the jobs' own errors."""


class StateUnknown(JobError):
    """No snapshot and no beginning of the log is at hand: which publishes counted is unknown."""


class StateTaken(JobError):
    """The state of another moment lies where one is to be written."""


class SparkFailed(JobError):
    """Spark gave a task up, after as many attempts as it is told to make."""


class BadView(JobError):
    """The description of a typed view has a mistake."""


class PackageMissing(JobError):
    """A package that was asked for is not installed."""


class BadResume(JobError):
    """A file of finished tasks that this user did not write, or that is none."""
