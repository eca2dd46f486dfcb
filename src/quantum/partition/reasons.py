"""Why a publish was not taken, in the partition's own words.

Each protocol has one table from these to what it can say to its clients.
"""

from __future__ import annotations

from enum import IntEnum

from quantum.broker import reasons


class RefusalReason(IntEnum):
    """The numbers are the machine's, as they also travel between nodes."""

    SESSION_GONE = reasons.SESSION_GONE
    """The session that it belongs to is not here, or not any more."""
    QUOTA_EXCEEDED = reasons.QUOTA_EXCEEDED
    """There is no room for it now: a full queue, a full store, or the tenant's quota."""
    QUOTA_EXHAUSTED = reasons.QUOTA_EXHAUSTED
    """The same for so long that its client must go, too."""

    @classmethod
    def of(cls, number: int) -> RefusalReason:
        """Read a machine's number; one of a newer build is a refusal all the same."""
        try:
            return cls(number)
        except ValueError:
            return cls.SESSION_GONE
