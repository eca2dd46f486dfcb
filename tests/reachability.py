"""Which definitions a running command can reach, by imports first and then by names.

The import graph says which modules the entry points load. Within those a definition lives if its
bare name is used by something that lives: module-level code, an entry point, or another living
definition. Names are compared without types, so the answer errs on the side of 'reached': what it
calls unreached nobody can call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGES = ("clustor", "slipstream", "quantum")
ENTRIES = ("quantum.cli.app", "quantum.cli", "slipstream.cli.app", "slipstream.cli")
"""`quantum` and `slipstream`, whose commands are imported by name when they are asked for."""
COMMAND_ROOMS = ("quantum.cli", "slipstream.cli")


@dataclass
class Definition:
    """A function or a class of a module, and the names that it uses."""

    module: str
    name: str
    uses: set[str] = field(default_factory=set)


@cache
def loaded_modules() -> frozenset[str]:
    """Return the modules that the entry points load, now or when a command is asked for."""
    graph = grimp.build_graph(*PACKAGES, include_external_packages=False)
    roots = {each for each in graph.modules if _is_root(each)}
    found, waiting = set(roots), list(roots)
    while waiting:
        for each in graph.find_modules_directly_imported_by(waiting.pop()):
            if each not in found:
                found.add(each)
                waiting.append(each)
    return frozenset(found)


def _is_root(module: str) -> bool:
    if module in ENTRIES or module.rpartition(".")[0] in COMMAND_ROOMS:
        return True
    text = _path(module).read_text() if _path(module).exists() else ""
    return '__name__ == "__main__"' in text or "class QuantumDataSource" in text


def _path(module: str) -> Path:
    base = SOURCE / Path(*module.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def module_of(path: str) -> str:
    """Return the module of `src/…/x.py`."""
    parts = Path(path).relative_to("src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def living() -> dict[str, frozenset[str]]:
    """Return the living definitions of every module that is loaded."""
    loose, definitions = _read(loaded_modules())
    by_name: dict[str, list[Definition]] = {}
    for each in definitions:
        by_name.setdefault(each.name, []).append(each)
    alive: dict[str, set[str]] = {}
    seen, waiting = set(loose), list(loose)
    while waiting:
        for definition in by_name.get(waiting.pop(), ()):
            alive.setdefault(definition.module, set()).add(definition.name)
            waiting += [each for each in definition.uses if each not in seen]
            seen |= definition.uses
    return {module: frozenset(names) for module, names in alive.items()}


def _read(modules: Iterable[str]) -> tuple[set[str], list[Definition]]:
    """Return what module-level code uses, and all definitions of these modules."""
    loose: set[str] = set()
    definitions: list[Definition] = []
    for module in sorted(modules):
        path = _path(module)
        if not path.exists():
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                definitions.append(Definition(module, node.name, set(_names(node))))
                if node.decorator_list or _is_root(module):
                    loose.add(node.name)  # registered somewhere, or a command
            elif not isinstance(node, ast.Import | ast.ImportFrom) and not _is_exports(node):
                loose |= set(_names(node))
    return loose, definitions


def _is_exports(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(each, ast.Name) and each.id == "__all__" for each in targets)


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr


def has_definitions(module: str) -> bool:
    """Say whether a module defines anything at all; one of constants alone lives by its import."""
    _, definitions = _read([module])
    return bool(definitions)


def is_reached(module: str) -> bool:
    """Say whether anything of a module can run in a command."""
    if module not in loaded_modules():
        return False
    return bool(living().get(module)) or not has_definitions(module)
