"""A room's `__init__` is its only door, or it is empty: nobody has to guess which way is meant.

Inside a room, and in its own tests, modules are imported as they are. `MIXED` are the rooms that
still have both ways; a room may leave that list, and none may come to it.
"""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

DOORS = {
    "clustor.flow",
    "clustor.kv",
    "clustor.sim.disk",
    "clustor.wire",
    "quantum.broker.queues",
    "quantum.console",
    "quantum.lake.table",
    "quantum.protocols.amqp.selectors",
    "quantum.protocols.kafka.codec",
    "quantum.protocols.kafka.requests",
    "quantum.sim",
    "quantum.tenancy",
    "slipstream",
    "slipstream.applied",
    "slipstream.cli",
    "slipstream.clustor",
    "slipstream.nats",
}
"""Rooms whose modules no other room of the sources names."""

MIXED = {
    "clustor.control",
    "clustor.replica",
    "clustor.runtime.disk",
    "clustor.security",
    "clustor.streams",
    "clustor.telemetry",
    "quantum.admin",
    "quantum.archive",
    "quantum.broker",
    "quantum.broker.streams",
    "quantum.client",
    "quantum.config",
    "quantum.lake.archive",
    "quantum.lake.jobs",
    "quantum.protocols.amqp.engine",
    "quantum.protocols.mqtt.codec",
    "slipstream.artifact",
    "slipstream.folds",
}


def module_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(text: str) -> set[str]:
    """Name the modules that a source takes something from."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def passes_by(module: str, names: set[str], room: str) -> set[str]:
    """Return what a module of another room imports from inside a room."""
    if f"{module}.".startswith(f"{room}."):
        return set()
    return {name for name in names if name.startswith(f"{room}.")}


def sources() -> dict[str, str]:
    return {module_of(file): file.read_text() for file in sorted(SOURCE.rglob("*.py"))}


def test_who_passes_by_a_door_is_seen_and_the_room_itself_may() -> None:
    names = imported("from clustor.kv.types import Key\nimport clustor.kv\nfrom clustor import kv")
    assert passes_by("clustor.control.cache", names, "clustor.kv") == {"clustor.kv.types"}
    assert passes_by("clustor.kv.machine", names, "clustor.kv") == set()
    assert passes_by("clustor.kvx", names, "clustor.kv") == {"clustor.kv.types"}


def test_nobody_passes_by_a_door() -> None:
    for module, text in sources().items():
        names = imported(text)
        past = {each for room in DOORS for each in passes_by(module, names, room)}
        assert not past, f"{module} passes by the door: {sorted(past)}"


def test_a_face_is_a_door_or_empty_but_for_those_that_are_known() -> None:
    faces = set()
    for file in sorted(SOURCE.rglob("__init__.py")):
        froms = [each for each in ast.parse(file.read_text()).body if _takes_from_us(each)]
        if froms:
            faces.add(module_of(file))
    assert faces == DOORS | MIXED


def _takes_from_us(node: ast.stmt) -> bool:
    ours = ("clustor", "slipstream", "quantum")
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ours)
