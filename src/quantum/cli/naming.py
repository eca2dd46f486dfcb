"""What a person must type to call this very command: examples are there to be pasted."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

_EXAMPLE: Final = re.compile(r"(?<=`)quantum(?= [a-z])")


@functools.cache
def own_command(name: str = "quantum") -> str:
    """Return the bare name where the shell finds this installation by it, else its path."""
    own = _own_path(name)
    found = shutil.which(name)
    if found is not None and Path(found).resolve() == own.resolve():
        return name
    if not own.exists():
        return f"{shlex.quote(sys.executable)} -m {name}.cli"
    try:
        relative = os.path.relpath(own)
    except FileNotFoundError:  # the directory that it was called in is gone
        return shlex.quote(str(own))
    if os.sep not in relative:
        relative = f"{os.curdir}{os.sep}{relative}"
    return shlex.quote(min(relative, str(own), key=len))


def _own_path(name: str) -> Path:
    """Return where the script of this installation is, whether or not it was what was called."""
    called = Path(sys.argv[0])
    if called.name == name and called.is_absolute() and called.is_file():
        return called
    if called.name == name and called.is_file():
        return called.absolute()
    return Path(sys.executable).with_name(name)


def pasteable(text: str) -> str:
    """Let the examples in a text (`quantum …`, between backticks) name what works here."""
    return _EXAMPLE.sub(lambda _: own_command(), text)
