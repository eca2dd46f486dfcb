"""What every test keeps to, so that none depends on luck."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
CLOCKS: Final = frozenset({"now", "utcnow", "utc_now", "today", "time", "time_ns", "monotonic"})
_LATER: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _run_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a module is imported: bodies of functions do not, their defaults do."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, _LATER):
            yield from _run_at_import(child.args)
            for decorator in getattr(child, "decorator_list", []):
                yield decorator
                yield from _run_at_import(decorator)
        else:
            yield child
            yield from _run_at_import(child)


def clocks_read_at_import(source: str) -> list[int]:
    """Return the lines on which an import would read a clock."""
    found = []
    for node in _run_at_import(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if isinstance(node.func, ast.Name):
            name = node.func.id
        if name in CLOCKS:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("NOW = utc_now()", [1]),
        ("x = 1\nMADE = issue(datetime.now(UTC))", [2]),
        ("def f(when=time.time()): ...", [1]),
        ("class A:\n    began = time.monotonic()", [2]),
        ("def f():\n    return utc_now()", []),
        ("f = lambda: time.time_ns()", []),
    ],
)
def test_clocks_at_import_are_seen(source: str, lines: list[int]) -> None:
    assert clocks_read_at_import(source) == lines


def test_no_test_reads_a_clock_when_it_is_imported() -> None:
    """Its turn may come half an hour later, when what was made then has ended."""
    read = {
        str(path.relative_to(HERE)): lines
        for path in sorted(HERE.rglob("*.py"))
        if (lines := clocks_read_at_import(path.read_text()))
    }
    assert not read
