"""A selector's grammar (JMS 2.0 §3.8.1): each level of it is one function, each part a closure.

| binds | what |
| --- | --- |
| least | OR |
| | AND |
| | NOT |
| | = <> < <= > >=, [NOT] BETWEEN, IN, LIKE, IS [NOT] NULL |
| | + - |
| | * / |
| most | a sign; a name, a literal, parentheses |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from quantum.protocols.amqp.selectors import evaluating as e
from quantum.protocols.amqp.selectors.evaluating import Expression, FactSource
from quantum.protocols.amqp.selectors.like import LikePattern, split_pattern
from quantum.protocols.amqp.selectors.tokens import (
    LONG_MAX,
    SelectorError,
    SelectorWord,
    WordKind,
    read_words,
)

SELECTOR_CHARS_MAX: Final = 4_096
DEPTH_MAX: Final = 64
"""How deep parentheses, signs and NOT may stand in each other, and how long a chain of one
operator may be is bounded by the text."""
_SIGNS: Final = frozenset({"=", "<>", "<", "<=", ">", ">="})


@dataclass(frozen=True, slots=True)
class Selector:
    """A selector that was understood."""

    text: str
    _ask: Expression

    def accepts(self, facts: FactSource) -> bool:
        """Say whether it is true of a message; unknown is not true."""
        return self._ask(facts) is True


def parse_selector(text: str) -> Selector:
    """Understand a selector. Raises SelectorError for text that is none."""
    if len(text) > SELECTOR_CHARS_MAX:
        raise SelectorError(f"a selector has at most {SELECTOR_CHARS_MAX} characters", len(text))
    return Selector(text, _Parser(list(read_words(text))).whole())


class _Parser:
    """Reads words from left to right; every function leaves `_at` behind what it read."""

    def __init__(self, words: list[SelectorWord]) -> None:
        self._words = words
        self._at = 0
        self._depth = 0

    def whole(self) -> Expression:
        found = self._either()
        if self._word.kind is not WordKind.END:
            raise SelectorError("something is left behind the selector", self._word.place)
        return found

    # Words.

    @property
    def _word(self) -> SelectorWord:
        return self._words[self._at]

    def _take(self, kind: WordKind, *texts: str) -> SelectorWord | None:
        """Take the next word if it is one of these."""
        word = self._word
        if word.kind is not kind or (texts and word.text not in texts):
            return None
        self._at += 1
        return word

    def _need(self, kind: WordKind, *texts: str) -> SelectorWord:
        found = self._take(kind, *texts)
        if found is None:
            wanted = " or ".join(texts) if texts else f"a {kind.value}"
            raise SelectorError(f"{wanted} is missing", self._word.place)
        return found

    def _deeper(self, read: Callable[[], Expression]) -> Expression:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SelectorError(f"deeper than {DEPTH_MAX} levels", self._word.place)
        found = read()
        self._depth -= 1
        return found

    # Conditions.

    def _either(self) -> Expression:
        parts = [self._both()]
        while self._take(WordKind.KEYWORD, "OR"):
            parts.append(self._both())
        return _balanced(e.either, parts)

    def _both(self) -> Expression:
        parts = [self._opposite()]
        while self._take(WordKind.KEYWORD, "AND"):
            parts.append(self._opposite())
        return _balanced(e.both, parts)

    def _opposite(self) -> Expression:
        if self._take(WordKind.KEYWORD, "NOT"):
            return e.opposite(self._deeper(self._opposite))
        return self._comparison()

    def _comparison(self) -> Expression:
        left = self._sum()
        sign = self._take(WordKind.OPERATOR, *_SIGNS)
        if sign is not None:
            return e.compared(sign.text, left, self._sum())
        if self._take(WordKind.KEYWORD, "IS"):
            negated = self._take(WordKind.KEYWORD, "NOT")
            self._need(WordKind.KEYWORD, "NULL")
            found = e.is_nothing(left)
            return e.opposite(found) if negated else found
        negated = self._take(WordKind.KEYWORD, "NOT")
        word = self._take(WordKind.KEYWORD, "BETWEEN", "IN", "LIKE")
        if word is None:
            if negated is not None:
                raise SelectorError("BETWEEN, IN or LIKE is missing", self._word.place)
            return left
        reads = {"BETWEEN": self._between, "IN": self._one_of, "LIKE": self._like}
        found = reads[word.text](left)
        return e.opposite(found) if negated else found

    def _between(self, left: Expression) -> Expression:
        low = self._sum()
        self._need(WordKind.KEYWORD, "AND")
        return e.between(left, low, self._sum())

    def _one_of(self, left: Expression) -> Expression:
        self._need(WordKind.OPERATOR, "(")
        words = {str(self._need(WordKind.STRING).value)}
        while self._take(WordKind.OPERATOR, ","):
            words.add(str(self._need(WordKind.STRING).value))
        self._need(WordKind.OPERATOR, ")")
        return e.one_of(left, frozenset(words))

    def _like(self, left: Expression) -> Expression:
        pattern, escape = self._need(WordKind.STRING), ""
        if self._take(WordKind.KEYWORD, "ESCAPE"):
            said = self._need(WordKind.STRING)
            escape = str(said.value)
            if len(escape) != 1:
                raise SelectorError("an escape is one character", said.place)
        parts = split_pattern(str(pattern.value), escape)
        if parts is None:
            raise SelectorError("an escape stands before %, _ or itself", pattern.place)
        return e.like(left, LikePattern(parts))

    # Numbers.

    def _sum(self) -> Expression:
        return self._chain(self._product, "+", "-")

    def _product(self) -> Expression:
        return self._chain(self._signed, "*", "/")

    def _chain(self, read: Callable[[], Expression], *signs: str) -> Expression:
        found, count = read(), 0
        while (sign := self._take(WordKind.OPERATOR, *signs)) is not None:
            count += 1
            if count > DEPTH_MAX:  # each is a level when it is asked
                raise SelectorError(f"more than {DEPTH_MAX} terms in one", sign.place)
            found = e.reckoned(sign.text, found, read())
        return found

    def _signed(self) -> Expression:
        sign = self._take(WordKind.OPERATOR, "+", "-")
        if sign is None:
            return self._primary()
        number = self._word
        if sign.text == "-" and number.kind is WordKind.NUMBER:
            self._at += 1
            assert not isinstance(number.value, str)
            return e.literal(-number.value)
        found = self._deeper(self._signed)
        return e.negative(found) if sign.text == "-" else e.negative(e.negative(found))

    def _primary(self) -> Expression:
        word = self._word
        self._at += 1
        match word.kind, word.text:
            case WordKind.NAME, name:
                return e.named(name)
            case WordKind.STRING, _:
                return e.literal(word.value)
            case WordKind.NUMBER, _:
                if isinstance(word.value, int) and word.value > LONG_MAX:
                    raise SelectorError("a number that no long holds", word.place)
                return e.literal(word.value)
            case WordKind.KEYWORD, ("TRUE" | "FALSE") as said:
                return e.literal(said == "TRUE")
            case WordKind.OPERATOR, "(":
                found = self._deeper(self._either)
                self._need(WordKind.OPERATOR, ")")
                return found
        raise SelectorError("a name, a literal or a parenthesis is missing", word.place)


def _balanced(
    join: Callable[[Expression, Expression], Expression], parts: list[Expression]
) -> Expression:
    """Join many as a tree that is not deep: asking goes as deep as the tree."""
    while len(parts) > 1:
        pairs = [join(one, other) for one, other in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]
