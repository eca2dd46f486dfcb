"""A running cluster, and its archive for what it has compacted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from clustor.log.types import Entry
from quantum.archive.types import Bounds, IndexRange, LogPiece, PrgId, SnapshotRef
from quantum.lake.archive.source import LogSource
from quantum.lake.errors import BadAddress, LogGone, SourceUnreachable
from quantum.tenants.broker_file import TenantEntry


@dataclass
class FallThroughSource:
    """`LogSource` over two: `live` while it has an entry, then `archive`.

    Both hold the same log: only what is committed leaves a cluster, by either way. Where neither
    has an entry it is LogGone, with what is missing in both. An archive that knows nothing of a
    partition which the cluster has compacted is away, or another one: that is no gap.
    """

    live: LogSource
    archive: LogSource

    def prgs(self) -> list[PrgId]:
        return sorted({*self.live.prgs(), *self.archive.prgs()})

    def bounds(self, prg: PrgId) -> Bounds:
        live = self.live.bounds(prg)
        archived = self._archived(prg)
        if archived is None or archived.first >= live.first:
            return live
        older = [
            _cut(piece, live.first - 1) for piece in archived.pieces if piece.first < live.first
        ]
        return Bounds(prg, archived.first, live.last, (*older, *live.pieces))

    def _archived(self, prg: PrgId) -> Bounds | None:
        try:
            return self.archive.bounds(prg)
        except BadAddress:
            return None  # nothing of it is archived yet

    def entries(self, span: IndexRange) -> Iterator[Entry]:
        index = span.first
        while index <= span.last:
            try:
                for entry in self.live.entries(replace(span, first=index)):
                    yield entry
                    index = entry.index + 1
            except LogGone as gone:
                if gone.first != index:
                    raise
                for entry in self._older(gone):
                    yield entry
                    index = entry.index + 1

    def _older(self, gone: LogGone) -> Iterator[Entry]:
        """Read from the archive what the cluster has not; it must have all of it."""
        assert gone.prg is not None
        try:
            yield from self.archive.entries(IndexRange(gone.prg, gone.first, gone.last))
        except BadAddress as error:
            raise _away(gone.prg, gone.first) from error
        except LogGone as missing:
            after = missing.readable_from
            if after is None and missing.last >= gone.last:
                after = gone.readable_from
            raise LogGone(
                f"neither in the cluster nor in its archive: {missing.reason}",
                prg=gone.prg,
                first=missing.first,
                last=missing.last,
                readable_from=after,
            ) from missing

    def tenant_entry(self, tenant: str) -> TenantEntry | None:
        """Ask whoever knows under which numbers a tenant's logs are applied."""
        for each in (self.live, self.archive):
            asked = getattr(each, "tenant_entry", None)
            found = None if asked is None else asked(tenant)
            if isinstance(found, TenantEntry):
                return found
        return None

    def snapshots(self, prg: PrgId) -> list[SnapshotRef]:
        """Return the archive's: a reader that has none while there are some would judge loosely."""
        if self._archived(prg) is not None:
            return self.archive.snapshots(prg)
        first = self.live.bounds(prg).first
        if first > 1:
            raise _away(prg, first - 1)
        return []

    def open_snapshot(self, ref: SnapshotRef) -> Iterator[bytes]:
        return self.archive.open_snapshot(ref)


def _away(prg: PrgId, index: int) -> SourceUnreachable:
    return SourceUnreachable(
        "the cluster has compacted this, and no archive of it is where one was named",
        prg=prg,
        index=index,
    )


def _cut(piece: LogPiece, last: int) -> LogPiece:
    """Return a piece without what lies behind `last`, with its share of the bytes."""
    if piece.last <= last:
        return piece
    share = piece.bytes * (last - piece.first + 1) // (piece.last - piece.first + 1)
    return replace(piece, last=last, bytes=max(1, share))
