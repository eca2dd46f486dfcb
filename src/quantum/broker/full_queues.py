"""C24: what becomes of messages for a lasting session whose queue is full, as its tenant chose.

The choice is state: it came by the log, and every replica drops the same. Blocking, the default,
is in `delivering`: nothing is dropped, and publishers wait.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

FULL_REASON: Final = "its queue is full"


class FullQueue(IntEnum):
    """What a tenant chose; the numbers stand in logs and snapshots."""

    BLOCK = 0
    DROP_OLDEST = 1
    DROP_NEWEST = 2
    END_SESSION = 3
