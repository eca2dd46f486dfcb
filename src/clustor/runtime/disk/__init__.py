"""Real disks: a plan's steps are run in order, and its completion says what is durable."""

from clustor.runtime.disk.blocking import BlockingDisk
from clustor.runtime.disk.detect import (
    Detection,
    Filesystem,
    detect,
    open_disk,
    open_mode,
    probe,
)
from clustor.runtime.disk.errors import (
    DiskClosed,
    DiskError,
    DiskFull,
    FileFenced,
    PathRefused,
    PlanAbandoned,
    PlanFailed,
    RingBroken,
    SyncFailed,
)
from clustor.runtime.disk.loss import describe_loss
from clustor.runtime.disk.partition import Partition, SyncDurations
from clustor.runtime.disk.storage import DirectoryStorage
from clustor.runtime.disk.types import Completion, Disk, Downgrade, PlanToken
from clustor.runtime.disk.uring import UringDisk

__all__ = [
    "BlockingDisk",
    "Completion",
    "Detection",
    "DirectoryStorage",
    "Disk",
    "DiskClosed",
    "DiskError",
    "DiskFull",
    "Downgrade",
    "FileFenced",
    "Filesystem",
    "Partition",
    "PathRefused",
    "PlanAbandoned",
    "PlanFailed",
    "PlanToken",
    "RingBroken",
    "SyncDurations",
    "SyncFailed",
    "UringDisk",
    "describe_loss",
    "detect",
    "open_disk",
    "open_mode",
    "probe",
]
