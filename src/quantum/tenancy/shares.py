"""A tenant's quotas, shared out among its partitions.

A partition decides alone, from its log, so it needs a bound of its own. Its part is what it holds
already and an equal part of what the tenant has left. So a tenant whose sessions happen to hash to
one partition is not refused what is its due, and when everyone has heard of everyone the parts
add up to the quota. Between two plans each partition may use up the part that it was given: what
the tenant can hold beyond its quota is what the others grew meanwhile, and that is only throttled
(up to one and a half times the quota).

A shared group is known to every partition that may own its topics: none of them knows more groups
than the tenant may have, and that bound is not divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from quantum.tenancy.quotas import Quotas, Resource

HELD: Final = (
    Resource.RETAINED_TOPICS,
    Resource.RETAINED_BYTES,
    Resource.SESSION_BYTES,
    Resource.SESSIONS,
    Resource.SUBSCRIPTION_FILTERS,
    Resource.SHARED_GROUPS,
)
"""What partitions hold, in the order in which shares name it."""
_DRIFT: Final = 8
"""A share is given anew when it is wrong by more than this part of the quota."""

Amounts: TypeAlias = "tuple[int, ...]"
"""One number for each of `HELD`."""


def plan_shares(
    quotas: Quotas, held: Sequence[Amounts], here: int, partitions: int
) -> tuple[Amounts, Amounts]:
    """Return a partition's part of each quota, and the most that it may hold during a grace.

    `held` is what each partition holds, `here` says which of them is asked about.
    """
    shares, ceilings = [], []
    for nth, resource in enumerate(HELD):
        quota, ceiling = quotas.of(resource), quotas.ceiling(resource)
        if resource is Resource.SHARED_GROUPS:
            shares.append(quota)
            ceilings.append(ceiling)
            continue
        own, everywhere = held[here][nth], sum(each[nth] for each in held)
        shares.append(_part(quota, own, everywhere, partitions))
        ceilings.append(_part(ceiling, own, everywhere, partitions))
    return tuple(shares), tuple(ceilings)


def _part(limit: int, own: int, everywhere: int, partitions: int) -> int:
    if everywhere > limit:
        return limit * own // everywhere  # its part of what is too much is too much as well
    return own + -(-(limit - everywhere) // partitions)


def is_stale(quotas: Quotas, own: Amounts, current: Amounts, planned: Amounts) -> bool:
    """Say whether shares must be given anew: another quota, far off, or needed.

    What is far from its bound keeps its share although others hold a little more or less: every
    new share is an entry of a log.
    """
    for resource, used, now, then in zip(HELD, own, current, planned, strict=True):
        if now == then:
            continue
        if _DRIFT * abs(then - now) > quotas.of(resource) or 4 * used >= 3 * min(now, then):
            return True
    return False
