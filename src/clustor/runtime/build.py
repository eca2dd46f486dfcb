"""What runs here: its version, its commit, its Python, and whether its hot modules are compiled."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

COMMIT_VARIABLE: Final = "QUANTUM_GIT_SHA"
"""Where a build without its repository (a container, a package) is told its commit."""
PACKAGED_FILE: Final = "clustor/commit.txt"
_UNKNOWN: Final = "unknown"
_DISTRIBUTION: Final = "quantum-mq"
_SHORT: Final = 12
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True, slots=True)
class Build:
    """Facts about this installation; none of them changes while it runs."""

    version: str
    commit: str
    python: str
    compiled: bool

    @property
    def how(self) -> str:
        return "compiled" if self.compiled else "plain"

    def __str__(self) -> str:
        commit = self.commit[:_SHORT]
        return f"{self.version} (commit {commit}, Python {self.python}, {self.how})"

    @property
    def label(self) -> str:
        """The same in one word, for reports and metrics."""
        return f"{self.version}+{self.commit[:_SHORT]}.python{self.python}.{self.how}"


@functools.cache
def build() -> Build:
    """Look once."""
    root = Path(__file__).resolve().parents[2]
    return Build(
        version=_version(),
        commit=os.environ.get(COMMIT_VARIABLE) or packaged(root) or commit_of(root.parent),
        python=platform.python_version(),
        compiled=any(root.glob("quantum_hot__mypyc*.so")),
    )


def _version() -> str:
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
        return "0+source"


def packaged(root: Path) -> str:
    """Return the commit that a wheel was built from; empty: this is a source tree."""
    try:
        return (root / PACKAGED_FILE).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def commit_of(tree: Path) -> str:
    """Return the commit of a source tree, without asking git; `unknown` where nobody can say."""
    try:
        return next(_commits(tree), _UNKNOWN)
    except OSError:
        return _UNKNOWN


def _commits(tree: Path) -> Iterator[str]:
    directory = tree / ".git"
    if directory.is_file():  # a second work tree of a repository elsewhere
        directory = tree / directory.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
    head = (directory / "HEAD").read_text(encoding="utf-8").strip()
    if _COMMIT.fullmatch(head):
        yield head
    name = head.removeprefix("ref:").strip()
    shared = directory / "commondir"
    homes = [directory]
    if shared.is_file():
        homes.append(directory / shared.read_text(encoding="utf-8").strip())
    for home in homes:
        if (home / name).is_file():
            yield (home / name).read_text(encoding="utf-8").strip()
        packed = home / "packed-refs"
        for line in packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else ():
            if line.endswith(f" {name}"):
                yield line.split()[0]
