"""What every source of a log is: bounds, entries, snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from clustor.log.types import Entry
from quantum.archive.types import Bounds, IndexRange, PrgId, SnapshotRef


class LogSource(Protocol):
    """Logs that can be read, from wherever. Picklable; what a pickle opens is opened anew.

    Every method raises LakeError: each names the partition and, where there is one, the index.
    """

    def prgs(self) -> list[PrgId]:
        """List the partitions, in order."""

    def bounds(self, prg: PrgId) -> Bounds:
        """Say what can be read now: only what is committed and durable on a quorum."""

    def entries(self, span: IndexRange) -> Iterator[Entry]:
        """Yield exactly the entries of `span` in order, each decrypted and verified.

        Raises LogGone for a part that is not there: everything before it was yielded, and
        `readable_from` says where to go on. What is beyond the bounds is LogGone as well, or
        SourceUnreachable from a cluster, which may commit it yet.
        """

    def snapshots(self, prg: PrgId) -> list[SnapshotRef]:
        """List the snapshots, oldest first."""

    def open_snapshot(self, ref: SnapshotRef) -> Iterator[bytes]:
        """Yield a snapshot's content, decrypted: the header of `clustor.replica.header`, then the
        machine's own. Take it into use only when the iterator has ended."""
