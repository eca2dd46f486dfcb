"""Groups that an error of our own has stopped: told to the control plane, opened again on its word.

    Fenced ─ `ReportQuarantine` with ApplyFault; the group's other members go on without it
           ─ an operator finds out what it was, and resumes or clears the quarantine
    opened anew from what is on disk: what it acknowledged is there, what slipped may slip again

A node that starts opens every group anew, and takes back what its last life had reported. Damage
that shows when a group is opened is the repair's (`repairing`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from clustor.control import (
    Answer,
    ClearQuarantine,
    Command,
    Done,
    Quarantine,
    QuarantineCause,
    Refused,
    ReportQuarantine,
    find,
)
from clustor.log.types import PartitionId
from clustor.raft.errors import DataLost
from clustor.replica import ReplicaDamaged
from clustor.runtime.errors import ControlUnavailable
from clustor.runtime.group import HostedGroup, QuarantineView
from clustor.runtime.repair.fenced_replica import FENCED
from clustor.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from clustor.runtime.node import Node

_CALL_AGAIN_MS: Final = 5_000
_CAUSE: Final = QuarantineCause.APPLY_FAULT
_PHASE: Final = "Fenced"

journal = logging.getLogger("clustor.node")


@dataclass(slots=True)
class _Held:
    """One group that is fenced."""

    group: HostedGroup
    detail: str
    is_known: bool = False  # the control plane holds it in quarantine: when no more, it may go on
    revision: int = 0  # at which the control plane took the report; 0: it has not
    is_busy: bool = False


class FencedGroups:
    """What `RepairService` looks after besides damaged bytes."""

    def __init__(self, node: Node, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._node = node
        self._spawn = spawn
        self._held: dict[PartitionId, _Held] = {}
        self._call_due_ms: dict[PartitionId, int] = {}

    def look(self) -> None:
        """Begin with what is newly fenced, and go on with the others."""
        for group in self._node.groups.values():
            fault = group.replica.fault
            if fault and group.partition_id not in self._held and not self._is_repaired(group):
                self._begin(group, fault)
            elif group.replica.ready and group.partition_id not in self._held:
                self._take_back(group)
        for held in list(self._held.values()):
            if not held.is_busy:
                self._go_on(held)

    def _is_repaired(self, group: HostedGroup) -> bool:
        return self._node.quarantines.find(group.partition_id) is not None

    def _begin(self, group: HostedGroup, detail: str) -> None:
        since_ms = wall_clock_ms()
        self._held[group.partition_id] = _Held(group, detail)
        group.quarantine = QuarantineView(_PHASE, _CAUSE.value, detail, since_ms)
        self._audit(group, "QuarantineEntered", detail)

    def _go_on(self, held: _Held) -> None:
        control = self._node.control
        if control is None:
            return  # nobody to tell, and nobody to say that it may go on: a restart opens it
        if self._reported(held.group) is not None:
            held.is_known = True
        elif held.is_known or control.has_seen(held.revision):
            # Where the copy is past the report and shows none, it was ended between two looks.
            if held.group.idle and not held.group.is_recorded:
                self._beside(held, self._open(held))
        elif self._may_call(held.group):
            report = ReportQuarantine(
                partition_id=int(held.group.partition_id),
                node_id=int(self._node.node_id),
                cause=_CAUSE,
                detail=held.detail,
            )
            self._beside(held, self._report(held, report))

    def _reported(self, group: HostedGroup) -> Quarantine | None:
        """Return what the control plane says of the replica here, by this node's copy."""
        control = self._node.control
        if control is None:
            return None
        return find(control.cache, Quarantine, int(group.partition_id), int(self._node.node_id))

    def _may_call(self, group: HostedGroup) -> bool:
        control, now_ms = self._node.control, self._node.now_ms()
        if control is None or now_ms < self._call_due_ms.get(group.partition_id, 0):
            return False
        self._call_due_ms[group.partition_id] = now_ms + _CALL_AGAIN_MS
        return control.group.replica.leader_id is not None

    def _beside(self, held: _Held, work: Coroutine[Any, Any, None]) -> None:
        held.is_busy = True
        self._spawn(self._released(held, work))

    @staticmethod
    async def _released(held: _Held, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            held.is_busy = False

    async def _report(self, held: _Held, report: ReportQuarantine) -> None:
        answer = await self._call(report)
        if isinstance(answer, Done):
            held.revision = answer.revision

    async def _call(self, command: Command) -> Answer | None:
        control = self._node.control
        assert control is not None
        is_report = isinstance(command, ReportQuarantine)
        call = control.call_for_node if is_report else control.call_as_steward
        try:
            answer = await call(command)
        except ControlUnavailable:
            return None  # with a later look
        if isinstance(answer, Refused):
            journal.warning("a fenced group is not reported: %s", answer)
        return answer

    def _take_back(self, group: HostedGroup) -> None:
        """Clear what an earlier life of this node has reported: the group was opened anew."""
        known = self._reported(group)
        if known is None or known.cause is not _CAUSE or not known.detail.startswith(FENCED):
            return
        if not self._is_repaired(group) and self._may_call(group):
            words = "the node was restarted, and has opened the group anew"
            number, node = int(group.partition_id), int(self._node.node_id)
            clear = ClearQuarantine(partition_id=number, node_id=node, evidence=words)
            self._spawn(self._clear(clear))

    async def _clear(self, command: ClearQuarantine) -> None:
        await self._call(command)

    async def _open(self, held: _Held) -> None:
        group, node = held.group, self._node
        loop = asyncio.get_running_loop()
        try:
            replica = await loop.run_in_executor(None, group.reopened, node.now_ms())
        except (DataLost, ReplicaDamaged) as error:
            del self._held[group.partition_id]
            group.damage, group.quarantine = error, None
            group.replica.fault = ""
            node.quarantines.note_damage(group.partition_id)
            return
        del self._held[group.partition_id]
        group.quarantine = None
        node.replace_replica(group, replica)
        journal.warning("group %d is opened anew: its quarantine was ended", group.partition_id)
        self._audit(group, "QuarantineLeft", "resumed, and opened anew")

    def _audit(self, group: HostedGroup, what: str, detail: str) -> None:
        if self._node.audit is not None:
            term = int(group.replica.group.core.hard.term)
            self._node.audit.group_did(what, group.partition_id, self._node.node_id, term, detail)
