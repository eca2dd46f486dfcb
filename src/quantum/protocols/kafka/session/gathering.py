"""One call when several answers have come."""

from __future__ import annotations

from collections.abc import Callable


class Gathering:
    """Counts what is awaited; `then` is called once, when all of it came and `begin` was called."""

    __slots__ = ("_awaited", "_is_begun", "_then")

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._awaited = 0
        self._is_begun = False

    def expect(self) -> None:
        """Await one more answer."""
        self._awaited += 1

    def came(self) -> None:
        """Note that one of them is there."""
        self._awaited -= 1
        self._end_if_all()

    def begin(self) -> None:
        """Nothing more is to be expected: go on when all is there, which may be now."""
        self._is_begun = True
        self._end_if_all()

    def _end_if_all(self) -> None:
        if self._is_begun and not self._awaited:
            self._then()
