"""The command as such: quick to help, sure of its own name, and able to say what it is."""

from __future__ import annotations

import gc
import inspect
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from clustor.runtime.build import build, commit_of
from quantum.cli import main, naming
from quantum.cli.app import _pasteable_command, build_list
from quantum.cli.app import build as build_tree
from quantum.cli.commands import COMMANDS, GROUPS, overview
from slipstream.cli import app as slipstream_app

HEAVY = ("cryptography", "numpy", "pyspark", "uvloop", "pyarrow", "clustor.raft", "clustor.log")
COUNTED = """
import json, sys
sys.argv = ["quantum", *json.loads(sys.argv[1])]
from quantum.cli import main
try:
    main()
except SystemExit:
    pass
print("modules", json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def imported_by(*arguments: str) -> set[str]:
    """Run the command in a process of its own, and return what it has imported."""
    ended = subprocess.run(
        [sys.executable, "-c", COUNTED, json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return set(json.loads(ended.stderr.splitlines()[-1].removeprefix("modules ")))


@pytest.mark.parametrize(
    ("arguments", "modules_max"),
    {
        "help": (["--help"], 120),
        "version": (["--version"], 200),
        "a status that nobody answers": (["status", "--admin", "127.0.0.1:1"], 420),
        "a publish that nobody takes": (["pub", "hello", "x", "--port", "1"], 480),
    }.values(),
)
def test_what_is_quick_imports_little(arguments: list[str], modules_max: int) -> None:
    """Modules are counted, not seconds: a machine may be slow, an import is one everywhere."""
    found = imported_by(*arguments)
    heavy = [name for name in HEAVY if name in found]
    assert not heavy
    assert len(found) <= modules_max, len(found)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_it_says_of_itself(name: str) -> None:
    module, attribute, summary = COMMANDS[name]
    found = getattr(import_module(f"quantum.cli.{module}"), attribute)
    text = found.info.help if isinstance(found, typer.Typer) else inspect.getdoc(found)
    assert text is not None and summary == text.split("\n\n")[0].replace("\n", " ")


def test_the_list_names_every_command_once() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(COMMANDS)
    shown = overview("quantum")
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert all(title in shown for title in GROUPS)


@pytest.mark.parametrize("columns", [20, 80, 300])
def test_the_list_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    longest = max(map(len, overview("quantum").splitlines()))
    assert longest <= max(columns, 70) and longest <= 100


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["-h"], 0), (["--help"], 0)], ids=["none", "-h", "--help"]
)
def test_the_list_is_shown_to_who_asks_and_to_who_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
) -> None:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "argv", ["quantum", *arguments])
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == code
    assert "Be a client:" in capsys.readouterr().out


@pytest.mark.parametrize("app", [build_list(), slipstream_app])
def test_the_version_tells_commit_python_and_how_it_was_built(app: typer.Typer) -> None:
    said = CliRunner().invoke(app, ["--version"])
    assert said.exit_code == 0
    found = build()
    assert found.version in said.output and found.commit[:12] in said.output
    assert f"Python {found.python}" in said.output
    assert ("compiled" if found.compiled else "plain") in said.output


def test_a_commit_is_found_in_every_kind_of_tree(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@x", "-C", str(tmp_path / "tree"))
        done = subprocess.run(
            ["git", *who, *arguments], capture_output=True, text=True, check=True, timeout=300
        )
        return done.stdout.strip()

    (tmp_path / "tree").mkdir()
    assert commit_of(tmp_path / "tree") == "unknown"
    git("init", "--quiet")
    assert commit_of(tmp_path / "tree") == "unknown"  # nothing is committed yet
    git("commit", "--quiet", "--allow-empty", "--message", "first")
    head = git("rev-parse", "HEAD")
    assert commit_of(tmp_path / "tree") == head
    git("worktree", "add", "--quiet", "../other")
    assert commit_of(tmp_path / "other") == head
    git("pack-refs", "--all")
    assert commit_of(tmp_path / "tree") == commit_of(tmp_path / "other") == head
    git("checkout", "--quiet", "--detach")
    assert commit_of(tmp_path / "tree") == head


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script of our own, in a tree of its own, that was called by its path."""
    script = tmp_path / "tree" / ".venv" / "bin" / "quantum"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path / "tree")
    naming.own_command.cache_clear()
    return script


@pytest.fixture(autouse=True)
def _forgets_its_name() -> None:
    naming.own_command.cache_clear()


def test_off_the_path_the_shorter_path_is_printed(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert naming.own_command() == ".venv/bin/quantum"
    assert naming.pasteable("see `quantum why X`") == "see `.venv/bin/quantum why X`"
    naming.own_command.cache_clear()
    monkeypatch.chdir("/usr/lib")
    assert naming.own_command() in (str(installed), f"../..{installed}")
    naming.own_command.cache_clear()
    monkeypatch.chdir(installed.parent)
    assert naming.own_command() == "./quantum"


def test_on_the_path_the_name_is_enough(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "quantum").symlink_to(installed)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert naming.own_command() == "quantum"


def test_another_installation_on_the_path_is_not_ours(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    other = tmp_path / "bin" / "quantum"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert naming.own_command() == ".venv/bin/quantum"


def test_make_install_puts_the_command_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    prefix = tmp_path / "prefix"
    made = subprocess.run(
        ["make", "-o", "setup", "install", f"PREFIX={prefix}"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert f'export PATH="{prefix}/bin:$PATH"' in made.stdout
    script = Path(sys.executable).with_name("quantum")
    if not script.exists():
        pytest.skip("this Python has no installed command")
    monkeypatch.setenv("PATH", f"{prefix}/bin")
    said = subprocess.run(
        ["quantum", "--version"], capture_output=True, text=True, check=True, timeout=300
    )
    assert said.stdout == f"quantum {build()}\n"


def test_a_path_with_spaces_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "my tree" / "quantum"
    script.parent.mkdir()
    script.write_text("")
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    naming.own_command.cache_clear()
    assert naming.own_command() == "'my tree/quantum'"


def test_the_help_of_options_can_be_pasted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 20, 2: what an option's help names is what works here."""
    monkeypatch.setattr(naming, "own_command", lambda: "bin/quantum")
    command = _pasteable_command(build_tree(["up", "config"]))
    waiting, told = [command], []
    while waiting:
        each = waiting.pop()
        waiting += getattr(each, "commands", {}).values()
        told += [parameter.help for parameter in each.params if getattr(parameter, "help", None)]
    assert not [text for text in told if "`quantum " in text]
    assert any("`bin/quantum status`" in text for text in told)


def test_the_collector_rests_only_while_modules_are_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(sys, "argv", ["quantum", "spec"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # Ctrl-C stays what it is here

    def made(_tree: typer.Typer) -> Callable[[], None]:
        seen.append(gc.isenabled())
        return lambda: seen.append(gc.isenabled())

    monkeypatch.setattr("quantum.cli.app._pasteable_command", made)
    main()
    assert seen == [False, True]
