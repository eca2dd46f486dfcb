"""Definition bundles on a node (clustor §9.7): staged, tried beside the live machine, reported,
and brought into force through the group's own log.

While a barrier is armed every replica of its partitions keeps the bundle's blob under
`definitions/`, lets a shadow follow under it and tells the control plane how ready it is. Once the
barrier is activated each group's leader appends the entry at which all its replicas switch. Only
machines that have a definition can become ready: the key-value stores. Anything else says that it
is not ready at all, and the barrier expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from clustor.control import (
    ActivationBarrier,
    Answer,
    Command,
    DefinitionBundle,
    DraftReading,
    Placement,
    Refused,
    ReportWarmup,
    find,
    scan,
)
from clustor.control.bundles import (
    WarmupReadiness,
    activated,
    on_trial,
    report_warmup_is_due,
)
from clustor.control.command_gates import CommandGate, lacking_nodes
from clustor.log.types import PartitionId
from clustor.raft.leadership import ProposalAccepted
from clustor.replica import Activation, DefinableMachine, ShadowState
from clustor.runtime.data_directory import write_durably
from clustor.runtime.group import HostedGroup

if TYPE_CHECKING:
    from clustor.runtime.node import Node

DIRECTORY: Final = "definitions"
_SUFFIX: Final = ".blob"

Call: TypeAlias = Callable[[Command], Awaitable[Answer]]
Read: TypeAlias = Callable[[], Awaitable[DraftReading]]

journal = logging.getLogger("clustor.control")


class Definitions:
    """The bundles of one node; `look` is called once a second, and never twice at a time."""

    def __init__(self, node: Node, call_for_node: Call, reading: Read) -> None:
        self._node = node
        self._call = call_for_node
        self._reading = reading
        self._trials: dict[PartitionId, str] = {}  # the barrier of each one on trial
        self._refused = ""

    async def look(self, store: DraftReading, now_ms: int) -> None:
        """Do what the barriers want; raises ControlUnavailable, and goes on at the next look."""
        if not self._trials and next(scan(store, ActivationBarrier), None) is None:
            return  # nobody ever armed one
        for group in list(self._node.groups.values()):
            if group.replica.ready and not group.paused:
                await self._try(group, store, now_ms)
                await self._switch(group, store)

    # On trial.

    async def _try(self, group: HostedGroup, store: DraftReading, now_ms: int) -> None:
        barrier = on_trial(store, int(group.partition_id), now_ms)
        bundle = find(store, DefinitionBundle, barrier.bundle_id) if barrier is not None else None
        if barrier is None or bundle is None:
            self._forget(group)
            return
        await self._begin(group, barrier, bundle)
        shadow = group.replica.applying.shadow
        report = ReportWarmup(
            node_id=int(self._node.node_id),
            partition_id=int(group.partition_id),
            bundle_id=bundle.bundle_id,
            shadow_apply_checkpoint_index=0 if shadow is None else shadow.checkpoint_index,
            partition_ready_ratio=0 if shadow is None else shadow.ready_ratio,
        )
        where = (bundle.bundle_id, report.partition_id, report.node_id)
        held = find(store, WarmupReadiness, *where)
        if report_warmup_is_due(held, report, barrier.readiness_window_ms, now_ms):
            await self._say(report)

    async def _begin(
        self, group: HostedGroup, barrier: ActivationBarrier, bundle: DefinitionBundle
    ) -> None:
        """Stage a bundle and begin its shadow; each barrier has a trial of its own."""
        shadow = group.replica.applying.shadow
        is_begun = self._trials.get(group.partition_id) == barrier.barrier_id
        if is_begun and shadow is not None and shadow.state is not ShadowState.OVERRUN:
            return
        definition = await asyncio.to_thread(_staged, group.directory, bundle)
        if definition is None:
            return  # said there; the next look tries again
        self._trials[group.partition_id] = barrier.barrier_id
        if not group.replica.ready:
            return
        job = group.replica.applying.begin_shadow(definition)
        shadow = group.replica.applying.shadow
        if job is None or shadow is None:
            return  # a machine without definitions: it is never ready
        shadow.copied(*await asyncio.to_thread(job))
        journal.info(
            "group %d: bundle %s is %s", group.partition_id, bundle.bundle_id, shadow.state
        )

    def _forget(self, group: HostedGroup) -> None:
        if self._trials.pop(group.partition_id, None) is not None:
            group.replica.applying.shadow = None

    async def _say(self, report: ReportWarmup) -> None:
        answer = await self._call(report)
        if isinstance(answer, Refused) and answer.reason != self._refused:
            self._refused = answer.reason
            journal.warning("a warm-up was refused: %s, %s", answer.code, answer.reason)

    # In force.

    async def _switch(self, group: HostedGroup, store: DraftReading) -> None:
        """As the leader, append the activation that the newest open barrier asks for.

        The control plane is asked for its newest word after this replica began to lead, and the
        entry is appended before anything else happens: an older bundle cannot follow a newer one.
        """
        partition = int(group.partition_id)
        wanted = activated(store, partition)
        if not group.replica.leads or wanted is None or _in_force(group, store, wanted):
            return
        if _is_under_way(group):
            return
        term = group.replica.group.core.hard.term
        newest = await self._reading()
        barrier = activated(newest, partition)
        core = group.replica.group.core
        if barrier is None or not group.replica.leads or core.hard.term != term:
            return
        activation = _activation(newest, barrier)
        lacking = _lacking(newest, partition)
        if activation is None or lacking or _in_force(group, newest, barrier):
            return
        if isinstance(group.replica.propose_activation(activation), ProposalAccepted):
            journal.warning("group %d: bundle %s comes into force", partition, barrier.bundle_id)
            self._node.touch(group)


def _in_force(group: HostedGroup, store: DraftReading, barrier: ActivationBarrier) -> bool:
    """Say whether a barrier's bundle is what the machine obeys, or none of its words."""
    machine = group.replica.machine
    bundle = find(store, DefinitionBundle, barrier.bundle_id)
    if bundle is None or not isinstance(machine, DefinableMachine):
        return True
    return machine.is_defined_by(bundle.definition_blob)


