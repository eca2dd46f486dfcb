"""How many connections a port holds, and who must go when it is full. Pure.

A connection is half open until the other side has shown who it is, or what it wants. Those are
few, and when there are too many the oldest goes of the source that has most of them: a flood from
one place pushes out itself, and everybody else still gets in. What is open is bounded too, and no
source may have all of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

GuestT = TypeVar("GuestT", bound=Hashable)

_SHARE: Final = (3, 4)
"""What one source may have of all connections."""


@dataclass(frozen=True, slots=True)
class GateLimits:
    connections_max: int
    half_open_max: int


class ConnectionGate(Generic[GuestT]):
    """The connections of one port, by where they come from."""

    def __init__(self, limits: GateLimits) -> None:
        self._limits = limits
        self._sources: dict[GuestT, str] = {}
        self._held: dict[str, int] = {}
        self._half_open: dict[str, dict[GuestT, None]] = {}
        self._half_open_count = 0
        self.turned_away = 0
        """How many had to go because there were too many, since the start."""

    @property
    def present(self) -> int:
        return len(self._sources)

    @property
    def half_open(self) -> int:
        return self._half_open_count

    def arrive(self, guest: GuestT, source: str) -> GuestT | None:
        """Take a connection in; return the one that must go for it, which may be itself."""
        self._sources[guest] = source
        self._held[source] = self._held.get(source, 0) + 1
        self._half_open.setdefault(source, {})[guest] = None
        self._half_open_count += 1
        share, of = _SHARE
        if self._held[source] * of > self._limits.connections_max * share:
            leaving: GuestT | None = self._oldest_of(source)
        elif (
            len(self._sources) > self._limits.connections_max
            or self._half_open_count > self._limits.half_open_max
        ):
            leaving = self._oldest_of(
                max(self._half_open, key=lambda each: len(self._half_open[each]))
            )
        else:
            return None
        self.turned_away += 1
        return leaving

    def opened(self, guest: GuestT) -> None:
        """Note that a connection has shown who it is, or what it wants."""
        waiting = self._half_open.get(self._sources.get(guest, ""), {})
        if guest in waiting:
            del waiting[guest]
            self._half_open_count -= 1
            if not waiting:
                del self._half_open[self._sources[guest]]

    def left(self, guest: GuestT) -> None:
        """Forget a connection; a second time does nothing."""
        self.opened(guest)
        source = self._sources.pop(guest, None)
        if source is not None:
            self._held[source] -= 1
            if not self._held[source]:
                del self._held[source]

    def _oldest_of(self, source: str) -> GuestT:
        return next(iter(self._half_open[source]))
