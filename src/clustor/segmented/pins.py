"""Files that somebody still reads are deleted later.

They are void already when their deletion is put off: the metadata names them no more, so a start
removes what a crash leaves of them. Only whoever reads on from before needs them, and their keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from clustor.log.steps import Step, SyncDirectory
from clustor.segmented.runs import PARTS_DIRECTORY


class Pins:
    """Who reads files that may be deleted meanwhile, and which deletions wait for that."""

    def __init__(self) -> None:
        self._epochs: dict[int, frozenset[int]] = {}
        self._numbers = count()
        self._put_off: list[Step] = []

    def pin(self, dek_epochs: frozenset[int]) -> int:
        """Keep every file that there is, and these keys, until `unpin` is given the result."""
        number = next(self._numbers)
        self._epochs[number] = dek_epochs
        return number

    def unpin(self, number: int) -> None:
        """Let go what was kept; the next plan with a commit deletes it. Twice is once."""
        self._epochs.pop(number, None)

    def dek_epochs(self) -> set[int]:
        """The key epochs that somebody still needs."""
        return set().union(*self._epochs.values())

    def due(self, deletions: Sequence[Step]) -> Sequence[Step]:
        """Return the deletions that may be carried out now, these and earlier ones."""
        self._put_off += deletions
        if self._epochs or not self._put_off:
            return ()
        due, self._put_off = self._put_off, []
        return (*due, SyncDirectory(PARTS_DIRECTORY))
