"""One rewrite of a partition's files beside all else that its replica writes: plan after plan.

Whoever decides what is left calls these from the loop, one at a time, and is called back when the
disk has it. A callback that never comes is a replica that stopped.
"""

from __future__ import annotations

from collections.abc import Callable

from clustor.log.steps import Plan
from clustor.replica.streams import ReplicaStreams
from clustor.streams.metadata import CompactionMark, SegmentMeta
from clustor.streams.piece import BatchPiece
from clustor.streams.rewriting import StreamRewrite, begin_rewrite


def when_rewrite_begun(
    streams: ReplicaStreams, partition: int, begun: Callable[[StreamRewrite | None], None]
) -> None:
    """Begin once the files hold all that was applied; None where there is no such partition."""

    def begin() -> None:
        found = begin_rewrite(streams.store, partition)
        if found is None:
            begun(None)
            return
        steps, rewrite = found
        streams.disk.submit(steps, lambda: begun(rewrite))

    def durable() -> None:
        streams.when_idle(begin)

    streams.when_durable(streams.store.applied_index, durable)


class RewritePlans:
    """The plans of a rewrite that has begun, in the streams' lane."""

    def __init__(self, streams: ReplicaStreams, rewrite: StreamRewrite) -> None:
        self._streams = streams
        self._rewrite = rewrite

    def keep(self, segment: SegmentMeta, done: Callable[[], None]) -> None:
        """Leave a file as it is."""
        self._plan(lambda: self._rewrite.keep(segment), done)

    def write(self, piece: BatchPiece, done: Callable[[], None]) -> None:
        """Write what is left of some batches."""
        self._plan(lambda: self._rewrite.write(piece), done)

    def finish(self, mark: CompactionMark, done: Callable[[], None]) -> None:
        """Put the new files in the place of the old ones."""

        def commit() -> None:
            plan = self._rewrite.finish(mark)
            if plan is None:
                self._streams.disk.submit(self._rewrite.abandon(), done)
                return
            self._streams.submit(plan)
            self._streams.disk.submit((), done)  # behind it

        self._streams.when_idle(commit)

    def abandon(self, done: Callable[[], None]) -> None:
        """Delete what was written: nothing takes the place of anything."""
        self._plan(self._rewrite.abandon, done)

    def _plan(self, steps: Callable[[], Plan], done: Callable[[], None]) -> None:
        self._streams.when_idle(lambda: self._streams.disk.submit(steps(), done))
