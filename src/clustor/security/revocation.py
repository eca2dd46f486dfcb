"""Is what we know about revoked certificates fresh enough to trust anybody (clustor §12.1)?

Each node asks this of itself alone, on its monotonic clock. When the answer is no it quarantines
itself: it ends its connections and opens none. Nothing here is told to other nodes: a feed that
is down for one must not close the others.

            age of data > 300 s, or no feed for 600 s
    FRESH ──────────────────────────────────────────► QUARANTINED ◄── at the start
      ▲  ◄─────────────────────────────────────────────   │  ▲
      │                 fresh data                        │  │ its time is over
      └──────────────────────────────  WAIVED  ◄──────────┘──┘
                                        a break-glass waiver, at most 300 s
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from clustor.security.errors import SecurityMisuse

MAX_STALENESS_MS: Final = 300_000
FAIL_CLOSED_MS: Final = 600_000
WAIVER_MS_MAX: Final = 300_000
SHORT_LIVED_MS: Final = 86_400_000
_WAIVERS_KEPT: Final = 64


class Feed(StrEnum):
    """Where revocation data comes from, in the order in which it is asked."""

    OCSP = "OcspStapling"
    CRL = "Crl"


class FeedFreshness(StrEnum):
    """What a node may do."""

    FRESH = "Fresh"
    WAIVED = "Waived"
    """As if fresh, but for short-lived certificates: those need a fresh feed."""
    QUARANTINED = "Quarantined"


@dataclass(frozen=True, slots=True)
class RevocationStatus:
    """What is so now, and why: for readiness and explanations."""

    freshness: FeedFreshness
    data_age_ms: int | None
    """None: there never was any data."""
    unavailable_ms: int
    reason: str


class RevocationFreshness:
    """The clock of one node's trust. Pure: time comes in with every call, and never goes back."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._produced_ms: int | None = None
        """When the newest data was made, on our clock."""
        self._heard_ms = now_ms
        """When a feed last answered; at first when we began to ask."""
        self._waived_until_ms: int | None = None
        self._waivers: list[str] = []
        self.quarantines = 0
        """How often this node went into quarantine after it had been fresh."""
        self._was_open = False

    def on_feed(self, feed: Feed, age_ms: int, now_ms: int) -> None:
        """A feed answered with data that was made `age_ms` ago; older data than ours adds nothing.

        Fresh data ends a waiver: what comes after it needs another one.
        """
        assert feed in Feed
        self._advance(now_ms)
        self._heard_ms = now_ms
        produced_ms = now_ms - max(0, age_ms)
        if self._produced_ms is None or produced_ms > self._produced_ms:
            self._produced_ms = produced_ms
        if now_ms - self._produced_ms <= MAX_STALENESS_MS:
            self._waived_until_ms = None

    def on_waiver(self, waiver_id: str, ttl_ms: int, now_ms: int) -> None:
        """A break-glass waiver: once, and for at most 300 s. Raises SecurityMisuse otherwise."""
        self._advance(now_ms)
        if not 0 < ttl_ms <= WAIVER_MS_MAX:
            raise SecurityMisuse("a waiver lasts at most 300 s", ttl_ms=ttl_ms)
        if waiver_id in self._waivers:
            raise SecurityMisuse("the waiver was used", waiver=waiver_id)
        self._waivers = [*self._waivers[1 - _WAIVERS_KEPT :], waiver_id]
        self._waived_until_ms = now_ms + ttl_ms

    def was_used(self, waiver_id: str) -> bool:
        """Say whether a waiver was used before: there is no second time."""
        return waiver_id in self._waivers

    def status(self, now_ms: int) -> RevocationStatus:
        """Say what is so now."""
        self._advance(now_ms)
        age = None if self._produced_ms is None else now_ms - self._produced_ms
        silent = now_ms - self._heard_ms
        reason = _why_closed(age, silent)
        if reason is None:
            freshness = FeedFreshness.FRESH
        elif self._waived_until_ms is not None and now_ms < self._waived_until_ms:
            freshness = FeedFreshness.WAIVED
        else:
            freshness = FeedFreshness.QUARANTINED
        if self._was_open and freshness is FeedFreshness.QUARANTINED:
            self.quarantines += 1
        self._was_open = freshness is not FeedFreshness.QUARANTINED
        return RevocationStatus(freshness, age, silent, reason or "fresh")

    def permits(self, certificate_lifetime_ms: int, now_ms: int) -> bool:
        """Say whether a connection with such a certificate may be opened or kept."""
        freshness = self.status(now_ms).freshness
        if freshness is FeedFreshness.WAIVED:
            return certificate_lifetime_ms > SHORT_LIVED_MS
        return freshness is FeedFreshness.FRESH

    def next_deadline(self, now_ms: int) -> int | None:
        """Return when the answer changes by itself; None: only news can change it."""
        match self.status(now_ms).freshness:
            case FeedFreshness.FRESH:
                assert self._produced_ms is not None
                stale = self._produced_ms + MAX_STALENESS_MS
                return min(stale, self._heard_ms + FAIL_CLOSED_MS) + 1
            case FeedFreshness.WAIVED:
                return self._waived_until_ms
            case FeedFreshness.QUARANTINED:
                return None

    def _advance(self, now_ms: int) -> None:
        assert now_ms >= self._now_ms, "the monotonic clock went back"
        self._now_ms = now_ms


def _why_closed(age_ms: int | None, silent_ms: int) -> str | None:
    if age_ms is None:
        return "no revocation data yet"
    if age_ms > MAX_STALENESS_MS:
        return "revocation data is too old"
    if silent_ms > FAIL_CLOSED_MS:
        return "no revocation feed answers"
    return None
