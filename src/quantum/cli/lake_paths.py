"""Paths that are of no use are refused before a JVM starts, which takes seconds."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from quantum.cli.exits import Exit, fail

_WRITTEN: Final = {("simulate", "loads"): b"PAR1", ("report", "out"): b"<!doctype html>"}
"""What a command writes, and how such a file begins: nothing else is written over."""


def checked_paths(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command look at its paths first."""

    @functools.wraps(command)
    def checked(*arguments: Any, **options: Any) -> None:
        for name, path in options.items():
            if isinstance(path, Path):
                _check(command.__name__, name, path)
        command(*arguments, **options)

    checked.__signature__ = inspect.signature(command, eval_str=True)  # type: ignore[attr-defined]
    return checked


def _check(command: str, name: str, path: Path) -> None:
    is_written = name == "resume" or (command, name) in _WRITTEN
    try:
        if is_written:
            _try_file(path)
            _require_ours(name, path, _WRITTEN.get((command, name), b""))
        else:
            with path.open("rb"):
                pass
    except OSError as error:
        verb = "write" if is_written else "read"
        fail(f"--{name.replace('_', '-')}: cannot {verb} {path}: {error.strerror}", Exit.USAGE)


def _require_ours(name: str, path: Path, beginning: bytes) -> None:
    """Refuse to write over a file that is something else."""
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if not file.read(len(beginning)).startswith(beginning):
                fail(f"--{name}: {path} is there and is something else: name another", Exit.USAGE)


def _try_file(path: Path) -> None:
    """Make it, and take it away again if it was not there: only that shows that it can be made."""
    is_new = not path.exists()
    with path.open("ab"):
        pass
    if is_new:
        path.unlink()
