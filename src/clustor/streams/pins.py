"""Files that somebody still reads are deleted later.

They are void already when their deletion is put off: the metadata names them no more, so a start
removes what a crash leaves of them. Only whoever reads on from before needs them, and their keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from clustor.log.steps import Step, SyncDirectory
from clustor.streams.runs import PARTS_DIRECTORY


class Pins:
    """Who reads files that may be deleted meanwhile, and which deletions wait for that."""

    def __init__(self) -> None:
        self._epochs: dict[int, frozenset[int]] = {}  # of each pin, in the order of their numbers
        self._next = 0
        self._put_off: deque[tuple[int, Sequence[Step]]] = deque()

    def pin(self, dek_epochs: frozenset[int]) -> int:
        """Keep every file that there is, and these keys, until `unpin` is given the result."""
        number = self._next
        self._next += 1
        self._epochs[number] = dek_epochs
        return number

    def unpin(self, number: int) -> None:
        """Let go what was kept; the next checkpoint deletes it. Twice is once."""
        self._epochs.pop(number, None)

    def dek_epochs(self) -> set[int]:
        """The key epochs that somebody still needs."""
        return set().union(*self._epochs.values())

    @property
    def has_due(self) -> bool:
        """Whether a deletion that was put off need wait no longer."""
        return bool(self._put_off) and self._oldest() >= self._put_off[0][0]

    def due(self, deletions: Sequence[Step]) -> Sequence[Step]:
        """Return the deletions that may be carried out now, of these and of earlier ones.

        One waits for those who were reading when it was asked for, not for who came later.
        """
        if deletions:
            self._put_off.append((self._next, deletions))
        found: list[Step] = []
        while self.has_due:
            found += self._put_off.popleft()[1]
        return (*found, SyncDirectory(PARTS_DIRECTORY)) if found else ()

    def _oldest(self) -> int:
        return next(iter(self._epochs), self._next)
