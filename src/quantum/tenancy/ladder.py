"""The ladder of one quota: admitted, throttled, rejected, disconnected (§11.2, A.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quantum.tenancy.types import QuotaVerdict

GRACE_MS: Final = 24 * 60 * 60 * 1000


@dataclass(slots=True)
class Usage:
    """What is held of one resource. A ledger made from it goes on where another one stopped."""

    used: int = 0
    grace_since_ms: int | None = None
    """When the usage first went beyond the quota; None while no grace runs."""
    within_since_ms: int | None = None
    """Since when it has been within the quota again; None unless a grace runs."""

    def grace_left_ms(self, now_ms: int, grace_ms: int = GRACE_MS) -> int:
        """Return for how long more than the quota is only throttled."""
        if self.grace_since_ms is None:
            return grace_ms
        return max(0, grace_ms - (now_ms - self.grace_since_ms))

    def judge(
        self, after: int, quota: int, ceiling: int, now_ms: int, grace_ms: int = GRACE_MS
    ) -> QuotaVerdict:
        """Say what is done about a request after which so much would be held."""
        if after <= quota:
            return QuotaVerdict.ADMIT
        if self.grace_left_ms(now_ms, grace_ms) == 0:
            return QuotaVerdict.DISCONNECT
        return QuotaVerdict.THROTTLE if after <= ceiling else QuotaVerdict.REJECT

    def note(self, used: int, quota: int, now_ms: int, grace_ms: int = GRACE_MS) -> None:
        """Take what is held now; begin a grace, or the time within the quota that may end it."""
        self.close_grace(now_ms, grace_ms)
        self.used = used
        if used > quota:
            self.within_since_ms = None
            if self.grace_since_ms is None:
                self.grace_since_ms = now_ms
        elif self.grace_since_ms is not None and self.within_since_ms is None:
            self.within_since_ms = now_ms

    def close_grace(self, now_ms: int, grace_ms: int = GRACE_MS) -> None:
        """Give the grace anew if a whole one was spent within the quota."""
        if self.within_since_ms is not None and now_ms - self.within_since_ms >= grace_ms:
            self.grace_since_ms = self.within_since_ms = None
