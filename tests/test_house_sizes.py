"""Files have 500 lines at most, functions 60, a class its name alone; exceptions only shrink."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import TypeGuard

SOURCE = Path(__file__).parents[1] / "src"
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60

LONG_FILES: dict[str, int] = {}
"""How long a file may be that is too long still; none is."""

LONG_FUNCTIONS = {
    "quantum/broker/publishing.py:_publish_all": 72,
    "quantum/protocols/amqp/engine/hot.py:_transfer": 85,
    "quantum/protocols/mqtt/codec/hot.py:scan": 96,
}
"""Likewise: three loops over every message, where a call costs."""


NAMED_TWICE: set[str] = set()
"""Public classes of one name: whoever reads it cold cannot tell which is meant."""


def lengths_of_files() -> dict[str, int]:
    return {
        str(file.relative_to(SOURCE)): len(file.read_text().splitlines())
        for file in sorted(SOURCE.rglob("*.py"))
    }


def lengths_of_functions(text: str) -> list[tuple[str, int]]:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    found = [each for each in ast.walk(ast.parse(text)) if isinstance(each, functions)]
    return [(each.name, (each.end_lineno or each.lineno) - each.lineno + 1) for each in found]


def too_long(found: dict[str, int], limit: int, known: dict[str, int]) -> list[str]:
    """Name what is over its limit, and what is on the list and need not be."""
    over = [f"{name}: {long}" for name, long in found.items() if long > known.get(name, limit)]
    gone = [f"{name}: off the list" for name in known if found.get(name, 0) <= limit]
    return over + gone


def test_no_file_is_too_long_but_those_that_are_known_to_be() -> None:
    assert too_long(lengths_of_files(), FILE_LINES_MAX, LONG_FILES) == []


def test_no_function_is_too_long_but_those_that_are_known_to_be() -> None:
    found: dict[str, int] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        for name, long in lengths_of_functions(file.read_text()):
            place = f"{file.relative_to(SOURCE)}:{name}"
            found[place] = max(long, found.get(place, 0))
    assert too_long(found, FUNCTION_LINES_MAX, LONG_FUNCTIONS) == []


def names_twice(texts: list[str]) -> set[str]:
    classes = [node.name for text in texts for node in ast.parse(text).body if _is_class(node)]
    return {name for name, count in Counter(classes).items() if count > 1 and name[0] != "_"}


def _is_class(node: ast.stmt) -> TypeGuard[ast.ClassDef]:
    return isinstance(node, ast.ClassDef)


def test_a_class_has_its_name_alone() -> None:
    assert names_twice([file.read_text() for file in SOURCE.rglob("*.py")]) == NAMED_TWICE
    assert names_twice(["class A: ...", "class A: ...\nclass B: ..."]) == {"A"}


def test_what_is_too_long_is_found_and_so_is_what_got_shorter() -> None:
    assert too_long({"a": 3, "b": 2}, 2, {}) == ["a: 3"]
    assert too_long({"a": 3, "b": 5}, 2, {"a": 3, "b": 4}) == ["b: 5"]
    assert too_long({"a": 2}, 2, {"a": 3}) == ["a: off the list"]
    assert lengths_of_functions("def f():\n    def g():\n        pass\n") == [("f", 3), ("g", 2)]
