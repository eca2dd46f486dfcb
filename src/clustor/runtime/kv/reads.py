"""Reads of the stores of one node: by ReadIndex, or of what is applied where the caller says so.

All linearizable reads of a group that one turn brings share one question to the read gate
(clustor §10.3, ruling C7): it costs a round of heartbeats, no entry and no sync, and a proof where
writes have moved the watermark since the last one. A read that asks for a snapshot only is served
at once, by a follower if the control plane lets followers read.

Two kinds of groups have no proof to wait for, and take a quorum's word alone: those of a cluster
without a control plane, and the control plane's own. A proof of the latter is an entry of its own
log, so its newest index is never proven.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from clustor.kv import Command, KvMachine, Txn, TxnGet
from clustor.raft.control_plane import CacheState
from clustor.raft.reads import FailedClause, ReadKind, ReadRefusal, refusal_for
from clustor.replica import ReadDenied, ReadReady, ReplicaOutput, RequestId
from clustor.runtime.group import HostedGroup
from clustor.runtime.kv.stream import Status

if TYPE_CHECKING:
    from clustor.runtime.node import Node

READ_MS_MAX: Final = 1_000
"""How long a read waits for its quorum and its proof before it is refused."""

_UNAVAILABLE: Final = frozenset(
    {
        ReadRefusal.CACHE_EXPIRED,
        ReadRefusal.CACHE_NOT_FRESH,
        ReadRefusal.NEEDED_FOR_READ_INDEX,
    }
)


class ReplyPort(Protocol):
    """How the answer to a client's request leaves."""

    def __call__(
        self, group: HostedGroup, request: int, status: Status, body: bytes, /
    ) -> None: ...


class MachineOf(Protocol):
    def __call__(self, group: HostedGroup, /) -> KvMachine: ...


@dataclass(slots=True)
class _Batch:
    """Requests that wait for one answer of the gate, with the bytes of their commands."""

    kind: ReadKind
    reads: list[tuple[int, bytes]] = field(default_factory=list)


class KvReads:
    """The open reads of all groups of a node."""

    def __init__(self, node: Node, machine_of: MachineOf, answer: ReplyPort) -> None:
        self._node = node
        self._machine_of = machine_of
        self._answer = answer
        self._fresh: dict[tuple[HostedGroup, ReadKind], _Batch] = {}
        self._asked: dict[RequestId, _Batch] = {}
        self._next_id = 1
        self.granted = dict.fromkeys(ReadKind, 0)
        self.refused: dict[str, int] = {}
        """How often each reason was given."""

    def is_gated(self, group: HostedGroup) -> bool:
        """Say whether a group's linearizable reads wait for proofs of the control plane."""
        control = self._node.control
        return control is not None and group is not control.group

    def may_watch(self, group: HostedGroup) -> bool:
        """Say whether a replica may feed watches: where it leads, or where followers may read."""
        replica = group.replica
        if self._node.control is None or replica.leads:
            return True
        return replica.ready and replica.group.access.follower_clause() is None

    def may_show_newest(self, group: HostedGroup) -> bool:
        """Say whether what the machine holds now may be shown to who asks for no more than that.

        With the copy Expired it ends at what was applied before (clustor §14.2). The machine keeps
        no older state, so once it has moved on nothing can be shown.
        """
        access = group.replica.group.access
        clamp = access.expired_applied
        if self._node.control is None or access.cache is not CacheState.EXPIRED or clamp is None:
            return True
        return group.replica.applied_index <= clamp

    def add_newest(self, group: HostedGroup, request: int, body: bytes) -> None:
        """Let a linearizable read wait for the end of the turn."""
        kind = ReadKind.READ_INDEX if self.is_gated(group) else ReadKind.QUORUM
        self.add(group, request, body, kind)

    def add(self, group: HostedGroup, request: int, body: bytes, kind: ReadKind) -> None:
        """Let a read wait for the end of the turn; its answer comes with an output."""
        batch = self._fresh.get((group, kind))
        if batch is None:
            batch = self._fresh[group, kind] = _Batch(kind)
            self._node.touch(group)
        batch.reads.append((request, body))

    def prepare(self) -> None:
        """Ask each group once for all that came in this turn."""
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, {}
        deadline_ms = self._node.now_ms() + READ_MS_MAX
        for (group, kind), batch in fresh.items():
            request_id = RequestId(self._next_id)
            self._next_id += 1
            self._asked[request_id] = batch
            group.replica.read(request_id, deadline_ms, kind)

    def on_output(self, group: HostedGroup, output: ReplicaOutput) -> None:
        """Read what the gate has granted, from the machine as it stands, and answer the rest."""
        for outcome in output.reads:
            batch = self._asked.pop(outcome.request_id, None)
            if batch is None:
                continue  # a follower's read that was served, and was then revoked
            if isinstance(outcome, ReadReady):
                self._serve(group, batch)
                group.replica.read_finished(outcome.request_id)
            else:
                self._deny(group, batch, outcome)

    def _serve(self, group: HostedGroup, batch: _Batch) -> None:
        if batch.kind is ReadKind.SNAPSHOT_ONLY and not self.may_show_newest(group):
            self._refuse(group, batch, ReadRefusal.CACHE_EXPIRED)
            return
        self.granted[batch.kind] += len(batch.reads)
        machine = self._machine_of(group)
        for request, body in batch.reads:
            self._answer(group, request, Status.APPLIED, machine.read(body))

    def _deny(self, group: HostedGroup, batch: _Batch, denied: ReadDenied) -> None:
        if denied.refusal is ReadRefusal.NOT_LEADER:
            leader = self._node.admin_address(denied.leader_id).encode()
            for request, _ in batch.reads:
                self._answer(group, request, Status.NOT_LEADER, leader)
        else:
            self._refuse(group, batch, denied.refusal)

    def _refuse(self, group: HostedGroup, batch: _Batch, refusal: ReadRefusal) -> None:
        reason = words_of(refusal)
        self.refused[reason] = self.refused.get(reason, 0) + len(batch.reads)
        for request, _ in batch.reads:
            self._answer(group, request, Status.REFUSED, reason.encode())


def words_of(refusal: ReadRefusal) -> str:
    """Say why a read is refused, in the words of clustor §10.3."""
    if refusal in _UNAVAILABLE:
        return f"ControlPlaneUnavailable{{{refusal.value}}}"
    return refusal.value


def refusal_through_the_log(group: HostedGroup, command: Command) -> ReadRefusal | None:
    """Say why a command that only looks may not be asked through the log now (C8)."""
    if not isinstance(command, Txn) or not command.operations:
        return None
    if not all(isinstance(part, TxnGet) for part in command.operations):
        return None
    clause = group.replica.group.access.standing()
    return None if clause is FailedClause.NONE else refusal_for(clause)
