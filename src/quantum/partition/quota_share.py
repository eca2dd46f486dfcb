"""A leader's part in its tenant's quotas: what its partition may hold of them, as far as it knows.

The machine decides by what is in its log (`quantum.broker.limiting`). A leader looks once in a
while at what all partitions hold, as the replicas of its node know it, and gives its own another
share where that matters.
"""

from __future__ import annotations

from typing import Final

from quantum.broker import SetFullQueues, SetPolicy, encode_command
from quantum.broker.full_queues import FullQueue
from quantum.broker.limiting import held
from quantum.partition.ports import LeaderPort
from quantum.tenancy import FullQueueChoice, SharedDistribution, is_stale, plan_shares

_LOOK_TICKS: Final = 10
_CHOICES: Final = {
    FullQueueChoice.BLOCK: FullQueue.BLOCK,
    FullQueueChoice.DROP_OLDEST: FullQueue.DROP_OLDEST,
    FullQueueChoice.DROP_NEWEST: FullQueue.DROP_NEWEST,
    FullQueueChoice.END_SESSION: FullQueue.END_SESSION,
}


class PolicyKeeper:
    """Of one partition, while it leads."""

    __slots__ = ("_asked", "_prg", "_ticks")

    def __init__(self, prg: LeaderPort) -> None:
        self._prg = prg
        self._asked = False
        """Whether a share of ours is on its way into the log."""
        self._ticks = 0

    def on_tick(self) -> None:
        """Give the partition another share, if it needs one; most of the time it does not."""
        self._ticks += 1
        if self._asked or self._ticks % _LOOK_TICKS:
            return
        prg, state = self._prg, self._prg.broker.state
        if not state.is_open:
            return
        policy = prg.tenant.guard.description.policy
        quotas, hashes = policy.quotas, policy.shared_distribution is SharedDistribution.HASH
        amounts = [held(each.broker.state) for each in prg.tenant.prgs]
        shares, ceilings = plan_shares(quotas, amounts, prg.number, state.prg_count)
        holdings, own = state.holdings, amounts[prg.number]
        is_other = hashes != state.hashes_shares
        if (
            is_other
            or is_stale(quotas, own, holdings.shares, shares)
            or is_stale(quotas, own, holdings.ceilings, ceilings)
        ):
            self._asked = True
            command = SetPolicy(prg.now_ms(), list(shares), list(ceilings), hashes)
            prg.propose(encode_command(command), self._done)
            return
        chosen = _CHOICES[policy.full_queues]
        if chosen is not state.full_queues and prg.tenant.knows_full_queues(prg):
            self._asked = True
            prg.propose(encode_command(SetFullQueues(prg.now_ms(), int(chosen))), self._done)

    def _done(self, _reply: bytes | None) -> None:
        self._asked = False
