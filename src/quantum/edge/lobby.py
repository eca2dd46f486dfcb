"""What all listeners of a process share: the door, the deadlines, and one timer for both."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields
from typing import Final, Protocol

from quantum.edge.admission import AdmissionLimits, AdmissionVerdict, EdgeAdmission
from quantum.edge.deadlines import DeadlineWheel, Slot
from quantum.edge.half_open import HalfOpen

HALF_OPEN_MAX: Final = 10_000
_LINES_PER_SECOND_MAX: Final = 10

journal = logging.getLogger("quantum.edge")


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """How much patience and memory a client gets before it has shown who it is."""

    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    first_answer_seconds: float = 10.0
    """From admission to the handler's first write: handshakes and first packet together."""
    half_open_max: int = HALF_OPEN_MAX
    """How many may be here at once without a first answer, those that wait at the door included.
    Beyond it one goes, the oldest of the source that has the most: clients in good faith are
    through in a moment."""
    half_open_source_percent: int = 50
    """How many of those places one source (an IPv4 address, an IPv6 /64) may have."""
    close_seconds: float = 5.0
    """For a peer to take what was written before the connection is cut."""
    write_high_water_bytes: int = 64 << 10
    """Above it a handler is told to write no more of its own accord."""
    unread_bytes_max: int = 256 << 10
    """So much may be written to a peer that is above that mark; then it is not read either."""
    turn_seconds: float = 0.1
    """How fine deadlines and the admission rate are."""


@dataclass(slots=True)
class Counts:
    """What came to the door, since the start."""

    admitted: int = 0
    delayed: int = 0
    turned_away: int = 0
    refused: int = 0
    revoked: int = 0
    """Of the refused: whose certificate was revoked, at the handshake or later."""
    expelled: int = 0
    """Of the refused: who was in, and believed no more."""
    left_unread: int = 0
    """How often a peer was left unread because it did not read its answers."""
    late: int = 0
    crowded_out: int = 0

    def as_dict(self) -> dict[str, int]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


class Guest(Hashable, Protocol):
    """A connection, as the lobby sees it."""

    @property
    def source(self) -> str:
        """Where it comes from, as far as sources get a share each."""
        ...

    def admitted(self) -> None:
        """Go on: it is your turn."""

    def late(self) -> None:
        """Your deadline has passed."""

    def crowded_out(self) -> None:
        """Go: you did not say who you are, and others came."""


class Lobby:
    """Admission, deadlines and counts. Made inside the running loop that it serves."""

    def __init__(self, limits: EdgeLimits | None = None) -> None:
        self.limits = limits or EdgeLimits()
        self.counts = Counts()
        self.on_refusal: Callable[[str, object], None] | None = None
        """Is told the address of a refused client, and why: for the audit log."""
        self._loop = asyncio.get_running_loop()
        self._admission: EdgeAdmission[Guest] = EdgeAdmission(
            self.limits.admission, self._loop.time()
        )
        longest = max(self.limits.first_answer_seconds, self.limits.close_seconds)
        self._wheel: DeadlineWheel[Guest] = DeadlineWheel(self._turns(longest))
        places = self.limits.half_open_max
        share = max(1, places * self.limits.half_open_source_percent // 100)
        self._half_open: HalfOpen[Guest] = HalfOpen(places, min(places, share))
        self._timer: asyncio.TimerHandle | None = None
        self._lines_left = _LINES_PER_SECOND_MAX
        self._lines_since = self._loop.time()
        self._lines_dropped = 0

    @property
    def present(self) -> int:
        """How many connections there are, with those that wait."""
        return self._admission.present

    def arrive(self, guest: Guest) -> AdmissionVerdict:
        """Ask whether a new connection may enter; one that waits is told by `admitted`."""
        verdict = self._admission.arrive(guest, self._loop.time())
        if verdict is AdmissionVerdict.ENTER:
            self.counts.admitted += 1
        elif verdict is AdmissionVerdict.WAIT:
            self.counts.delayed += 1
            self._keep_turning()
        else:
            self.counts.turned_away += 1
            return verdict
        crowded_out = self._half_open.add(guest, guest.source)
        if crowded_out is not None:
            self.counts.crowded_out += 1
            crowded_out.crowded_out()
        return verdict

    @property
    def half_open(self) -> int:
        """How many connections have no first answer."""
        return len(self._half_open)

    def answered(self, guest: Guest) -> None:
        """Note a connection's first answer, or its end."""
        self._half_open.discard(guest)

    def leave(self, guest: Guest) -> None:
        """Forget a connection that was not turned away."""
        self._admission.leave(guest)

    def arm(self, guest: Guest, seconds: float) -> Slot:
        """Call the guest's `late` after so long, unless it is disarmed."""
        slot = self._wheel.arm(guest, self._turns(seconds))
        self._keep_turning()
        return slot

    def disarm(self, guest: Guest, slot: Slot) -> None:
        self._wheel.cancel(guest, slot)

    def refuse(self, line: str, *details: object) -> None:
        """Count a refused client and say why: a few lines a second, whatever is thrown at us."""
        self.counts.refused += 1
        now = self._loop.time()
        if now - self._lines_since >= 1.0:
            if self._lines_dropped:
                journal.warning("and %d more refusals", self._lines_dropped)
            self._lines_since, self._lines_dropped = now, 0
            self._lines_left = _LINES_PER_SECOND_MAX
        if self._lines_left:
            self._lines_left -= 1
            journal.warning(line, *details)
        else:
            self._lines_dropped += 1

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turns(self, seconds: float) -> int:
        return max(1, math.ceil(seconds / self.limits.turn_seconds))

    def _keep_turning(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self.limits.turn_seconds, self._turn)

    def _turn(self) -> None:
        self._timer = None
        for guest in self._wheel.turn():
            self.counts.late += 1
            guest.late()
        for guest in self._admission.release(self._loop.time()):
            self.counts.admitted += 1
            guest.admitted()
        if len(self._wheel) or self._admission.waiting:
            self._keep_turning()
