"""Idle time-outs both ways (§2.4.5), reckoned in the driver's own seconds.

Hearing and speaking happen between two looks at the clock: they are noted, and dated when the
driver next tells the time. That errs late by one turn of its loop, never early.
"""

from __future__ import annotations


class IdleClock:
    """When to speak, and when the peer is gone."""

    __slots__ = (
        "_has_heard",
        "_has_spoken",
        "_heard_at",
        "_own_ms",
        "_spoke_at",
        "peer_time_out_ms",
    )

    def __init__(self, own_time_out_ms: int | None) -> None:
        self._own_ms = own_time_out_ms
        self.peer_time_out_ms: int | None = None
        """What the peer's open asked for; zero and None mean that it does not care."""
        self._has_heard = True
        self._has_spoken = True
        self._heard_at = 0.0
        self._spoke_at = 0.0

    def on_heard(self) -> None:
        self._has_heard = True

    def on_spoke(self) -> None:
        self._has_spoken = True

    def next_deadline(self, now: float) -> float | None:
        """Return when something is due, which may be now."""
        self._date(now)
        due = [each for each in (self._speak_at(), self._gone_at()) if each is not None]
        return min(due) if due else None

    def must_speak(self, now: float) -> bool:
        self._date(now)
        at = self._speak_at()
        return at is not None and now >= at

    def is_peer_gone(self, now: float) -> bool:
        self._date(now)
        at = self._gone_at()
        return at is not None and now >= at

    def _speak_at(self) -> float | None:
        """Half the peer's time-out, so that one late turn does not lose it."""
        if not self.peer_time_out_ms:
            return None
        return self._spoke_at + self.peer_time_out_ms / 2_000

    def _gone_at(self) -> float | None:
        """Twice what we announced (§2.4.5)."""
        if not self._own_ms:
            return None
        return self._heard_at + self._own_ms / 500

    def _date(self, now: float) -> None:
        if self._has_heard:
            self._has_heard, self._heard_at = False, now
        if self._has_spoken:
            self._has_spoken, self._spoke_at = False, now
