"""Signed exceptions that a node obeys, for as long as they last (clustor §12.3).

Once a second the node asks its copy which overrides of the ledger are active. It obeys them, and
stops by itself when their time is over: no call is needed, and no control plane. Both are audited.

| scope | while it is active |
| --- | --- |
| Credit | a leader whose followers are structurally behind does not step down (§10.6) |
| Durability | the timer that demotes a leader in strict fallback stands still (§9.1) |
| Quarantine, for all partitions | revocation data may be old, for five minutes at most (§12.1) |
| Survivability, Capacity | a placement that cites it is let through, and not rolled back (§9.9) |
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from clustor.control import OverrideEntry, OverrideScope, scan
from clustor.runtime.group import HostedGroup
from clustor.security import AuditEvent
from clustor.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from clustor.runtime.node import Node

LOOK_MS: Final = 1_000

journal = logging.getLogger("clustor.control")


class OverridesInForce:
    """The overrides that one node obeys now, as its copy of the control plane has them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.active: dict[str, OverrideEntry] = {}

    def look(self, now_ms: int) -> None:
        """See which are active, tell of what began and ended, and obey."""
        control = self._node.control
        if control is None:
            return
        known = {each.override_id: each for each in scan(control.cache, OverrideEntry)}
        before = self.active
        self.active = {name: each for name, each in known.items() if each.is_active(now_ms)}
        for name in sorted(self.active.keys() - before.keys()):
            self._tell("OverrideObeyed", self.active[name], "Began")
        for name in sorted(before.keys() - self.active.keys()):
            revoked = name in known and known[name].revoked_at is not None
            self._tell("OverrideEnded", before[name], "Revoked" if revoked else "Expired")
        for group in self._node.groups.values():
            if group.replica.ready:
                self._obey(group)

    def covering(self, scope: OverrideScope, partition: int) -> OverrideEntry | None:
        """Return an active override of a scope that covers a partition; the one that ends last."""
        found = [
            each
            for each in self.active.values()
            if each.scope is scope and (not each.partitions or partition in each.partitions)
        ]
        return max(found, key=lambda each: each.expires_at, default=None)

    def waivers(self, now_ms: int) -> list[tuple[str, int]]:
        """Return who waives fresh revocation data for a whole node, and for how many ms."""
        return [
            (name, each.expires_at - now_ms)
            for name, each in sorted(self.active.items())
            if each.scope is OverrideScope.QUARANTINE and not each.partitions
        ]

    def words_for(self, partition: int, now_ms: int) -> str:
        """Say which overrides change what a group does, for `why`; nothing: none does."""
        found = [self.covering(scope, partition) for scope in OverrideScope]
        return "".join(
            f"; override {each.override_id} ({each.scope}) is obeyed for "
            f"{max(0, each.expires_at - now_ms) // 1_000} s more"
            for each in found
            if each is not None
        )

    def _obey(self, group: HostedGroup) -> None:
        partition = int(group.partition_id)
        credit = self.covering(OverrideScope.CREDIT, partition)
        group.admission.override_structural(active=credit is not None)
        if self.covering(OverrideScope.DURABILITY, partition) is not None:
            group.replica.group.renew_fallback()

    def _tell(self, what: str, override: OverrideEntry, outcome: str) -> None:
        name, scope = override.override_id, override.scope
        journal.warning("override %s (%s): %s", name, scope, outcome)
        if self._node.audit is not None:
            self._node.audit.note(
                AuditEvent(
                    who=override.actor_id,
                    what=what,
                    outcome=outcome,
                    at_ms=wall_clock_ms(),
                    object=f"override/{name}",
                )
            )
