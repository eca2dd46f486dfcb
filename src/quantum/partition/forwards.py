"""What passes from the leader of a session's partition to the owner of a topic."""

from __future__ import annotations

from collections import deque
from itertools import islice

from quantum.partition.batches import WINDOW_BYTES, OpenBatches, PublishBatch
from quantum.partition.ports import LeaderPort, Refusals


class Forwards:
    """What the leader of a session's partition passes on to the owner of a topic.

    Every publish has a number; the owner's log counts each number of a leader's term once, so
    everything that is not answered can be sent again, to a new leader too.
    """

    __slots__ = (
        "_open",
        "_origin",
        "_owner",
        "_records",
        "_sent",
        "_weight",
        "blocked_reason",
        "silent_ticks",
        "waited_ticks",
    )

    def __init__(self, origin: LeaderPort, owner: int) -> None:
        self._origin = origin
        self._owner = owner
        self._open = OpenBatches(1)
        self._records: deque[bytes] = deque()  # of the publishes that are not answered
        self._sent = 0  # how many of them were sent
        self._weight = 0  # their bytes
        self.waited_ticks = 0
        """Since the owner's last word, while something waits for one."""
        self.silent_ticks = 0
        """The same, since something was sent."""
        self.blocked_reason = ""
        """Why the owner takes nothing now, as it said last; empty: it did not say so."""

    def __len__(self) -> int:
        return len(self._records)

    def add(self, batch: PublishBatch, records: list[bytes]) -> None:
        """Let publishes wait for the next turn."""
        self._open.add(batch)
        self._records.extend(records)
        weight = sum(map(len, records))
        self._weight += weight
        self._origin.backlog.add(weight)

    def send(self) -> None:
        """Send what was not sent yet, if the owner has a leader, and not too much at once."""
        if self._sent == len(self._records):
            return
        first = self._open.next_number - len(self._records) + self._sent
        records = list(self._records)[self._sent :] if self._sent else list(self._records)
        if self._weight > WINDOW_BYTES:
            records = self._within_window(records)
            if not records:
                return
        if self._origin.tenant.forward(self._origin, self._owner, first, records, self.done):
            self._sent += len(records)
            self.silent_ticks = 0

    def _within_window(self, unsent: list[bytes]) -> list[bytes]:
        """Return what may be on its way beside what is; always something where nothing is."""
        room = WINDOW_BYTES - sum(map(len, islice(self._records, self._sent)))
        found = []
        for record in unsent:
            if room <= 0:
                break
            room -= len(record)
            found.append(record)
        return found

    def send_again(self) -> None:
        """Send everything that is not answered: the owner's leader changed, or a link broke."""
        self._sent = 0
        self.silent_ticks = 0

    def done(self, first: int, through: int, refused: Refusals, index: int) -> None:
        """Take the owner's word; `index` is the entry of the owner's log.

        One about later publishes than the next says that a word before it was lost, and with it
        perhaps a refusal: what it was about is sent again, and answered again.
        """
        oldest = self._open.next_number - len(self._records)
        answered = through - oldest + 1
        if answered <= 0 or first > oldest:
            return
        self._lighten(min(answered, len(self._records)))
        for _ in range(min(answered, len(self._records))):
            self._records.popleft()
        self._sent = max(0, self._sent - answered)
        self.waited_ticks = self.silent_ticks = 0
        self.blocked_reason = ""
        self._open.finish(through, refused, index)
        if self._sent < len(self._records):
            self._origin.tenant.touch(self._origin)

    def _lighten(self, answered: int) -> None:
        """Take so many publishes' share off the backlog: exact when nothing is left."""
        share = self._weight * answered // len(self._records)
        self._weight -= share
        if self._origin.forwards.get(self._owner) is self:  # not those of a term that is over
            self._origin.backlog.add(-share)

    @property
    def next_number(self) -> int:
        return self._open.next_number

    @property
    def oldest(self) -> int:
        """The number of the first publish that is not answered, or of the next one."""
        return self._open.next_number - len(self._records)

    @property
    def is_waiting(self) -> bool:
        """Whether something was sent and is not answered."""
        return self._sent > 0
