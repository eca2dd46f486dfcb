"""What a selector's parts say of a message: true, false, or unknown (None), as in SQL-92.

Types are strict: strings, booleans and numbers are compared with their like alone, else a
comparison is false. Whatever has to do with something that is not there is unknown; so is a
number that no long holds, and a division by zero.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

from quantum.protocols.amqp.selectors.facts import Fact
from quantum.protocols.amqp.selectors.like import LikePattern
from quantum.protocols.amqp.selectors.tokens import LONG_MAX, LONG_MIN


class FactSource(Protocol):
    """A message, by the names of what it says."""

    def __getitem__(self, name: str) -> Fact: ...


Expression: TypeAlias = Callable[[FactSource], Fact]
_ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _is_number(value: Fact) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def literal(value: Fact) -> Expression:
    return lambda _facts: value


def named(name: str) -> Expression:
    return lambda facts: facts[name]


def both(one: Expression, other: Expression) -> Expression:
    def ask(facts: FactSource) -> Fact:
        first = _truth(one(facts))
        if first is False:
            return False
        second = _truth(other(facts))
        return second if first or second is False else None

    return ask


def either(one: Expression, other: Expression) -> Expression:
    def ask(facts: FactSource) -> Fact:
        first = _truth(one(facts))
        if first is True:
            return True
        second = _truth(other(facts))
        return second if first is False or second is True else None

    return ask


def opposite(one: Expression) -> Expression:
    def ask(facts: FactSource) -> Fact:
        found = _truth(one(facts))
        return None if found is None else not found

    return ask


def _truth(value: Fact) -> bool | None:
    """A string or a number is no condition: what it says is unknown."""
    return value if isinstance(value, bool) else None


def compared(sign: str, one: Expression, other: Expression) -> Expression:
    return lambda facts: _compare(sign, one(facts), other(facts))


def _compare(sign: str, left: Fact, right: Fact) -> bool | None:
    if left is None or right is None:
        return None
    if _is_number(left) and _is_number(right):
        assert not isinstance(left, str)
        assert not isinstance(right, str)
        if sign in _ORDERS:
            return _ORDERS[sign](left, right)
    elif type(left) is not type(right) or sign in _ORDERS:
        return False
    return left == right if sign == "=" else left != right


def between(one: Expression, low: Expression, high: Expression) -> Expression:
    return both(compared(">=", one, low), compared("<=", one, high))


def is_nothing(one: Expression) -> Expression:
    return lambda facts: one(facts) is None


def one_of(one: Expression, words: frozenset[str]) -> Expression:
    def ask(facts: FactSource) -> Fact:
        found = one(facts)
        return None if found is None else isinstance(found, str) and found in words

    return ask


def like(one: Expression, pattern: LikePattern) -> Expression:
    def ask(facts: FactSource) -> Fact:
        found = one(facts)
        if found is None:
            return None
        return pattern.matches(found) if isinstance(found, str) else False

    return ask


def negative(one: Expression) -> Expression:
    def ask(facts: FactSource) -> Fact:
        found = one(facts)
        if not _is_number(found):
            return None
        assert not isinstance(found, str)
        return None if found is None else _kept(-found)

    return ask


def reckoned(sign: str, one: Expression, other: Expression) -> Expression:
    def ask(facts: FactSource) -> Fact:
        left, right = one(facts), other(facts)
        if not _is_number(left) or not _is_number(right):
            return None
        assert isinstance(left, int | float)
        assert isinstance(right, int | float)
        try:
            return _kept(_reckon(sign, left, right))
        except (ZeroDivisionError, OverflowError):
            return None

    return ask


def _reckon(sign: str, left: float, right: float) -> float:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    if isinstance(left, int) and isinstance(right, int):
        whole = abs(left) // abs(right)  # towards zero, as Java divides
        return whole if (left < 0) == (right < 0) else -whole
    return left / right


def _kept(value: Fact) -> Fact:
    is_lost = isinstance(value, int) and not LONG_MIN <= value <= LONG_MAX
    return None if is_lost else value
