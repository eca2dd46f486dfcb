"""Cases that nobody here wrote: blocks of `command`, `----`, expected text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Case:
    """One block of a data-driven file; `facts` are the command's `name=value` pairs."""

    place: str
    command: str
    facts: dict[str, str]
    body: list[str]
    expected: str


def suite_files(name: str) -> list[Path]:
    """Find the files of a suite, or skip the module that needs them."""
    folder = _suites() / "raft" / name
    if not folder.is_dir():
        pytest.skip(
            f"no suites at {folder}; QUANTUM_SUITES names the folder", allow_module_level=True
        )
    return sorted(folder.glob("*.txt"))


def _suites() -> Path:
    if named := os.environ.get("QUANTUM_SUITES"):
        return Path(named)
    for parent in Path(__file__).resolve().parents:
        if (parent / "shared" / "suites").is_dir():
            return parent / "shared" / "suites"
    return Path("../shared/suites")


def read_cases(path: Path) -> Iterator[Case]:
    """Split a file into its cases; a blank line ends one, `#` begins a remark."""
    blocks = re.split(r"\n\s*\n", path.read_text())
    for block in blocks:
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if "----" not in lines:
            continue
        at = lines.index("----")
        head = [line for line in lines[:at] if line]
        command, facts = _command(head[0])
        place = f"{path.stem}: {' / '.join(head)}"
        yield Case(place, command, facts, head[1:], "\n".join(lines[at + 1 :]))


def _command(line: str) -> tuple[str, dict[str, str]]:
    name, _, rest = line.partition(" ")
    facts = dict(re.findall(r"(\w+)=(\([^)]*\)|\S+)", rest))
    return name, facts


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
