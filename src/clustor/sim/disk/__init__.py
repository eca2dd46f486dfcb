"""A disk for one partition that loses power when asked, and keeps no more than steps promise."""

from clustor.sim.disk.content import SECTOR_BYTES, FileFate, SectorFate, SimFile
from clustor.sim.disk.disk import CrashChoice, DiskStalled, SimDisk, TooManyCrashStates

__all__ = [
    "SECTOR_BYTES",
    "CrashChoice",
    "DiskStalled",
    "FileFate",
    "SectorFate",
    "SimDisk",
    "SimFile",
    "TooManyCrashStates",
]
