"""How a node stops: it hands leadership over, and lets what was begun end; bounded (§14.3)."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from clustor.log.types import PartitionId
from clustor.runtime.group import HostedGroup
from clustor.runtime.ticks import TICK_SECONDS

GRACEFUL_SHUTDOWN_TIMEOUT_MS: Final = 10_000  # clustor §14.3
COMMIT_QUIESCENCE_MS: Final = 200
_TRANSFER_MS_MAX: Final = 2_000


class StoppingNode(Protocol):
    """What the end of a node reaches of it."""

    groups: dict[PartitionId, HostedGroup]

    def now_ms(self) -> int:
        """Return the loop's monotonic clock."""

    def hand_over(self, group: HostedGroup) -> None:
        """Hand over to the replica that is furthest; a transfer that runs is left alone."""


async def wind_down(node: StoppingNode) -> None:
    """Hand every leadership over, and wait until nothing is under way; both for a while only."""
    deadline_ms = node.now_ms() + GRACEFUL_SHUTDOWN_TIMEOUT_MS
    await _hand_all_over(node, node.now_ms() + _TRANSFER_MS_MAX)
    await _quiesce(node, deadline_ms)


async def _hand_all_over(node: StoppingNode, deadline_ms: int) -> None:
    while node.now_ms() < deadline_ms:
        leading = [group for group in node.groups.values() if group.replica.leads]
        if not leading:
            return
        for group in leading:
            node.hand_over(group)
        await asyncio.sleep(2 * TICK_SECONDS)


async def _quiesce(node: StoppingNode, deadline_ms: int) -> None:
    """Wait until nothing was under way for a while."""
    quiet_since = node.now_ms()
    while (now := node.now_ms()) < deadline_ms:
        if not all(group.idle for group in node.groups.values()):
            quiet_since = now
        elif now - quiet_since >= COMMIT_QUIESCENCE_MS:
            return
        await asyncio.sleep(TICK_SECONDS)
