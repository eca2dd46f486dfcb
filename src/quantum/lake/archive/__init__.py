"""Logs read from outside: of a stopped node, and from an archive.

Nothing is yielded that is not authentic, committed and durable, and nothing is left out silently.
"""

from quantum.archive.types import Bounds, IndexRange, LogPiece, PrgId, SnapshotRef
from quantum.lake.archive.keys import DirectoryKeys, EnvironmentKeys, KeyProvider
from quantum.lake.archive.source import LogSource

__all__ = [
    "Bounds",
    "DirectoryKeys",
    "EnvironmentKeys",
    "IndexRange",
    "KeyProvider",
    "LogPiece",
    "LogSource",
    "PrgId",
    "SnapshotRef",
]
