"""Text of others, fit to stand in one line of a log: nobody writes our lines but us."""

from __future__ import annotations


def printable(said: object) -> str:
    """Return what was said as one line of printable characters.

    Line ends, terminal controls, characters that turn the direction of text and halves of surrogate
    pairs become escapes. What went through it once comes out of it unchanged.
    """
    text = str(said)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