def _is_under_way(group: HostedGroup) -> bool:
    """Say whether an entry of the leader's own is not applied yet: it may be the one we want."""
    system = group.replica.group.core.log.system
    return bool(system) and system[-1].index > group.replica.applied_index


def _activation(store: DraftReading, barrier: ActivationBarrier) -> Activation | None:
    bundle = find(store, DefinitionBundle, barrier.bundle_id)
    if bundle is None or barrier.readiness_digest is None:
        return None
    return Activation(
        bundle_id=bundle.bundle_id,
        version=bundle.version,
        sha256=bundle.sha256,
        readiness_digest=barrier.readiness_digest,
        definition=bundle.definition_blob,
    )


def _lacking(store: DraftReading, partition: int) -> list[int]:
    """Return the members whose build would not obey the entry: their states would part."""
    placement = find(store, Placement, partition)
    members: Iterable[int] = sorted(placement.occupied) if placement is not None else ()
    return lacking_nodes(store, CommandGate.DEFINITIONS, members)


def _staged(directory: Path, bundle: DefinitionBundle) -> bytes | None:
    """Return a bundle's blob from its file, written where it is missing or not what it should be.

    Others than this one are removed: their trial is over.
    """
    folder = directory / DIRECTORY
    path = folder / (bundle.bundle_id + _SUFFIX)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for other in folder.glob(f"*{_SUFFIX}"):
            if other != path:
                other.unlink(missing_ok=True)
        if not path.exists() or sha256(path.read_bytes()).digest() != bundle.sha256:
            write_durably(path, bundle.definition_blob)
        found = path.read_bytes()
    except OSError as error:
        journal.warning("bundle %s cannot be staged: %s", bundle.bundle_id, error)
        return None
    if sha256(found).digest() != bundle.sha256:
        journal.warning("bundle %s: the staged bytes are not its own", bundle.bundle_id)
        return None
    return found
