"""What a node does about itself once a second: it reports, sees to its keys, and looks for traps.

Everything is decided elsewhere and found again by the next round; a round that fails is said once
and costs nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from clustor.control import (
    ClusterConfig,
    Command,
    DraftReading,
    LagAlert,
    NodeReport,
    RbacManifest,
    Refused,
    decode_object,
    find,
    is_stale,
    key_of,
    newly_silent,
    plan_lag_report,
    report_is_due,
    scan,
    waits_for,
)
from clustor.log.errors import LogError
from clustor.runtime.admin.status_shapes import ReportStatus
from clustor.runtime.control.definitions import Call, Definitions, Read
from clustor.runtime.control.leader_requests import Desk
from clustor.runtime.control.records import lacks_steward, steward_of
from clustor.runtime.control.reports import LOOK_SECONDS, build_version, lag_report_of, report_of
from clustor.runtime.errors import ControlUnavailable
from clustor.runtime.keys.grants import KeyGrants
from clustor.runtime.keys.signers import SignerKeeper, keep_trusted, snapshot_keys
from clustor.security import SecurityError
from clustor.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from clustor.runtime.node import Node

journal = logging.getLogger("clustor.control")


class Rounds:
    """The rounds of one node; `state` is its own replica of the control plane."""

    def __init__(
        self,
        node: Node,
        desk: Desk,
        signers: SignerKeeper,
        *,
        state: Callable[[], DraftReading],
        call_for_node: Call,
        call_as_steward: Call,
        reading: Read,
    ) -> None:
        self._node = node
        self._desk = desk
        self._signers = signers
        self._state = state
        self._call_for_node = call_for_node
        self._call_as_steward = call_as_steward
        self._grants = KeyGrants(
            node.keys_directory,
            node.settings.keys,
            node.node_id,
            node.cluster.dek_period_ms,
            read_kek=node.read_kek,
        )
        self._definitions = Definitions(node, call_for_node, reading)
        self._version = build_version()
        self._complaint = ""
        self._manifest_seen = 0
        self._believed: list[str] = []

    async def run(self) -> None:
        """Go round until the task is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._watch_steward()
            with contextlib.suppress(ControlUnavailable):
                await self._report()
                await self._record_silence()
                await self._rotate()
                await self._report_lags()
                await self._definitions.look(self._state(), wall_clock_ms())

    async def _report(self) -> None:
        """Say how this node is when that changed; one word for all its groups.

        Its disk is asked in the loop: one call, that a hanging disk would hang with everything.
        """
        report = report_of(self._node, self._version)
        if report_is_due(self._state(), report):
            await self._call_for_node(report)

    async def _record_silence(self) -> None:
        """As the leader, record which nodes are not heard any more."""
        for silence in newly_silent(self._state(), *self._desk.heard()):
            await self._call_as_steward(silence)

    async def _report_lags(self) -> None:
        """As the leader of groups, say whose followers are behind for good, and when that ends."""
        for group in list(self._node.groups.values()):
            if group.replica.leads and group is not self._desk.group:
                report = lag_report_of(group, int(self._node.node_id))
                held = find(self._state(), LagAlert, int(group.partition_id))
                due = plan_lag_report(held, report)
                if due is not None:
                    await self._call_for_node(due)

    async def _rotate(self) -> None:
        """Take granted keys, say what this node has, and, as the leader, see to what is due."""
        state = self._state()
        try:
            self._grants.learn(state)
            reports = self._grants.reports(state)
            leads = self._desk.group.replica.leads
            due = self._grants.due(state, wall_clock_ms()) if leads else None
            told = self._keep_signers(state)
        except (LogError, SecurityError, OSError) as error:
            self._complain(f"the keys are left as they are: {error}")
            return
        late = waits_for(state, wall_clock_ms()) if leads else None
        if late is not None:
            self._complain(f"key epoch {late[0]} waits for nodes {late[1][:8]}: they lack it")
        for report in reports:
            await self._call_for_node(report)
        for command in (*told, *([due] if due is not None else [])):
            answer = await self._call_as_steward(command)
            if isinstance(answer, Refused):
                name = type(command).__name__
                self._complain(f"the control plane refused {name}: {answer.reason}")

    def _keep_signers(self, state: DraftReading) -> list[Command]:
        """See to this node's signing keys, and believe those that others registered."""
        if find(state, ClusterConfig, "config") is None:
            return []
        calls = self._signers.look(state)
        self._desk.key_id = self._signers.proof_key_id
        believed = snapshot_keys(state)
        if believed != self._believed:
            keep_trusted(self._node.keys_directory, believed)
            self._node.trust_registered(believed)
            self._believed = believed
        return calls

    def _watch_steward(self) -> None:
        """Warn, once for each manifest, when nobody may call for the cluster any more."""
        record = self._state().get(key_of(RbacManifest, "manifest"))
        if record is None or record.mod_revision == self._manifest_seen:
            return
        self._manifest_seen = record.mod_revision
        cluster = self._node.cluster.id
        if not lacks_steward(decode_object(RbacManifest, record.value), cluster):
            return
        steward = steward_of(cluster).identity
        journal.warning(
            "the RBAC manifest leaves %s without the Operator role: placements, keys and members "
            "follow nothing any more",
            steward,
        )
        if self._node.audit is not None:
            self._node.audit.refused("StewardLost", who=steward, why="no Operator role")

    def _complain(self, line: str) -> None:
        """Say something once, until something else is said."""
        if line != self._complaint:
            self._complaint = line
            journal.warning("%s", line)


def report_states(state: DraftReading, now_ms: int) -> list[ReportStatus]:
    """Return every node's last word about itself, and whether it still counts."""
    return [
        ReportStatus(
            each.node_id,
            max(0, now_ms - each.reported_at),
            is_stale(each),
            each.load.utilization,
        )
        for each in scan(state, NodeReport)
    ]
