"""Whether keys fit a log, asked where a job or a query is planned, not where it is carried out."""

from __future__ import annotations

from contextlib import suppress

from quantum.archive.types import PrgId
from quantum.lake.archive import LogSource
from quantum.lake.archive.falling_through import FallThroughSource
from quantum.lake.errors import BadAddress
from quantum.lake.feed.client import ClusterSource


def check_keys(source: LogSource, prg: PrgId) -> None:
    """Raise WrongKey or NotPermitted unless the source's keys open this partition's log.

    A running cluster says how far its logs go to everybody, so it is asked for an empty page.
    """
    if isinstance(source, FallThroughSource):
        check_keys(source.live, prg)
        with suppress(BadAddress):  # nothing of it is archived yet
            source.archive.bounds(prg)
    elif isinstance(source, ClusterSource):
        source.check_keys(prg)
    else:
        source.bounds(prg)  # what it opens it remembers
