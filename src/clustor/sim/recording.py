"""The machine under the judge's eyes: every batch and every restored state is reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from clustor.kv import Key, KvMachine
from clustor.sim.judge import GroupJudge


class WatchedMachine:
    """A key-value machine that tells the judge what it is given and what it becomes."""

    def __init__(self, machine: KvMachine, judge: GroupJudge) -> None:
        self._machine = machine
        self._judge = judge

    def apply_batch(self, index: int, commands: Sequence[bytes]) -> list[bytes]:
        previous = self._machine.applied_index
        replies = self._machine.apply_batch(index, commands)
        self._judge.on_apply(index, previous, commands, replies, self._machine.digest())
        return replies

    def snapshot(self) -> Iterator[bytes]:
        return self._machine.snapshot()

    def restore(self, chunks: Iterable[bytes]) -> None:
        self._machine.restore(chunks)
        self._judge.on_restore(self._machine.applied_index, self._machine.digest())

    def mark(self, base_index: int) -> None:
        self._machine.mark(base_index)

    def delta(self, base_index: int) -> Iterator[bytes] | None:
        return self._machine.delta(base_index)

    def restore_delta(self, chunks: Iterable[bytes]) -> None:
        self._machine.restore_delta(chunks)
        self._judge.on_restore(self._machine.applied_index, self._machine.digest())

    def digest(self) -> bytes:
        return self._machine.digest()

    @property
    def applied_index(self) -> int:
        return self._machine.applied_index

    def value(self, key: Key) -> bytes | None:
        record = self._machine.get(key)
        return None if record is None else record.value
