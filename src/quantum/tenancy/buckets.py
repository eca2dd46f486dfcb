"""How fast a tenant may go: token buckets, and the ladder for those who stay too fast (§11.3).

Time is given with every question, in milliseconds, and may stand still or step back: such a step
adds no tokens. Levels are counted in thousandths of a token, so that a rate of n tokens per
second is n per millisecond and no fraction is ever lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from quantum.tenancy.errors import TenancyMisuse
from quantum.tenancy.types import QuotaVerdict

REJECT_AFTER_MS = 10_000
DISCONNECT_AFTER_MS = 60_000  # quantum §11: sustained overage
_PER_TOKEN = 1000


class TokenBucket:
    """Tokens that come at a steady rate and are saved up to a burst.

    An amount larger than the burst may be taken from a full bucket and leaves a debt: large
    messages are slow, never stuck.
    """

    __slots__ = ("_level", "_updated_ms", "burst", "rate_per_second")

    def __init__(self, rate_per_second: int, burst: int, now_ms: int) -> None:
        if rate_per_second < 1 or burst < 1:
            raise TenancyMisuse("a bucket without tokens", rate=rate_per_second, burst=burst)
        self.rate_per_second = rate_per_second
        self.burst = burst
        self._level = burst * _PER_TOKEN
        self._updated_ms = now_ms

    def take(self, amount: int, now_ms: int) -> bool:
        """Take tokens if they are there."""
        self._refill(now_ms)
        if self._level < min(amount, self.burst) * _PER_TOKEN:
            return False
        self._level -= amount * _PER_TOKEN
        return True

    def overdraw(self, amount: int, now_ms: int) -> None:
        """Take tokens that may not be there; the debt is paid before anything else is taken."""
        self._refill(now_ms)
        self._level -= amount * _PER_TOKEN

    def debt(self, now_ms: int) -> int:
        """Return how many tokens are owed, rounded up."""
        self._refill(now_ms)
        return max(0, -(self._level // _PER_TOKEN))

    def is_full(self, now_ms: int) -> bool:
        """Say whether nothing was taken for as long as the bucket takes to fill."""
        self._refill(now_ms)
        return self._level == self.burst * _PER_TOKEN

    def wait_ms(self, amount: int, now_ms: int) -> int:
        """Return in how many milliseconds `take` would succeed if nobody else takes."""
        self._refill(now_ms)
        missing = min(amount, self.burst) * _PER_TOKEN - self._level
        return max(0, -(-missing // self.rate_per_second))

    def _refill(self, now_ms: int) -> None:
        elapsed = now_ms - self._updated_ms
        if elapsed > 0:
            self._updated_ms = now_ms
            full = self.burst * _PER_TOKEN
            self._level = min(full, self._level + elapsed * self.rate_per_second)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A rate and what may come at once."""

    per_second: int
    burst: int


@dataclass(frozen=True, slots=True)
class RateDecision:
    """What is done about one request."""

    verdict: QuotaVerdict
    wait_ms: int = 0
    """For how long to leave the sender's next request unread, or to tell it to stay away."""


ADMITTED = RateDecision(QuotaVerdict.ADMIT)


class RateGuard:
    """One rate of one tenant, with its ladder.

    An overage begins with the first request that finds too few tokens, and ends when the
    bucket is full again and no request was too much for as long as it takes to fill: a pause of
    a moment does not end it, nor do rejections, which take no tokens. It is throttled for ten
    seconds and while the debt is within one burst, then rejected, and after a minute
    disconnected.
    """

    __slots__ = ("_bucket", "_calm_ms", "_over_at_ms", "_over_since_ms")

    def __init__(self, limit: RateLimit, now_ms: int) -> None:
        self._bucket = TokenBucket(limit.per_second, limit.burst, now_ms)
        self._over_since_ms: int | None = None
        self._over_at_ms = now_ms
        self._calm_ms = limit.burst * 1000 // limit.per_second

    def ask(self, amount: int, now_ms: int) -> RateDecision:
        """Decide about a request of so many tokens."""
        bucket = self._bucket
        if now_ms - self._over_at_ms >= self._calm_ms and bucket.is_full(now_ms):
            self._over_since_ms = None
        if bucket.take(amount, now_ms):
            return ADMITTED
        if self._over_since_ms is None:
            self._over_since_ms = now_ms
        self._over_at_ms = now_ms
        lasted_ms = now_ms - self._over_since_ms
        if lasted_ms > DISCONNECT_AFTER_MS:
            return RateDecision(QuotaVerdict.DISCONNECT)
        if lasted_ms >= REJECT_AFTER_MS or bucket.debt(now_ms) >= bucket.burst:
            return RateDecision(QuotaVerdict.REJECT, bucket.wait_ms(amount, now_ms))
        bucket.overdraw(amount, now_ms)
        return RateDecision(QuotaVerdict.THROTTLE, bucket.wait_ms(0, now_ms))

    def rest_ms(self, now_ms: int) -> int:
        """Return how long it takes until nothing is owed, if nobody takes more."""
        return self._bucket.wait_ms(0, now_ms)


