"""The documentation names only what is there: files, tests and commands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/README.md")])
_PATH = re.compile(r"`((?:src|tests|docs|bench|tools|requirements)/[\w./*…-]+?)`")
_TEST = re.compile(r"`(tests/[\w./]+\.py)::(\w+)`")
_LINK = re.compile(r"\]\((?!https?:)([\w./-]+)(?:#[\w-]+)?\)")
_COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?quantum ((?:[a-z][a-z-]* ?)+)", re.MULTILINE)


def blocks(text: str) -> str:
    """The shell blocks of a page."""
    return "\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    missing = [path for path in _PATH.findall(text) if not list(ROOT.glob(path.rstrip("/…")))]
    missing += [link for link in _LINK.findall(text) if not (page.parent / link).exists()]
    for file, test in _TEST.findall(text):
        if f"def {test}(" not in (ROOT / file).read_text():
            missing.append(f"{file}::{test}")
    assert missing == []


def _commands() -> list[str]:
    found = {
        match.strip() for page in PAGES for match in _COMMAND.findall(blocks(page.read_text()))
    }
    return sorted(found)


@pytest.mark.parametrize("command", _commands())
def test_every_command_that_a_page_shows_is_one(command: str) -> None:
    done = subprocess.run(
        [str(ROOT / ".venv/bin/quantum"), *command.split(), "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_pages_show_commands() -> None:
    assert len(_commands()) >= 3
