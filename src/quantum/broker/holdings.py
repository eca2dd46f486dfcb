"""A partition's part of its tenant's quotas, and where each of them is on the ladder (§11.2).

The bounds are state: `SetPolicy` puts the partition's part of each quota into its log, and the
grace runs on the time of commands, so every replica refuses the same. Until the first one a
partition has an equal part of the specification's quotas.
"""

from __future__ import annotations

from quantum.broker.settings import BrokerSettings
from quantum.tenancy import HELD, Amounts, Quotas, Resource, Usage, plan_shares

RETAINED_TOPICS, RETAINED_BYTES, SESSION_BYTES, SESSIONS, SUBSCRIPTIONS, GROUPS = range(len(HELD))
"""The places in shares and amounts."""
assert HELD[SESSION_BYTES] is Resource.SESSION_BYTES and HELD[GROUPS] is Resource.SHARED_GROUPS


class Holdings:
    """The partition's part of each quota, and where each is on the ladder."""

    __slots__ = ("ceilings", "shares", "usages")

    def __init__(self, settings: BrokerSettings) -> None:
        nothing = [(0,) * len(HELD)] * settings.prg_count
        quotas = Quotas()
        self.shares, self.ceilings = plan_shares(quotas, nothing, 0, settings.prg_count)
        self.usages = [Usage() for _ in HELD]

    def frozen(self) -> tuple[Amounts, Amounts, list[tuple[int, int]]]:
        """Say it all, for a snapshot; `restore` is the inverse."""
        graces = [
            (_stamp(each.grace_since_ms), _stamp(each.within_since_ms)) for each in self.usages
        ]
        return self.shares, self.ceilings, graces

    def restore(self, shares: Amounts, ceilings: Amounts, graces: list[tuple[int, int]]) -> None:
        self.shares, self.ceilings = shares, ceilings
        self.usages = [Usage(0, _time(grace), _time(within)) for grace, within in graces]


def _stamp(time_ms: int | None) -> int:
    return -1 if time_ms is None else time_ms


def _time(stamp: int) -> int | None:
    return None if stamp < 0 else stamp
