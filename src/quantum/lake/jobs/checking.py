"""Whether a job can begin: somebody answers, and the keys fit. Asked before Spark starts.

A JVM takes ten seconds to come up, and a reader that waits for a cluster takes thirty: who mistyped
a path should not have to wait for either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from quantum.lake.archive import LogSource
from quantum.lake.archive.falling_through import FallThroughSource
from quantum.lake.errors import SourceUnreachable, while_reading
from quantum.lake.feed.client import ClusterSource
from quantum.lake.jobs.sources import open_logs
from quantum.lake.key_check import check_keys
from quantum.lake.keys_option import key_provider
from quantum.lake.opening import open_source

PATIENCE_SECONDS: Final = 0.3
TIMEOUT_SECONDS: Final = 1.5
"""For all addresses together: whoever is asked and says nothing, is not there."""


def check_logs(where: str, keys: str = "directory", broker: str | None = None) -> LogSource:
    """Open logs as `open_logs` does, and have one partition of each tenant confirm its keys.

    Raises LakeError, in about two seconds: BadAddress and BadOption for what cannot be meant,
    WrongKey and NotPermitted with the key that was wanted and the one that was given,
    SourceUnreachable where nobody answers.
    """
    provider = key_provider(keys, where)
    source = open_source(where, provider)
    hurried = _hurried(source)
    try:
        prgs = hurried.prgs()
    except SourceUnreachable as error:
        facts: dict[str, Any] = error.facts
        raise SourceUnreachable(
            "no node answers: is the broker running, and is this its admin address?", **facts
        ) from error
    for prg in {prg.tenant: prg for prg in reversed(prgs)}.values():
        with while_reading(prg, 1):
            provider.keyring(prg)
            check_keys(hurried, prg)
    return open_logs(source, keys, broker)


def _hurried(source: LogSource) -> LogSource:
    """Return the source without its patience."""
    if isinstance(source, FallThroughSource):
        return replace(source, live=_hurried(source.live))
    if isinstance(source, ClusterSource):
        seconds = TIMEOUT_SECONDS / len(source.addresses)
        return replace(source, patience_seconds=PATIENCE_SECONDS, timeout_seconds=seconds)
    return source
