"""A journal that anybody can cause lines in says a few a second, and how many it left out. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LINES_PER_SECOND_MAX: Final = 10


class FewLines:
    """Lets some lines through; `now` is in seconds, of any clock that goes on."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._since = 0.0
        self._left = LINES_PER_SECOND_MAX
        self._dropped = 0

    def add(self, line: str, now: float) -> None:
        """Say a line, unless there were enough in this second."""
        if now - self._since >= 1.0:
            if self._dropped:
                self._say(f"and {self._dropped} more like the last")
            self._since, self._left, self._dropped = now, LINES_PER_SECOND_MAX, 0
        if self._left:
            self._left -= 1
            self._say(line)
        else:
            self._dropped += 1
