"""The documentation names only what is there: files, tests and commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from quantum.cli.app import build
from quantum.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
BOOK = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/operations/*.md")]
PAGES = sorted([*ROOT.glob("*.md"), *BOOK, *ROOT.glob("src/**/README.md")])
_PATH = re.compile(r"`((?:src|tests|docs|bench|tools|requirements|deploy|examples)/[\w./*…-]+?)`")
_TEST = re.compile(r"`(tests/[\w./]+\.py)::(\w+)`")
_LINK = re.compile(r"\]\((?!https?:)([\w./-]+)(?:#[\w-]+)?\)")
_FILE = re.compile(r"<!-- file: (\S+) -->\n```\w*\n(.*?)```", re.DOTALL)
_COMMAND = re.compile(
    r"^(?:\w+=\S+ )*(?:\.venv/bin/)?quantum ((?:[a-z][a-z-]* ?)+)(.*)$", re.MULTILINE
)
_OPTION = re.compile(r"(?<!\S)--?[a-z][a-z-]*")
_QUOTED = re.compile(r"""'[^']*'|"[^"]*"|#.*""")


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
    """Every command of a shell block: its words, and the options that it is shown with."""
    lines = "\n".join(blocks(page.read_text()) for page in PAGES)
    plain = _QUOTED.sub("", lines)
    return sorted(
        {
            " ".join(found[0].split() + _OPTION.findall(found[1]))
            for found in _COMMAND.findall(plain)
        }
    )


@pytest.mark.parametrize("command", _commands())
def test_every_command_that_a_page_shows_is_one(command: str) -> None:
    """The first words are commands, and what they lead to has all the options."""
    words = [word for word in command.split() if not word.startswith("-")]
    assert words[0] in COMMANDS
    found: Any = get_command(build([words[0]]))
    for word in words:
        within = getattr(found, "commands", None)
        if within is None:
            break  # what follows are its arguments
        assert word in within
        found = within[word]
    known = {name for each in found.params for name in (*each.opts, *each.secondary_opts)}
    assert {word for word in command.split() if word.startswith("-")} <= known


def test_the_pages_show_commands() -> None:
    assert len(_commands()) >= 3


def test_every_page_has_its_place_in_the_book() -> None:
    """`make docs` checks links; that no page is forgotten, or named twice, needs no site."""
    named = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(str(page.relative_to(ROOT / "docs")) for page in BOOK)


def test_programs_in_pages_are_the_files_that_are_run() -> None:
    shown = [found for page in PAGES for found in _FILE.findall(page.read_text())]
    assert len(shown) >= 6
    assert [name for name, text in shown if (ROOT / name).read_text() != text] == []