class Rate(StrEnum):
    """What is counted by the second; each is a field of `Rates`."""

    PUBLISHES = "publishes"
    PUBLISH_BYTES = "publish_bytes"
    SUBSCRIBES = "subscribes"
    CONNECTS = "connects"


@dataclass(frozen=True, slots=True)
class Rates:
    """A tenant's rates; None where the operator sets none."""

    publishes: RateLimit | None = None
    publish_bytes: RateLimit | None = None
    subscribes: RateLimit | None = None
    connects: RateLimit | None = None


class NoisyNeighbour:
    """All rates of one tenant: one tenant's haste is its own trouble."""

    __slots__ = ("_guards",)

    def __init__(self, rates: Rates, now_ms: int) -> None:
        self._guards: dict[Rate, RateGuard] = {}
        for rate in Rate:
            limit: RateLimit | None = getattr(rates, rate.value)
            if limit is not None:
                self._guards[rate] = RateGuard(limit, now_ms)

    def ask(self, rate: Rate, amount: int, now_ms: int) -> RateDecision:
        """Decide about a request of one kind."""
        guard = self._guards.get(rate)
        return ADMITTED if guard is None else guard.ask(amount, now_ms)

    def ask_publish(self, messages: int, size_bytes: int, now_ms: int) -> RateDecision:
        """Decide about a batch by its count and its bytes; the harder verdict holds."""
        by_count = self.ask(Rate.PUBLISHES, messages, now_ms)
        by_bytes = self.ask(Rate.PUBLISH_BYTES, size_bytes, now_ms)
        return max(by_count, by_bytes, key=_hardness)

    def publish_rest_ms(self, now_ms: int) -> int:
        """Return for how long publishes are better left unread: until nothing is owed."""
        return max((rest_ms for _, rest_ms in self.publish_rests(now_ms)), default=0)

    def publish_rests(self, now_ms: int) -> list[tuple[Rate, int]]:
        """Return which rates of publishes are owed something, and for how long."""
        guards = ((rate, self._guards.get(rate)) for rate in (Rate.PUBLISHES, Rate.PUBLISH_BYTES))
        owed = ((rate, guard.rest_ms(now_ms)) for rate, guard in guards if guard is not None)
        return [(rate, rest_ms) for rate, rest_ms in owed if rest_ms]


def _hardness(decision: RateDecision) -> tuple[int, int]:
    return _LADDER.index(decision.verdict), decision.wait_ms


_LADDER = tuple(QuotaVerdict)


class ConnectionAdmission:
    """How many connections a node takes up before it knows whose they are.

    A listener that is told to wait accepts nothing meanwhile: the kernel's queue holds the
    rest, and a storm of reconnects costs as many handshakes per second as the node can bear.
    """

    __slots__ = ("_bucket", "_open", "_open_max")

    def __init__(self, limit: RateLimit, handshakes_max: int, now_ms: int) -> None:
        self._bucket = TokenBucket(limit.per_second, limit.burst, now_ms)
        self._open = 0
        self._open_max = handshakes_max

    @property
    def handshakes(self) -> int:
        """How many have been admitted and not settled: half-open connections."""
        return self._open

    def admit(self, now_ms: int) -> bool:
        """Take up one connection, unless too many are under way or came just now."""
        if self._open >= self._open_max or not self._bucket.take(1, now_ms):
            return False
        self._open += 1
        return True

    def wait_ms(self, now_ms: int) -> int | None:
        """Return when to ask again, or None if a handshake has to settle first."""
        return None if self._open >= self._open_max else self._bucket.wait_ms(1, now_ms)

    def settle(self) -> None:
        """Note that a handshake ended, well or not."""
        if self._open == 0:
            raise TenancyMisuse("more handshakes ended than began")
        self._open -= 1
