"""Who may come in, and when: a rate before anything is spent on a client, and a maximum.

A storm of reconnects is not refused but spread: who comes too early waits, unread and nearly
free, until the bucket has a token for it. Only a full house and a full waiting room turn away.
Pure: time comes in as `now`, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

Guest = TypeVar("Guest", bound=Hashable)


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How many, and how fast."""

    connections_max: int = 100_000
    """At once, with those that wait."""
    per_second: float = 5_000.0
    burst: int = 1_000
    waiting_max: int = 50_000


class AdmissionVerdict(Enum):
    """What happens to a guest at the door."""

    ENTER = auto()
    WAIT = auto()
    TURN_AWAY = auto()


class RateBucket:
    """A rate with a burst: `take` succeeds `burst` times at once, then `per_second`."""

    __slots__ = ("_burst", "_per_second", "_seen", "_tokens")

    def __init__(self, per_second: float, burst: int, now: float) -> None:
        assert per_second > 0 and burst >= 1
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._seen = now

    def take(self, now: float) -> bool:
        """Take one token, or say that there is none yet."""
        gained = max(0.0, now - self._seen) * self._per_second
        self._tokens = min(self._burst, self._tokens + gained)
        self._seen = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class EdgeAdmission(Generic[Guest]):
    """The door of one or several listeners. Guests are told apart by identity or equality."""

    def __init__(self, limits: AdmissionLimits, now: float) -> None:
        self._limits = limits
        self._bucket = RateBucket(limits.per_second, limits.burst, now)
        self._waiting: dict[Guest, None] = {}
        self._inside = 0

    @property
    def present(self) -> int:
        """How many are here, with those that wait."""
        return self._inside + len(self._waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def arrive(self, guest: Guest, now: float) -> AdmissionVerdict:
        """Decide about a new guest; first come, first served."""
        if self.present >= self._limits.connections_max:
            return AdmissionVerdict.TURN_AWAY
        if not self._waiting and self._bucket.take(now):
            self._inside += 1
            return AdmissionVerdict.ENTER
        if len(self._waiting) >= self._limits.waiting_max:
            return AdmissionVerdict.TURN_AWAY
        self._waiting[guest] = None
        return AdmissionVerdict.WAIT

    def release(self, now: float) -> list[Guest]:
        """Let in those whose turn has come, in the order of their arrival."""
        released: list[Guest] = []
        while self._waiting and self._bucket.take(now):
            guest = next(iter(self._waiting))
            del self._waiting[guest]
            self._inside += 1
            released.append(guest)
        return released

    def leave(self, guest: Guest) -> None:
        """Forget a guest that entered or waited."""
        if guest in self._waiting:
            del self._waiting[guest]
        else:
            self._inside -= 1
            assert self._inside >= 0
