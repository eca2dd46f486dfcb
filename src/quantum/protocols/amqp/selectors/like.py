"""LIKE without going back: each part of a pattern is looked for once, from left to right."""

from __future__ import annotations

from typing import Final

LOOKED_CHARS_MAX: Final = 4_096
"""Parts with `_` are looked for in texts of at most so many characters."""
ANY_ONE: Final = ""
"""Stands for `_` in a part."""

Part = list[str]


def split_pattern(pattern: str, escape: str) -> list[Part] | None:
    """Take a pattern apart at its `%`; None: its escape stands before something else."""
    parts: list[Part] = [[]]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if escape and char == escape:
            at += 1
            if at >= len(pattern) or pattern[at] not in ("%", "_", escape):
                return None
            parts[-1].append(pattern[at])
        elif char == "%":
            parts.append([])
        else:
            parts[-1].append(ANY_ONE if char == "_" else char)
        at += 1
    return parts


class LikePattern:
    """One pattern, ready to be asked."""

    __slots__ = ("_first", "_last", "_middle", "_wild")

    def __init__(self, parts: list[Part]) -> None:
        self._first = parts[0]
        self._last = parts[-1] if len(parts) > 1 else None
        self._middle = [_Sought(each) for each in parts[1:-1] if each]
        self._wild = any(each.masks is not None for each in self._middle)

    def matches(self, text: str) -> bool | None:
        """Say whether a text is like this; None: it is too long to be looked at."""
        if self._last is None:
            return len(text) == len(self._first) and _fits(self._first, text, 0)
        end = len(text) - len(self._last)
        at = len(self._first)
        if end < at or not _fits(self._first, text, 0) or not _fits(self._last, text, end):
            return False
        if self._wild and end - at > LOOKED_CHARS_MAX:
            return None
        for part in self._middle:
            at = part.behind(text, at, end)
            if at < 0:
                return False
        return True


def _fits(part: Part, text: str, at: int) -> bool:
    return all(char in (ANY_ONE, text[at + n]) for n, char in enumerate(part))


class _Sought:
    """A part between two `%`: its first place is the best one."""

    __slots__ = ("_any", "_length", "_plain", "masks")

    def __init__(self, part: Part) -> None:
        self._plain = "".join(part)
        self._length = len(part)
        self._any = sum(1 << n for n, char in enumerate(part) if char == ANY_ONE)
        self.masks: dict[str, int] | None = None
        """For each character, the places of the part that take it, as bits."""
        if self._any:
            self.masks = {}
            for n, char in enumerate(part):
                if char != ANY_ONE:
                    self.masks[char] = self.masks.get(char, self._any) | 1 << n

    def behind(self, text: str, at: int, end: int) -> int:
        """Return where the text goes on behind the first such part; -1: there is none."""
        if self.masks is None:
            found = text.find(self._plain, at, end)
            return -1 if found < 0 else found + self._length
        state, whole = 0, 1 << (self._length - 1)
        for place in range(at, end):
            state = (state << 1 | 1) & self.masks.get(text[place], self._any)
            if state & whole:
                return place + 1
        return -1
