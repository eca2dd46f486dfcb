"""The Kafka clients of one tenant on this node: what its requests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from quantum.broker.streams import GroupEvent
from quantum.mesh.tenant import Tenant
from quantum.mesh.topics import TenantTopics
from quantum.partition.leader import PartitionLeader
from quantum.protocols.kafka.requests import FetchSessions

_ID_BYTES: Final = 4
_ID_MASK: Final = (1 << 31) - 1


class TenantConnection(Protocol):
    """A connection, as its tenant sees it."""

    def policy_changed(self) -> None: ...
    def sent_away(self, why: str) -> None: ...


class GroupWaiter(Protocol):
    """A request that waits for a group: it is told of events, and when another node leads it."""

    def on_event(self, event: GroupEvent) -> bool:
        """Take an event of its group; say whether it was what was waited for."""
        ...

    def on_moved(self) -> None:
        """Nobody here leads the group any more."""

    @property
    def is_over(self) -> bool: ...


class TenantKafka:
    """A side of a tenant (`quantum.mesh.tenant.TenantSide`)."""

    def __init__(
        self, tenant: Tenant, topics: TenantTopics, entropy: Callable[[int], bytes]
    ) -> None:
        self.tenant = tenant
        self.name = tenant.name
        self.topics = topics
        self.fetch_sessions = FetchSessions(
            lambda: int.from_bytes(entropy(_ID_BYTES), "little") & _ID_MASK
        )
        self.connections: set[TenantConnection] = set()
        self._waiting: dict[tuple[int, str], list[GroupWaiter]] = {}
        """Who waits for a group, by its PRG and name."""
        self.joins: object = None
        """The lines of `transaction_joins`, which makes them."""
        topics.on_group_event(self._on_group_event)

    # Groups.

    def wait_for_group(self, prg: int, group: str, waiter: GroupWaiter) -> None:
        """Tell a request of what happens to a group, until that is what it waits for."""
        self._waiting.setdefault((prg, group), []).append(waiter)

    def _on_group_event(self, prg: int, event: GroupEvent) -> None:
        waiting = self._waiting.pop((prg, event.group), [])
        left = [each for each in waiting if not each.is_over and not each.on_event(event)]
        if left:
            self._waiting.setdefault((prg, event.group), [])[:0] = left

    def look(self, _now_ms: int) -> None:
        """Tell those whose group is led elsewhere now, and forget who has gone."""
        for key, waiting in list(self._waiting.items()):
            if not self.topics.leader(key[0]).is_here:
                del self._waiting[key]
                for each in waiting:
                    each.on_moved()
            elif any(each.is_over for each in waiting):
                waiting[:] = [each for each in waiting if not each.is_over]
                if not waiting:
                    del self._waiting[key]

    # What its tenant says.

    def judge_again(self) -> None:
        for connection in list(self.connections):
            connection.policy_changed()

    def send_away(self, why: str) -> int:
        clients = list(self.connections)
        for connection in clients:
            connection.sent_away(why)
        return len(clients)

    def ring_grew(self, fresh: list[PartitionLeader]) -> None:
        """Nothing of a topic moves with the ring."""

    def link_anew(self, peer: int) -> None:
        """What was asked over the link is answered by its own way."""

    def review(self) -> None:
        """What is closed is looked at with each request."""

    def on_tick(self, now_ms: int) -> None:
        """The adapter's own tick does it."""
