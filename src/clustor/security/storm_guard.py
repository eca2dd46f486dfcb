"""A guard against storms: what everybody can cause at will must not fill the audit log.

Of each kind of event the first few in a window are written as they are; the others are counted,
and one line at the end of the window says how many there were (clustor §13.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from clustor.security.audit_lines import AuditEvent

WINDOW_MS: Final = 600_000
_KINDS_MAX: Final = 1_024
_OTHERS: Final = ("(others)", "")


class AuditPort(Protocol):
    """Where events go. It never waits."""

    def note(self, event: AuditEvent) -> bool:
        """Take an event; False: there was no room, and it is counted as lost."""


def events_per_window(active_partitions: int) -> int:
    """Return `incident_max_per_window` of clustor §13.1."""
    return max(5, -(-active_partitions // 250))


@dataclass(slots=True)
class _Window:
    begins_ms: int
    written: int = 0
    suppressed: int = 0
    newest: AuditEvent | None = None


class StormGuard:
    """Decides which events are written. Time is what the events say."""

    def __init__(self, per_window: int = 5, *, window_ms: int = WINDOW_MS) -> None:
        self._per_window = per_window
        self._window_ms = window_ms
        self._windows: dict[tuple[str, str], _Window] = {}

    def admit(self, event: AuditEvent) -> tuple[AuditEvent, ...]:
        """Return what to write now: the event or nothing, behind the summary of an old window."""
        key = (event.what, event.tenant)
        if key not in self._windows and len(self._windows) >= _KINDS_MAX:
            key = _OTHERS
        window = self._windows.get(key)
        due: tuple[AuditEvent, ...] = ()
        if window is None or event.at_ms - window.begins_ms >= self._window_ms:
            due = _summary(window, event.at_ms)
            window = self._windows[key] = _Window(event.at_ms)
        if window.written < self._per_window:
            window.written += 1
            return (*due, event)
        window.suppressed += 1
        window.newest = event
        return due

    def flush(self, now_ms: int, *, everything: bool = False) -> tuple[AuditEvent, ...]:
        """Return the summaries of the windows that are over, and forget these."""
        due: list[AuditEvent] = []
        for key, window in list(self._windows.items()):
            if everything or now_ms - window.begins_ms >= self._window_ms:
                due += _summary(window, now_ms)
                del self._windows[key]
        return tuple(due)


def _summary(window: _Window | None, now_ms: int) -> tuple[AuditEvent, ...]:
    if window is None or window.newest is None:
        return ()
    facts = {"suppressed": str(window.suppressed), "since_ms": str(window.begins_ms)}
    return (msgspec.structs.replace(window.newest, at_ms=now_ms, who="(many)", facts=facts),)
