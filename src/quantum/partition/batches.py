"""Publishes on their way into the log: runs, and what passes from one partition to another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from quantum.protocols.mqtt.codec import ReasonCode

if TYPE_CHECKING:
    from quantum.partition.leader import Prg
    from quantum.protocols.mqtt.session.connection import Connection

ACK_BYTES: Final = 4
COMMAND_BYTES_MAX: Final = 256 << 10
"""Where one command of packed publishes ends and the next begins."""
WINDOW_BYTES: Final = 8 << 20
"""What may be on its way to the owner of topics: more would be dropped between the nodes."""
_BYTE: Final = 0xFF

Refusals: TypeAlias = "list[tuple[int, int]]"
"""(number of the publish, reason) of those that were refused."""
Done: TypeAlias = "Callable[[int, int, Refusals], None]"
"""The publishes from one number to another are committed and durable, but those refused."""


def cuts(records: list[bytes]) -> list[tuple[int, int]]:
    """Say where to cut records so that each piece fits a command."""
    found: list[tuple[int, int]] = []
    begin, size = 0, 0
    for at, record in enumerate(records):
        if at > begin and size + len(record) > COMMAND_BYTES_MAX:
            found.append((begin, at))
            begin, size = at, 0
        size += len(record)
    found.append((begin, len(records)))
    return found


class Run:
    """Publishes of one connection, one behind the other, for one partition.

    `acks` are the packets that answer them, four bytes each, in order; empty at QoS 0. They
    leave when the run is done, and no earlier than those of older runs ([MQTT-4.6.0-2]).
    """

    __slots__ = ("acks", "began_ms", "connection", "count", "done", "lost", "refused")

    def __init__(self, connection: Connection, acks: bytes, count: int) -> None:
        self.connection = connection
        self.acks = acks
        self.count = count
        self.began_ms = 0  # when its publishes came, by the loop's clock
        self.done = False
        self.lost = False
        self.refused: Refusals | None = None

    def finish(self) -> None:
        """Let the answers leave."""
        self.done = True
        self.connection.release_answers()

    def refuse(self, number: int, reason: int) -> None:
        """Note that one of the publishes was refused; its connection may end with that (§11.2)."""
        if reason > _BYTE:
            reason &= _BYTE
            self.connection.end_soon(ReasonCode(reason), "the tenant is over its quota for long")
        self.connection.service.meters.refuse("PUBLISH", reason)
        if self.refused is None:
            self.refused = []
        self.refused.append((number, reason))


class OpenRuns:
    """Runs whose publishes are in one order: numbered from `first`, finished from the left."""

    __slots__ = ("_first", "_runs", "next_number")

    def __init__(self, first: int) -> None:
        self._runs: deque[Run] = deque()
        self._first = first
        self.next_number = first

    def __len__(self) -> int:
        return self.next_number - self._first

    def add(self, run: Run) -> None:
        self._runs.append(run)
        self.next_number += run.count

    def finish(self, through: int, refused: Refusals) -> None:
        """Finish every run that ends at or before `through`."""
        for number, reason in refused:
            self._refuse(number, reason)
        while self._runs and self._first + self._runs[0].count - 1 <= through:
            run = self._runs.popleft()
            self._first += run.count
            if not run.lost:
                run.finish()

    def lose(self, first: int, last: int) -> None:
        """End the clients of whom a publish of these is not in the log, and never will be.

        Nothing behind it may be answered either: they send it all again.
        """
        at = self._first
        for run in self._runs:
            if at <= last and at + run.count > first:
                run.lost = True
                run.connection.end_soon(ReasonCode.QUOTA_EXCEEDED, "a publish could not be logged")
            at += run.count

    def _refuse(self, number: int, reason: int) -> None:
        first = self._first
        for run in self._runs:
            if number < first + run.count:
                if number >= first:
                    run.refuse(number - first, reason)
                return
            first += run.count

    def connections(self) -> set[Connection]:
        """Name whose publishes are open."""
        return {run.connection for run in self._runs}


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
        "held",
        "waited_ticks",
    )

    def __init__(self, origin: Prg, owner: int) -> None:
        self._origin = origin
        self._owner = owner
        self._open = OpenRuns(1)
        self._records: deque[bytes] = deque()  # of the publishes that are not answered
        self._sent = 0  # how many of them were sent
        self._weight = 0  # their bytes
        self.waited_ticks = 0
        self.held = ""
        """Why the owner takes nothing now, as it said last; empty: it did not say so."""

    def __len__(self) -> int:
        return len(self._records)

    def add(self, run: Run, records: list[bytes]) -> None:
        """Let publishes wait for the next turn."""
        self._open.add(run)
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
            self.waited_ticks = 0

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
        self.waited_ticks = 0

    def done(self, first: int, through: int, refused: Refusals) -> None:
        """Take the owner's word.

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
        self.waited_ticks = 0
        self.held = ""
        self._open.finish(through, refused)
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
