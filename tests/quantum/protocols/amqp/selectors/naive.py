"""A second evaluator of selectors, over trees that are drawn: slow, recursive, and by the book."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c", "$d", "x.y")
STRINGS = st.text(alphabet="ab%_'\\", max_size=4)
NUMBERS = st.integers(-5, 5) | st.sampled_from([0.5, -1.5, 2.0, 1e300]) | st.just(2**63 - 1)
FACTS = st.dictionaries(st.sampled_from(NAMES), STRINGS | NUMBERS | st.booleans())

_ESCAPED = re.compile(r"(?:a[a%_]|[^a])*")

Tree = tuple[Any, ...]


def _leaf() -> st.SearchStrategy[Tree]:
    return (
        st.tuples(st.just("name"), st.sampled_from(NAMES))
        | st.tuples(st.just("value"), STRINGS | NUMBERS | st.booleans())
        | st.tuples(st.just("value"), NUMBERS)
    )


def _grow(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    signs = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "AND", "OR"])
    words = st.lists(STRINGS, min_size=1, max_size=3)
    pattern = st.text(alphabet="ab%_", max_size=5)
    return (
        st.tuples(st.just("two"), signs, inner, inner)
        | st.tuples(st.just("not"), inner)
        | st.tuples(st.just("minus"), inner)
        | st.tuples(st.just("null"), inner, st.booleans())
        | st.tuples(st.just("between"), inner, inner, inner, st.booleans())
        | st.tuples(st.just("in"), inner, words, st.booleans())
        | st.tuples(st.just("like"), inner, pattern, st.booleans(), st.sampled_from(["", "a"]))
    )


TREES = st.recursive(_leaf(), _grow, max_leaves=12)


def text_of(tree: Tree) -> str:
    """Write a tree down, with parentheses everywhere."""
    match tree:
        case ("name", name):
            return str(name)
        case ("value", bool(value)):
            return str(value)
        case ("value", str(value)):
            return _quoted(value)
        case ("value", value):
            return repr(value)
        case ("two", sign, one, other):
            return f"({text_of(one)} {sign} {text_of(other)})"
        case ("not", one):
            return f"(not {text_of(one)})"
        case ("minus", one):
            return f"(-({text_of(one)}))"
        case ("null", one, negated):
            return f"({text_of(one)} is {'not ' if negated else ''}null)"
        case ("between", one, low, high, negated):
            word = "NOT BETWEEN" if negated else "BETWEEN"
            return f"({text_of(one)} {word} {text_of(low)} AND {text_of(high)})"
        case ("in", one, words, negated):
            listed = ", ".join(_quoted(each) for each in words)
            return f"({text_of(one)} {'NOT IN' if negated else 'IN'} ({listed}))"
        case ("like", one, pattern, negated, escape):
            behind = f" ESCAPE {_quoted(escape)}" if escape else ""
            return (
                f"({text_of(one)} {'NOT LIKE' if negated else 'LIKE'} {_quoted(pattern)}{behind})"
            )
    raise AssertionError(tree)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def is_bad_escape(tree: Any) -> bool:
    """Say whether a pattern in it has its escape before something that needs none."""
    if isinstance(tree, tuple):
        if tree and tree[0] == "like" and tree[4] and _ESCAPED.fullmatch(tree[2]) is None:
            return True
        return any(is_bad_escape(each) for each in tree)
    return False


def value_of(tree: Tree, facts: Mapping[str, Any]) -> Any:
    """Say what a tree is of these facts; None is unknown."""
    match tree:
        case ("name", name):
            return facts.get(name)
        case ("value", value):
            return value
        case ("two", ("AND" | "OR") as sign, one, other):
            return _joined(sign, truth(value_of(one, facts)), truth(value_of(other, facts)))
        case ("two", ("+" | "-" | "*" | "/") as sign, one, other):
            return _reckoned(sign, value_of(one, facts), value_of(other, facts))
        case ("two", sign, one, other):
            return _compared(sign, value_of(one, facts), value_of(other, facts))
        case ("not", one):
            return _not(truth(value_of(one, facts)))
        case ("minus", one):
            return _reckoned("-", 0, value_of(one, facts))
        case ("null", one, negated):
            return (value_of(one, facts) is None) != negated
        case ("between", one, low, high, negated):
            found = value_of(one, facts)
            above = _compared(">=", found, value_of(low, facts))
            below = _compared("<=", found, value_of(high, facts))
            joined = _joined("AND", above, below)
            return _not(joined) if negated else joined
        case ("in", one, words, negated):
            found = value_of(one, facts)
            return None if found is None else (type(found) is str and found in words) != negated
        case ("like", one, pattern, negated, escape):
            found = value_of(one, facts)
            if found is None:
                return None
            return (type(found) is str and _like(found, pattern, escape)) != negated
    raise AssertionError(tree)


def truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _joined(sign: str, one: bool | None, other: bool | None) -> bool | None:
    wins = sign == "OR"
    if wins in (one, other):
        return wins
    return None if None in (one, other) else not wins


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _compared(sign: str, one: Any, other: Any) -> bool | None:
    if one is None or other is None:
        return None
    alike = type(one) is type(other) or (_is_number(one) and _is_number(other))
    if not alike or (sign not in ("=", "<>") and not _is_number(one)):
        return False
    outcomes: dict[str, bool] = {"=": one == other, "<>": one != other}
    if _is_number(one):
        outcomes |= {"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}
    return outcomes[sign]


def _reckoned(sign: str, one: Any, other: Any) -> Any:
    if not (_is_number(one) and _is_number(other)):
        return None
    if sign == "/" and not other:
        return None
    if sign == "/" and type(one) is int and type(other) is int:
        found: Any = abs(one) // abs(other) * (1 if (one < 0) == (other < 0) else -1)
    else:
        try:
            found = {"+": one + other, "-": one - other, "*": one * other}.get(sign)
            found = one / other if sign == "/" else found
        except OverflowError:
            return None
    if type(found) is int and not -(2**63) <= found < 2**63:
        return None
    return found


def _like(text: str, pattern: str, escape: str) -> bool:
    pieces, at = [], 0
    while at < len(pattern):
        if escape and pattern[at] == escape:
            at += 1
            pieces.append(re.escape(pattern[at]))
        else:
            pieces.append({"%": ".*", "_": "."}.get(pattern[at], re.escape(pattern[at])))
        at += 1
    return re.fullmatch("".join(pieces), text, re.DOTALL) is not None
