"""`docs/coverage.md` says yes only of what a running command reaches, and shows who saw it."""

from __future__ import annotations

import re

import pytest

from tests.reachability import ROOT, SOURCE, is_reached, living, loaded_modules, module_of

_CODE = re.compile(r"`(src/[\w./]+?)`")
_TEST = re.compile(r"`(tests/[\w./]+?)`")
_STATES = ("yes", "library only", "not built")


def rows() -> dict[str, list[str]]:
    """Return every row of every table, by its number and its section."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "docs/coverage.md").read_text().splitlines():
        if line.startswith("| ") and not re.match(r"\| (---|section|what) ", line):
            cells = [each.strip() for each in line.strip().strip("|").split("|")]
            found[f"{len(found)} {cells[0][:40]}"] = cells
    return found


ROWS = rows()


def modules_of(cell: str) -> list[str]:
    """Return the modules that a cell names, those of a directory one by one."""
    files = []
    for path in _CODE.findall(cell):
        if path.endswith(".py"):
            files.append(path)
        elif not path.endswith(".md"):
            found = (ROOT / path).rglob("*.py")
            files += [str(each.relative_to(ROOT)) for each in found if each.stem != "__init__"]
    return [module_of(each) for each in files]


@pytest.mark.parametrize("cells", ROWS.values(), ids=ROWS.keys())
def test_every_row_says_how_it_stands_on_a_node(cells: list[str]) -> None:
    assert len(cells) == 4, "section, code, tests, on a node"
    assert cells[3].startswith(_STATES), cells[3]


@pytest.mark.parametrize("cells", ROWS.values(), ids=ROWS.keys())
def test_who_says_yes_is_reached_and_was_seen(cells: list[str]) -> None:
    if not cells[3].startswith("yes"):
        return
    modules = modules_of(cells[1])
    unreached = [each for each in modules if not is_reached(each)]
    named_apart = "yes but for" in cells[3]
    assert not unreached or (named_apart and len(unreached) < len(modules)), unreached
    seen = _TEST.findall(cells[3])
    assert seen or "benchmarks" in cells[3], "name the test that sees it happen"
    assert all((ROOT / each).exists() for each in seen), seen


def test_a_room_that_nothing_loads_is_not_reached() -> None:
    """The one that everybody knows to be a library: if this changes, so does its row."""
    assert not is_reached("clustor.streams.quorum")
    assert is_reached("quantum.partition.leader")


def test_what_lives_is_told_from_what_is_only_defined() -> None:
    assert "NodeDuties" in living()["clustor.runtime.control.duties"]
    assert "clustor.runtime.main" in loaded_modules()
    assert len(loaded_modules()) < len(list(SOURCE.rglob("*.py")))
