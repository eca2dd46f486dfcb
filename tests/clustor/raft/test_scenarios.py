"""Stories of Raft, as text: what goes in, `----`, what comes out. The diff is the review."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.clustor.raft.stage import Stage

FOLDER = Path(__file__).parent / "scenarios"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    """Play the file and compare; `--rewrite` writes the outcome into it instead."""
    old = path.read_text()
    new = play(old)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(new)
        return
    difference = difflib.unified_diff(old.splitlines(), new.splitlines(), "told", "played", "")
    assert old == new, "\n".join(difference)


def play(text: str) -> str:
    """Return the text with every outcome as it is now; remarks and commands stay."""
    stage = Stage()
    blocks = []
    for block in text.strip("\n").split("\n\n"):
        given = block.split("\n----", 1)[0].splitlines()
        if all(line.startswith("#") for line in given):
            blocks.append("\n".join(given))
            continue
        stage.lines = []
        for line in given:
            if not line.startswith("#"):
                stage.do(line)
        blocks.append("\n".join([*given, "----", *(stage.lines or ["(nothing)"])]))
    return "\n\n".join(blocks) + "\n"
