"""Commands on their way into a group's log: in order, a bounded amount at a time, answered once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from clustor.replica import RequestId
from clustor.runtime.group import HostedGroup
from quantum.broker import split_command
from quantum.broker.parts import PART_BYTES_MAX, is_part
from quantum.partition.backpressure import WatermarkLevel
from quantum.partition.ports import Completion

_FORGOTTEN: Final = (0, b"", None)
_PARTS_OPEN_MAX: Final = 2


class CommandQueue:
    """What one leader has given to its group, or will."""

    __slots__ = (
        "_group",
        "_next_request",
        "_parts_open",
        "_pending",
        "_stalled",
        "backlog",
        "sequence",
    )

    def __init__(self, group: HostedGroup, backlog: WatermarkLevel) -> None:
        self._group = group
        self.backlog = backlog
        self._next_request = 0
        self._pending: dict[int, tuple[int, bytes, Completion | None]] = {}
        self.sequence = 0
        """The place of the last command that was submitted."""
        self._stalled: deque[tuple[int, bytes, Completion | None, bool]] = deque()
        """Commands that the group did not take now (it hands its leadership over, or has too much
        to do): they wait for the next tick, and later ones wait behind them. The first field is
        their place, the last one says whether the group's admission has to be asked."""
        self._parts_open = 0  # parts of large commands that are on their way into the log

    @property
    def stalled(self) -> int:
        """How many commands the group did not take yet."""
        return len(self._stalled)

    def submit(
        self, command: bytes, completion: Completion | None = None, *, asks: bool = False
    ) -> None:
        """Give a command to the group. `asks`: a publish, which the group's admission may delay."""
        if len(command) > PART_BYTES_MAX:
            *first, command = split_command(command)
            for part in first:
                self.submit(part, asks=asks)
        self.backlog.add(len(command))
        self.sequence += 1
        if self._stalled or not self._takes_now(command, asks=asks):
            self._stalled.append((self.sequence, command, completion, asks))
        else:
            self._propose(self.sequence, command, completion)

    def _takes_now(self, command: bytes, *, asks: bool) -> bool:
        """Say whether the group takes a command now.

        Of large ones it gets a little at a time: a turn that writes and sends 16 MiB is long
        enough for others to believe that nobody leads.
        """
        is_one = is_part(command)
        if is_one and self._parts_open >= _PARTS_OPEN_MAX:
            return False
        if asks and not self._group.admission.admit(len(command)):
            return False
        self._parts_open += is_one
        return True

    def _propose(self, sequence: int, command: bytes, completion: Completion | None) -> None:
        self._next_request += 1
        self._pending[self._next_request] = (sequence, command, completion)
        self._group.replica.propose(RequestId(self._next_request), command)

    def submit_stalled(self) -> None:
        """Give the group what it did not take before, in order, as far as it takes it now."""
        while self._stalled:
            sequence, command, completion, asks = self._stalled[0]
            if not self._takes_now(command, asks=asks):
                break
            self._stalled.popleft()
            self._propose(sequence, command, completion)

    @property
    def may_go_on(self) -> bool:
        """Whether something stalled that an applied command may have made room for."""
        return bool(self._stalled) and (self._stalled[0][3] or is_part(self._stalled[0][1]))

    def stall_again(self, request_ids: Sequence[RequestId]) -> None:
        """Let refused commands wait, before whatever was submitted after them.

        The order is kept because a batch of publishes is finished by whichever of its commands is
        applied last: one that overtook another would acknowledge both.
        """
        for request in request_ids:
            self._parts_open -= is_part(self._pending[request][1])
        again = ((*self._pending.pop(request), False) for request in request_ids)
        self._stalled = deque(sorted((*self._stalled, *again), key=itemgetter(0)))

    def applied(self, request: RequestId) -> Completion | None:
        """Forget a command that was applied; return what completes it."""
        _, command, completion = self._pending.pop(request, _FORGOTTEN)
        self.backlog.add(-len(command))
        if self._parts_open and is_part(command):
            self._parts_open -= 1
        return completion

    def failed(self, request_ids: Sequence[RequestId]) -> None:
        """Complete commands that will never be applied, or of which nobody knows."""
        for request in request_ids:
            _, command, completion = self._pending.pop(request, _FORGOTTEN)
            self.backlog.add(-len(command))
            if completion is not None:
                completion(None)

    def clear(self) -> None:
        """Forget everything: the leadership is over, and nobody is answered."""
        self._pending = {}
        self._stalled.clear()
        self._parts_open = 0
        self.backlog.clear()
