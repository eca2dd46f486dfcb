"""What clients saw: each operation with the moments of its call and of its answer.

A history is recorded while a cluster runs and judged afterwards. Moments are positions in
the recorded order of events, never clock readings: only "before" matters to the judge.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NewType, TypeVar

Process = NewType("Process", int)
CallT = TypeVar("CallT")


class HistoryMisuse(Exception):
    """The recording breaks the rule that a process has at most one call open."""

    def __init__(self, reason: str, process: Process) -> None:
        super().__init__(f"{reason} (process={process})")
        self.reason = reason
        self.process = process


@dataclass(frozen=True, slots=True)
class HistoryOperation(Generic[CallT]):
    """One call of one process, and its answer if one came. No two events share a moment."""

    process: Process
    call: CallT
    invoked: int
    # None: nobody knows. The call may take effect at any moment after `invoked`, or never.
    returned: int | None = None
    # Means something only if `returned` is not None.
    result: Hashable = None

    def __post_init__(self) -> None:
        assert self.returned is None or self.returned > self.invoked


class CallHistory(Generic[CallT]):
    """Record events in the order in which they happened; read them as operations."""

    def __init__(self) -> None:
        self._clock = 0
        self._open: dict[Process, tuple[CallT, int]] = {}
        self._closed: list[HistoryOperation[CallT]] = []

    def invoke(self, process: Process, call: CallT) -> None:
        """A process sends a call. It must have none open."""
        if process in self._open:
            raise HistoryMisuse("the process has a call open", process)
        self._open[process] = (call, self._tick())

    def ok(self, process: Process, result: Hashable = None) -> None:
        """The open call of this process was answered; a refusal is an answer too."""
        call, invoked = self._take_open(process)
        self._closed.append(HistoryOperation(process, call, invoked, self._tick(), result))

    def did_not_happen(self, process: Process) -> None:
        """The open call certainly had no effect and told its caller nothing: forget it."""
        self._take_open(process)

    def unknown(self, process: Process) -> None:
        """The caller stopped waiting: the call may still take effect, or never."""
        call, invoked = self._take_open(process)
        self._closed.append(HistoryOperation(process, call, invoked))

    def operations(self) -> tuple[HistoryOperation[CallT], ...]:
        """All operations by the moment of their call; what is still open counts as unknown."""
        still_open = [
            HistoryOperation(process, call, invoked)
            for process, (call, invoked) in self._open.items()
        ]
        return tuple(sorted(self._closed + still_open, key=_invoked))

    def _take_open(self, process: Process) -> tuple[CallT, int]:
        if process not in self._open:
            raise HistoryMisuse("the process has no call open", process)
        return self._open.pop(process)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def _invoked(operation: HistoryOperation[CallT]) -> int:
    return operation.invoked
