"""How many connections this process can hold: each one is an open file."""

from __future__ import annotations

import resource
from typing import Final

FILES_RESERVED: Final = 512
"""For logs, peers and certificates: clients must never take the disk's last file."""


def raise_file_limit() -> int:
    """Allow this process all the open files that it may have; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connections_possible(wanted: int, files_max: int) -> int:
    """Return how many connections to take at once.

    Beyond it the lobby turns clients away one by one, where a lack of files would hit whoever
    needs the next one.
    """
    return max(1, min(wanted, files_max - FILES_RESERVED))
