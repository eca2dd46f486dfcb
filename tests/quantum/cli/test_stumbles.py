"""Issue 20: what a newcomer stumbled over, each seen by running the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = "import sys; sys.argv[0] = 'quantum'; from quantum.cli import main; main()"


def run(*arguments: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a shell would, in a place that may be gone by then."""
    place.mkdir(exist_ok=True)
    here = Path.cwd()
    os.chdir(place)
    try:
        if place.name == "gone":
            place.rmdir()
        return subprocess.run(
            [sys.executable, "-c", COMMAND, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    "arguments",
    [("up", "--data", ""), ("up", "--data="), ("cluster", "up", "--data", "", "--nodes", "3")],
    ids=str,
)
def test_an_unset_variable_does_not_make_a_broker_here(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = run(*arguments, place=tmp_path / "here")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "quantum: --data is empty: say a path, or leave it out\n"
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("up",), 3, "the directory that this was called in is gone; cd to one that is"),
        (("status", "--admin", "127.0.0.1:1"), 12, "cannot reach 127.0.0.1:1"),
        (("config", "explain", "nothing", "--admin", "127.0.0.1:1"), 3, "nobody sets nothing"),
    ],
    ids=str,
)
def test_a_directory_that_is_gone_is_no_traceback(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = run(*arguments, place=tmp_path / "gone")
    assert done.returncode == code, done.stderr
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_what_an_address_looks_like_is_the_one_that_a_broker_has(tmp_path: Path) -> None:
    done = run("status", "--admin", "nowhere", place=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "quantum: not an address like 127.0.0.1:9080: nowhere\n"


def test_ctrl_c_while_a_command_is_being_read_is_no_traceback(tmp_path: Path) -> None:
    """The command interrupts itself as soon as it begins to read its own modules."""
    code = (
        "import builtins, os, signal, sys\n"
        "real = builtins.__import__\n"
        "def reading(name, *rest, **more):\n"
        "    if name == 'typer':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *rest, **more)\n"
        "builtins.__import__ = reading\n"
        "sys.argv = ['quantum', 'spec']\n"
        "from quantum.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
