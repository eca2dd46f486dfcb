"""How much a tenant may hold, and what happens when it holds more (§11.2, A.4).

The ladder. Up to the quota everything is admitted. Beyond it a grace begins (24 hours, or what
`overage_grace_ms` says): up to one and a half times the quota (and never beyond the
specification's maximum) requests are carried out and throttled, and what goes further is
rejected. When the grace is used up, what would exceed the quota is answered with a disconnect.
The grace is given anew only after usage has stayed within the quota for as long on end, so that
dipping below does not buy more. A grace of nothing makes the quota the bound itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum, StrEnum

from quantum.tenancy.errors import InvalidQuota, TenancyMisuse
from quantum.tenancy.ladder import GRACE_MS, Usage
from quantum.tenancy.types import QuotaVerdict

MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40


_MAXIMA = {
    "connections": 1_048_576,
    "retained_bytes": TIB,
    "session_bytes": 2 * TIB,
    "subscription_filters": 10_000_000,
    "shared_groups": 500_000,
    "retained_topics": 100_000_000,
    "sessions": 1_048_576,
    "offline_bytes_per_session": GIB,
    "offline_messages_per_session": 50_000,
    "subscriptions_per_session": 100_000,
    "wildcard_filter_levels": 1024,
    "queues": 1_000_000,
    "queue_messages": 1_000_000_000,
    "queue_bytes": 16 * TIB,
    "overage_grace_ms": 366 * GRACE_MS,
}


class Resource(StrEnum):
    """What a tenant as a whole holds; each is a field of `Quotas`."""

    CONNECTIONS = "connections"
    RETAINED_BYTES = "retained_bytes"
    SESSION_BYTES = "session_bytes"
    SUBSCRIPTION_FILTERS = "subscription_filters"
    SHARED_GROUPS = "shared_groups"
    RETAINED_TOPICS = "retained_topics"
    SESSIONS = "sessions"


@dataclass(frozen=True, slots=True)
class Quotas:
    """A tenant's quotas: by default the specification's, and never beyond its maxima."""

    connections: int = 1_048_576
    retained_bytes: int = 64 * GIB
    session_bytes: int = 128 * GIB
    subscription_filters: int = 1_000_000
    shared_groups: int = 50_000
    offline_bytes_per_session: int = 64 * MIB
    offline_messages_per_session: int = 1_000
    subscriptions_per_session: int = 10_000
    wildcard_filter_levels: int = 128
    """How deep a filter with wildcards may be: each of its levels is a node of the index."""
    retained_topics: int = 10_000_000
    sessions: int = 1_048_576
    """Sessions that are in a log: lasting ones, and those with subscriptions or a will."""
    queues: int = 16_384
    """AMQP's queues; without a grace, as are what all of them hold together."""
    queue_messages: int = 10_000_000
    queue_bytes: int = 64 * GIB
    overage_grace_ms: int = GRACE_MS
    """For how long half as much again is let in; 0: a quota is the bound itself."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, most = getattr(self, field.name), _MAXIMA[field.name]
            if not 0 <= value <= most:
                raise InvalidQuota("outside its bounds", quota=field.name, value=value, most=most)

    def of(self, resource: Resource) -> int:
        """Return the quota of one resource."""
        quota: int = getattr(self, resource.value)
        return quota

    def ceiling(self, resource: Resource) -> int:
        """Return what may be held of it during a grace: half as much again, within the maximum."""
        if not self.overage_grace_ms:
            return self.of(resource)
        return min(self.of(resource) * 3 // 2, _MAXIMA[resource.value])


QUOTA_MAXIMA = Quotas(**_MAXIMA)


class Alert(Enum):
    """What operators are told (A.4)."""

    NONE = "none"
    NEAR = "at 0.95 of the quota"
    OVER = "at 1.05 of the quota"


@dataclass(frozen=True, slots=True)
class QuotaDecision:
    """What is done about one request, and the facts for envelopes, audit and alerts."""

    verdict: QuotaVerdict
    resource: Resource
    used: int
    """After the request, if it was carried out."""
    quota: int
    grace_left_ms: int

    @property
    def alert(self) -> Alert:
        if self.used == 0 or self.used * 100 < self.quota * 95:
            return Alert.NONE
        return Alert.NEAR if self.used * 100 < self.quota * 105 else Alert.OVER

    @property
    def excess(self) -> int:
        """How much would have to go for the tenant to be within its quota."""
        return max(0, self.used - self.quota)


class QuotaLedger:
    """What one tenant holds, resource by resource, and how far up the ladder it is."""

    __slots__ = ("_quotas", "_usages")

    def __init__(self, quotas: Quotas, usages: Mapping[Resource, Usage] | None = None) -> None:
        self._quotas = quotas
        self._usages = {resource: Usage() for resource in Resource} | dict(usages or {})

    @property
    def quotas(self) -> Quotas:
        return self._quotas

    def usage(self, resource: Resource) -> Usage:
        """Return what is held, and the state of its grace."""
        return self._usages[resource]

    def charge(self, resource: Resource, amount: int, now_ms: int) -> QuotaDecision:
        """Take an amount, or refuse it and take nothing; the verdict says which."""
        if amount < 0:
            raise TenancyMisuse("less than nothing is charged", amount=amount)
        usage = self._usages[resource]
        grace_ms = self._quotas.overage_grace_ms
        usage.close_grace(now_ms, grace_ms)
        after = usage.used + amount
        quota, ceiling = self._quotas.of(resource), self._quotas.ceiling(resource)
        verdict = usage.judge(after, quota, ceiling, now_ms, grace_ms)
        if verdict in (QuotaVerdict.ADMIT, QuotaVerdict.THROTTLE):
            usage.note(after, quota, now_ms, grace_ms)
        return self._decision(verdict, resource, now_ms)

    def release(self, resource: Resource, amount: int, now_ms: int) -> None:
        """Give an amount back. Raises `TenancyMisuse` if so much was never taken."""
        usage = self._usages[resource]
        if not 0 <= amount <= usage.used:
            raise TenancyMisuse("more is released than held", amount=amount, used=usage.used)
        self.measure(resource, usage.used - amount, now_ms)

    def measure(self, resource: Resource, used: int, now_ms: int) -> None:
        """Take what is held from who counts it by itself."""
        quota, grace_ms = self._quotas.of(resource), self._quotas.overage_grace_ms
        self._usages[resource].note(used, quota, now_ms, grace_ms)

    def change(self, quotas: Quotas, now_ms: int) -> None:
        """Put other quotas in force; what is held beyond them is in grace from now on."""
        self._quotas = quotas
        for resource, usage in self._usages.items():
            usage.note(usage.used, quotas.of(resource), now_ms, quotas.overage_grace_ms)

    def exhausted(self, now_ms: int) -> list[QuotaDecision]:
        """Return a disconnect for each resource that is still over its quota after the grace."""
        return [
            self._decision(QuotaVerdict.DISCONNECT, resource, now_ms)
            for resource, usage in self._usages.items()
            if usage.used > self._quotas.of(resource)
            and usage.grace_left_ms(now_ms, self._quotas.overage_grace_ms) == 0
        ]

    def _decision(self, verdict: QuotaVerdict, resource: Resource, now_ms: int) -> QuotaDecision:
        usage = self._usages[resource]
        quota, grace_ms = self._quotas.of(resource), self._quotas.overage_grace_ms
        left_ms = usage.grace_left_ms(now_ms, grace_ms)
        return QuotaDecision(verdict, resource, usage.used, quota, left_ms)
