"""Every command that takes a path, with paths that are of no use: one line and an exit code."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from typer.models import TyperPath

from quantum.cli import app
from tests.interop import ordinary_user

NOWHERE: Final = "127.0.0.1:1"
BAD: Final = {
    "a file": "FILE",
    "below a file": "FILE/x",
    "where nothing can be made": "/proc/nope",
}
"""`FILE` is one of the test's own, which must stay as it is: root could write to any other."""
WRITTEN: Final = frozenset({"--resume", "--out", "--loads", "target"})
"""Files that commands of `lake` write: one that is there already is none of the bad paths."""
ANSWERS: Final = {
    "--server": NOWHERE,
    "--cluster": NOWHERE,
    "--admin": NOWHERE,
    "--token": "1.x",
    "--port": "1",
    "url": "file:///proc/nope",
    "directories": "/proc/nope",
    "--table": "/proc/nope",
}


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Give every command, with its words."""

    def leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        for name, each in getattr(command, "commands", {}).items():
            yield from leaves(each, (*words, name))
        if not hasattr(command, "commands"):
            yield words, command

    yield from leaves(typer.main.get_command(app.build()), ())


def takes_path(parameter: Any) -> bool:
    return isinstance(parameter.type, TyperPath)


def line_of(words: tuple[str, ...], command: Any, tried: Any, path: str) -> list[str]:
    """Call the command with this path, and with what else it insists on."""
    line = list(words)
    given = [each for each in command.params if each.required or each is tried]
    for each in sorted(given, key=lambda each: each.param_type_name == "argument"):
        value = path if takes_path(each) else answer_for(each)
        line += [value] if each.param_type_name == "argument" else [each.opts[0], value]
    names = [option for each in command.params for option in each.opts]
    if "--admin" in names and "--admin" not in line:
        line += ["--admin", NOWHERE]
    if "--port" in names and "--port" not in line:
        line += ["--port", "1"]
    return line


def answer_for(parameter: Any) -> str:
    if parameter.opts[0] in ANSWERS:
        return ANSWERS[parameter.opts[0]]
    choices = getattr(parameter.type, "choices", None)
    if choices:
        return str(getattr(choices[0], "value", choices[0]))
    kind = parameter.type.name.partition(" ")[0]  # an `int range` is an `int`
    return {"int": "1", "bool": "true"}.get(kind, "x")


def case(words: tuple[str, ...], command: Any, parameter: Any, turn: str) -> Iterator[Any]:
    """A directory of data meets every bad path, other files one of them each, in turn."""
    name = parameter.opts[0]
    if words[0] == "lake" and name in WRITTEN and turn == "a file":
        turn = "below a file"
    for bad in BAD if name in ("--data", "directory") else (turn,):
        identity = f"{' '.join((*words, name))}: {bad}"
        yield pytest.param(words, command, parameter, BAD[bad], id=identity)


def cases() -> Iterator[Any]:
    seen: set[object] = set()
    turns = itertools.cycle(BAD)
    for words, command in commands():
        for parameter in command.params:
            name = parameter.opts[0]
            # The generated pages of `admin` share one way to read credentials: one stands for all.
            kind = ("admin", name) if words[0] == "admin" and name in CREDENTIALS else (words, name)
            if takes_path(parameter) and kind not in seen:
                seen.add(kind)
                yield from case(words, command, parameter, next(turns))


CREDENTIALS: Final = frozenset({"--cert", "--cert-key", "--ca"})


def run(
    line: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Run the command line here; anything but an exit code is what this test is about."""
    monkeypatch.setattr(sys, "argv", ["quantum", *line])
    with pytest.raises(SystemExit) as ended:
        app.main()
    said = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int), code
    return code, said.err


@pytest.mark.parametrize(("words", "command", "parameter", "bad"), list(cases()))
def test_a_bad_path_is_one_line(
    words: tuple[str, ...],
    command: Any,
    parameter: Any,
    bad: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path_factory.mktemp("bad") / "file"
    file.write_text("no data")
    monkeypatch.chdir(tmp_path)
    path = bad.replace("FILE", str(file))
    code, said = run(line_of(words, command, parameter, path), monkeypatch, capsys)
    lines = [line for line in said.splitlines() if line.strip()]
    assert code not in (0, 70), said
    assert len(lines) == 1 and lines[0].startswith("quantum: "), said
    assert list(tmp_path.iterdir()) == []
    assert file.read_text() == "no data"


@pytest.fixture(scope="module")
def unreadable() -> Iterator[Path]:
    """A directory that an ordinary user may not look into."""
    place = Path(tempfile.mkdtemp(prefix="quantum-closed-"))
    (place / "data").mkdir()
    place.chmod(0o700 if os.geteuid() == 0 else 0)
    yield place / "data"
    place.chmod(0o700)
    shutil.rmtree(place)


@pytest.mark.parametrize(
    "line",
    [
        ["up", "--data", "DIR"],
        ["cluster", "up", "--data", "DIR"],
        ["cert", "issue", "lamp", "--data", "DIR"],
        ["log", "verify", "DIR"],
        ["up", "--config", "DIR"],
    ],
    ids=" ".join,
)
def test_what_may_not_be_read_is_one_line(line: list[str], unreadable: Path) -> None:
    command = [str(unreadable) if word == "DIR" else word for word in line]
    launch = [sys.executable, ordinary_user.__file__, "{}", sys.executable, "-m", "quantum.cli"]
    ended = subprocess.run(
        [*launch, *command], capture_output=True, text=True, timeout=120, cwd="/"
    )
    if ended.returncode == ordinary_user.IMPOSSIBLE:
        pytest.skip(ended.stderr)
    assert ended.returncode not in (0, 1, 70), ended.stderr
    (said,) = ended.stderr.splitlines()
    assert said.startswith("quantum: ") and "ermission" in said, said


@pytest.mark.parametrize(
    "line",
    [["simulate", "--loads"], ["report", "--table", "/proc/nope", "--out"]],
    ids=["loads", "page"],
)
def test_a_file_that_is_something_else_is_not_written_over(
    line: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("my own words")
    code, said = run(["lake", *line, str(mine)], monkeypatch, capsys)
    assert (code, mine.read_text()) == (2, "my own words")
    assert "is there and is something else" in said
