"""A machine under another definition, fed beside the one in force: does it answer the same?

A copy of the live state is made beside the loop, from a snapshot that is frozen at one moment;
what is applied meanwhile waits in a queue (clustor §9.7, 'shadow apply queues') and follows once
the copy stands. Nothing of a shadow leaves it: it is forgotten at any time without a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from clustor.replica.machine import DefinableMachine, NewMachine, StreamMachine

QUEUE_BYTES_MAX: Final = 8 << 20
MILLION: Final = 1_000_000


class ShadowState(StrEnum):
    COPYING = "Copying"
    WARM = "Warm"  # it has applied what the live machine has
    UNUSABLE = "Unusable"  # the definition is none of this machine
    OVERRUN = "Overrun"  # more came than may wait: begin again


class Shadow:
    """One definition on trial in one replica."""

    def __init__(self, definition: bytes, applied_index: int) -> None:
        self.definition = definition
        self.state = ShadowState.COPYING
        self.checkpoint_index = applied_index
        """Through which entry it has followed; 0 where it never did."""
        self._machine: DefinableMachine | None = None
        self._queue: list[tuple[int, list[bytes], list[bytes]]] = []
        self._queued_bytes = 0
        self._judged = 0  # records found, and commands answered
        self._agreed = 0  # of them, those that the definition in force treats alike

    def offer(self, index: int, commands: list[bytes], replies: list[bytes]) -> None:
        """Take an entry that the live machine has applied, with what it answered."""
        if self.state is ShadowState.WARM:
            self._follow(index, commands, replies)
        elif self.state is ShadowState.COPYING:
            self._queue.append((index, commands, replies))
            self._queued_bytes += sum(map(len, commands))
            if self._queued_bytes > QUEUE_BYTES_MAX:
                self._end(ShadowState.OVERRUN)

    def copied(self, machine: DefinableMachine | None, misfits: int, records: int) -> None:
        """Take the copy, and let it catch up; None: the definition cannot be used."""
        if self.state is not ShadowState.COPYING:
            return
        if machine is None:
            self._end(ShadowState.UNUSABLE)
            return
        self._machine = machine
        self._judged, self._agreed = records, records - misfits
        waiting, self._queue = self._queue, []
        for index, commands, replies in waiting:
            self._follow(index, commands, replies)
        self.state = ShadowState.WARM

    @property
    def ready_ratio(self) -> int:
        """How ready it is, in millionths: nothing before it is warm, then how much agrees."""
        if self.state is not ShadowState.WARM:
            return 0
        return self._agreed * MILLION // self._judged if self._judged else MILLION

    def _follow(self, index: int, commands: list[bytes], replies: list[bytes]) -> None:
        machine = self._machine
        assert machine is not None
        answers = machine.apply_batch(index, commands)
        if isinstance(machine, StreamMachine):
            machine.take_stream_changes()  # nobody writes them: it is a trial
        for mine, live in zip(answers, replies, strict=True):
            self._judged += 1
            # Revisions part after the first refusal, so bytes cannot be compared.
            self._agreed += machine.is_refusal(mine) == machine.is_refusal(live)
        self.checkpoint_index = index

    def _end(self, state: ShadowState) -> None:
        self.state = state
        self._queue.clear()
        self._machine = None


def copy_under(
    new_machine: NewMachine, chunks: Iterable[bytes], definition: bytes
) -> Callable[[], tuple[DefinableMachine | None, int, int]]:
    """Return the job that makes a copy under a definition: for any thread, it takes its time."""

    def job() -> tuple[DefinableMachine | None, int, int]:
        machine = new_machine()
        machine.restore(chunks)
        if not isinstance(machine, DefinableMachine) or not machine.adopt(definition):
            return None, 0, 0
        return machine, *machine.misfits()

    return job
