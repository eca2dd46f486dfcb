"""Programs in other languages, built with libraries of a registry: only where that is wanted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
SECONDS: Final = 800
WANTED: Final = "QUANTUM_EXAMPLES"
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
Programs = Mapping[str, tuple[tuple[str, ...], list[str]]]
"""By language: the command that builds and runs it, and the steps that it says are done."""


@pytest.fixture(scope="module", autouse=True)
def builds() -> Iterator[bool]:
    """Say whether programs are built; a broker is not told: it would take it for a setting."""
    wanted = os.environ.get(WANTED) == "all"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(WANTED, raising=False)
        yield wanted


def skip_where_it_cannot_be_built(programs: Programs, language: str, *, builds: bool) -> None:
    if not builds:
        pytest.skip("it takes libraries of a registry: QUANTUM_EXAMPLES=all builds and runs it")
    program = programs[language][0][0]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def run_steps(
    programs: Programs,
    language: str,
    arguments: Sequence[str],
    tmp_path: Path,
    on_line: Callable[[str], None] = lambda _line: None,
) -> list[str]:
    """Build a program and let it run; return its lines, each of which was told as it came."""
    place = tmp_path / language
    shutil.copytree(HERE / language, place)
    if (place / "package.json").exists():
        install = ["npm", "install", "--no-audit", "--no-fund"]
        subprocess.run(install, cwd=place, capture_output=True, timeout=SECONDS, check=True)
    command = list(programs[language][0])
    is_maven = command[0] == "mvn"
    command += [f"-Dexec.args={' '.join(arguments)}"] if is_maven else arguments
    lines: list[str] = []
    with (place / "errors").open("w") as errors:
        process = subprocess.Popen(
            command, cwd=place, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        end = threading.Timer(SECONDS, process.kill)
        end.start()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                said = _COLOURS.sub("", line).strip()  # mvn paints whatever it is told
                if said:
                    lines.append(said)
                    on_line(said)
            code = process.wait()
        finally:
            end.cancel()
            process.kill()
            process.wait()
            process.stdout.close()
    assert code == 0, "\n".join(lines) + (place / "errors").read_text()
    return lines
