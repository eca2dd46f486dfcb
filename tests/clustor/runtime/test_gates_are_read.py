"""Every gate that the control plane can open or shut is asked by the code that it names."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from pathlib import Path

import pytest

import clustor
from clustor.control import Feature
from clustor.control.command_gates import GATE_OF, LATER_RULES_GATE, CommandGate
from clustor.runtime.control.features import DIGESTS, PREDICATES
from clustor.runtime.control.reports import BUILD_FEATURES

SOURCE = Path(clustor.__file__).parent.parent
NOT_BUILT = frozenset({Feature.LEADER_LEASES, Feature.BLAKE3_LEAVES})
"""No build reports them, so that nobody can open them (`NotSupported`): docs/coverage.md."""
NO_READING = frozenset(
    {
        "clustor/control/features.py",
        "clustor/control/command_gates.py",
        "clustor/runtime/control/reports.py",
    }
)
"""Where gates are named and reported, which is not to ask them."""
ASKED_BY = {
    Feature.INCREMENTAL_SNAPSHOTS: {"clustor/runtime/control/features.py"},
    Feature.GROUP_FSYNC: {"clustor/runtime/control/features.py"},
    Feature.PID_AUTO_TUNER: {"clustor/runtime/control/features.py"},
    Feature.OBSERVER_ADMISSION: {"clustor/runtime/control/service.py"},
}


@functools.cache
def sources() -> dict[str, ast.Module]:
    paths = {str(path.relative_to(SOURCE)): path for path in SOURCE.rglob("*.py")}
    assert paths.keys() >= NO_READING
    read = paths.keys() - NO_READING
    return {name: ast.parse(paths[name].read_text()) for name in sorted(read)}


def named(node: ast.AST, kind: str) -> str | None:
    """Return the member of an enumeration that a node is."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == kind else None
    return None


def readers(kind: str, *, compared: bool) -> dict[str, set[str]]:
    """Return the files that name each member; with `compared`, in a comparison alone."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in sources().items():
        for node in ast.walk(tree):
            asked = node.left if compared and isinstance(node, ast.Compare) else node
            if compared and asked is node:
                continue
            member = named(asked, kind)
            if member is not None:
                found[member].add(path)
    return found


def test_each_feature_s_gate_is_asked_where_the_table_says() -> None:
    read = readers("Feature", compared=True)
    assert ASKED_BY.keys() | NOT_BUILT == set(Feature)
    assert {each: read[each.name] for each in Feature if each.name in read} == ASKED_BY


def test_what_is_built_has_a_predicate_and_what_is_not_cannot_be_opened() -> None:
    assert set(BUILD_FEATURES) == set(Feature) - NOT_BUILT == PREDICATES.keys() == DIGESTS.keys()
    assert len(set(DIGESTS.values())) == len(DIGESTS)


@pytest.mark.parametrize("gate", CommandGate)
def test_each_gate_of_a_word_is_asked_before_it_is_said(gate: CommandGate) -> None:
    asked = {*GATE_OF.values(), LATER_RULES_GATE}
    assert gate in asked or gate.name in readers("CommandGate", compared=False)
