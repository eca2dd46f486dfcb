"""A replica that ends alone: an error of our own in its log, Raft or machine stops it for good.

What it acknowledged before is durable. What it would do after such an error nobody can say, so it
does nothing any more: it takes no input, sends nothing, acknowledges nothing and does not lead;
the other members elect another. The groups beside it go on. `Replica.open` starts it again, from
what is on disk. The simulators use the bare `Replica`, in which every such error is raised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, TypeVar

from clustor.log.types import LogIndex
from clustor.raft.errors import RaftError
from clustor.raft.leadership import ProposalAccepted, ProposalRefused
from clustor.raft.reconfiguration import MembershipRequest
from clustor.raft.transition import Transition
from clustor.raft.types import ReplicaId
from clustor.replica import Activation, DiskWork, Replica, ReplicaError, ReplicaOutput
from clustor.runtime.containment import contained

PLACE: Final = "group"
FENCED: Final = "fenced by an error of our own"

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _fences(
    method: Callable[Concatenate[Replica, _P], _T], otherwise: _T
) -> Callable[Concatenate[FencedReplica, _P], _T]:
    """Let an input's error fence the replica; `otherwise` is what is returned then."""

    @functools.wraps(method)
    def fencing(self: FencedReplica, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  # whatever it is, this replica may lie now
            self.fence(error)
            return otherwise

    return fencing


class FencedReplica(Replica):
    """The replica of a running node."""

    tick = _fences(Replica.tick, None)
    lateness = _fences(Replica.lateness, None)
    receive = _fences(Replica.receive, None)
    receive_transfer = _fences(Replica.receive_transfer, None)
    read = _fences(Replica.read, None)
    control_plane = _fences(Replica.control_plane, None)
    proof_conflict_reconciled = _fences(Replica.proof_conflict_reconciled, None)
    membership_acknowledged = _fences(Replica.membership_acknowledged, None)
    emit_snapshot = _fences(Replica.emit_snapshot, None)
    seal_segment = _fences(Replica.seal_segment, None)
    disk_done = _fences(Replica.disk_done, None)
    stream_disk_done = _fences(Replica.stream_disk_done, None)
    disk_read = _fences(Replica.disk_read, None)
    disk_read_failed = _fences(Replica.disk_read_failed, None)
    write_delayed = _fences(Replica.write_delayed, None)
    catch_up = _fences(Replica.catch_up, otherwise=False)

    def fence(self, error: Exception) -> None:
        """Stop for good because of an error of our own; a second one changes nothing."""
        digest = contained.caught(PLACE, f"group {self.identity.partition_id}", error)
        self._turn.unplanned.clear()
        if self.failed is None:
            self.fault = f"{FENCED} ({type(error).__name__}, {digest})"
        self.stop_for_good(
            f"{FENCED} ({type(error).__name__}, {digest}):"
            " `quantum admin quarantines resume`, or a restart of the node, opens it again"
        )

    def take(self, *, plan_later: bool = False) -> ReplicaOutput:
        try:
            return super().take(plan_later=plan_later)
        except Exception as error:  # noqa: BLE001
            self.fence(error)
        return super().take()  # no input counts any more: who waited is told, and why it stopped

    def take_disk(self) -> list[DiskWork]:
        try:
            return super().take_disk()
        except Exception as error:  # noqa: BLE001
            self.fence(error)
            return []

    # What somebody asks for and waits for is refused by a typed error, or fences and is raised.

    def change_membership(self, request: MembershipRequest) -> LogIndex:
        try:
            return super().change_membership(request)
        except (RaftError, ReplicaError):
            raise
        except Exception as error:
            self.fence(error)
            raise

    def propose_transition(self, transition: Transition) -> ProposalAccepted | ProposalRefused:
        try:
            return super().propose_transition(transition)
        except Exception as error:
            self.fence(error)
            raise

    def propose_activation(self, activation: Activation) -> ProposalAccepted | ProposalRefused:
        try:
            return super().propose_activation(activation)
        except Exception as error:
            self.fence(error)
            raise

    def transfer(self, target: ReplicaId) -> ProposalRefused | None:
        try:
            return super().transfer(target)
        except Exception as error:
            self.fence(error)
            raise
