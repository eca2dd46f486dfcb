"""No module may import one that imports it, directly or by others; type checking counts as well.

import-linter holds the walls between rooms. Here is what it cannot say: inside a room, too, every
module can be read with nothing but those below it. The list of what still breaks that only
shrinks: a cycle that is gone must leave it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

_KNOWN: tuple[str, ...] = ()
KNOWN_CYCLES = frozenset(
    frozenset(f"{room}.{module}" for module in modules.split())
    for room, _, modules in (each.partition(": ") for each in _KNOWN)
)
"""Rooms' modules that import each other still; none of them may grow, and none be added."""


def module_files() -> dict[str, Path]:
    found = {}
    for file in SOURCE.rglob("*.py"):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(module: str, file: Path, known: dict[str, Path]) -> Iterator[str]:
    """Name the modules of this house that a module imports, wherever in it."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield name if name in known else base


def graph() -> dict[str, set[str]]:
    known = module_files()
    return {
        module: {each for each in imported(module, file, known) if each in known} - {module}
        for module, file in known.items()
    }


def cycles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """Find the strongly connected components of more than one module (Kosaraju's two walks)."""
    order: list[str] = []
    seen: set[str] = set()
    for start in sorted(imports):
        _walk(start, imports, seen, order)
    backwards: dict[str, set[str]] = {each: set() for each in imports}
    for module, others in imports.items():
        for other in others:
            backwards[other].add(module)
    found, seen = set(), set()
    for start in reversed(order):
        component: list[str] = []
        _walk(start, backwards, seen, component)
        if len(component) > 1:
            found.add(frozenset(component))
    return found


def _walk(start: str, edges: dict[str, set[str]], seen: set[str], left: list[str]) -> None:
    """Visit all that can be reached; note each module when everything behind it was visited."""
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(sorted(edges[start])))]
    while stack:
        module, rest = stack[-1]
        following = next((each for each in rest if each not in seen), None)
        if following is None:
            left.append(module)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(sorted(edges[following]))))


def test_a_cycle_is_found_wherever_it_is_and_nothing_else() -> None:
    ring = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"a"}}
    assert cycles(ring) == {frozenset("abc")}
    assert not cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_no_modules_import_each_other_but_those_that_are_known_to() -> None:
    found = cycles(graph())
    for cycle in found:
        known = any(cycle <= each for each in KNOWN_CYCLES)
        assert known, f"these import each other: {sorted(cycle)}"
    gone = [sorted(each) for each in KNOWN_CYCLES if not any(cycle <= each for cycle in found)]
    assert not gone, f"no cycle any more, take it off the list: {gone}"


def test_protocols_know_nothing_of_each_other() -> None:
    for module, others in graph().items():
        mine = module.split(".")[:3]
        if mine[:2] != ["quantum", "protocols"] or len(mine) < 3:
            continue
        foreign = {each for each in others if each.startswith("quantum.protocols.")}
        foreign = {each for each in foreign if each.split(".")[:3] not in (mine, _PORTS)}
        assert not foreign, f"{module} knows another protocol: {sorted(foreign)}"


_PORTS = ["quantum", "protocols", "ports"]
