"""A selector's words: names, literals, operators. One pass, no way back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

LONG_MAX: Final = (1 << 63) - 1
LONG_MIN: Final = -(1 << 63)


class SelectorError(ValueError):
    """Text that is no selector; `place` is the character where that shows."""

    def __init__(self, reason: str, place: int) -> None:
        super().__init__(f"{reason}, at character {place + 1}")
        self.reason = reason
        self.place = place


class WordKind(Enum):
    """What a word is."""

    NAME = "name"
    KEYWORD = "keyword"
    STRING = "string"
    NUMBER = "number"
    OPERATOR = "operator"
    END = "end"


KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"}
)


@dataclass(frozen=True, slots=True)
class SelectorWord:
    """One word; of a keyword `text` is in capitals, of a literal `value` is what it says."""

    kind: WordKind
    text: str
    place: int
    value: str | int | float = ""


_SPACE: Final = re.compile(r"\s+")
_NAME: Final = re.compile(r"[^\W\d][\w$.]*|\$[\w$.]*")
_REAL: Final = re.compile(r"(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?[fFdD]?|\d+[fFdD](?!\w)")
_WHOLE: Final = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)[lL]?")
_OPERATOR: Final = re.compile(r"<>|<=|>=|[=<>+\-*/(),]")


def read_words(text: str) -> Iterator[SelectorWord]:
    """Take a selector apart; the last word is its end. Raises SelectorError."""
    place = 0
    while place < len(text):
        if (space := _SPACE.match(text, place)) is not None:
            place = space.end()
            continue
        word, place = _read_word(text, place)
        yield word
    yield SelectorWord(WordKind.END, "", place)


def _read_word(text: str, place: int) -> tuple[SelectorWord, int]:
    first = text[place]
    if first in "'\"":
        return _read_quoted(text, place)
    if first.isdecimal() or (first == "." and text[place + 1 : place + 2].isdecimal()):
        return _read_number(text, place)
    if (found := _NAME.match(text, place)) is not None:
        said = found[0]
        is_keyword = said.upper() in KEYWORDS
        kind = WordKind.KEYWORD if is_keyword else WordKind.NAME
        return SelectorWord(kind, said.upper() if is_keyword else said, place), found.end()
    if (found := _OPERATOR.match(text, place)) is not None:
        return SelectorWord(WordKind.OPERATOR, found[0], place), found.end()
    raise SelectorError("a character that no selector has", place)


def _read_quoted(text: str, place: int) -> tuple[SelectorWord, int]:
    """Read a string, or a name in double quotes; a quote inside is said twice."""
    quote, at, pieces = text[place], place + 1, []
    while True:
        end = text.find(quote, at)
        if end < 0:
            raise SelectorError("a quote without its end", place)
        pieces.append(text[at:end])
        if text[end + 1 : end + 2] != quote:
            break
        pieces.append(quote)
        at = end + 2
    said = "".join(pieces)
    if quote == "'":
        return SelectorWord(WordKind.STRING, "", place, said), end + 1
    if not said:
        raise SelectorError("a name without a letter", place)
    return SelectorWord(WordKind.NAME, said, place), end + 1


def _read_number(text: str, place: int) -> tuple[SelectorWord, int]:
    found = _REAL.match(text, place)
    value: int | float
    if found is not None:
        value = float(found[0].rstrip("fFdD"))
    else:
        found = _WHOLE.match(text, place)
        if found is None:
            raise SelectorError("a number that is none", place)
        value = _whole(found[1], place)
    if _NAME.match(text, found.end()) is not None:
        raise SelectorError("a number that goes on as a name", place)
    return SelectorWord(WordKind.NUMBER, found[0], place, value), found.end()


def _whole(digits: str, place: int) -> int:
    """Read a whole number as Java does: 0x is hexadecimal, a leading 0 octal."""
    base = 16 if digits[:2] in ("0x", "0X") else 8 if len(digits) > 1 and digits[0] == "0" else 10
    try:
        value = int(digits, base)
    except ValueError:
        raise SelectorError("a number that is none", place) from None
    if value > LONG_MAX + 1:  # one more is said of the smallest, behind its sign
        raise SelectorError("a number that no long holds", place)
    return value
