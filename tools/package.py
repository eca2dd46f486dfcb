"""Build the wheels into `dist/`: one with the hot modules compiled, one that runs everywhere.

Both are of one version: an installer takes the compiled one where it fits the machine. Each is
built from a copy of the sources, so that nothing of a work tree gets in by accident.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools.compile_hot import hot_modules

ROOT = Path(__file__).resolve().parent.parent
STAGES = ROOT / "build" / "package"
DIST = ROOT / "dist"
COMMIT_FILE = Path("src", "clustor", "commit.txt")

SETUP = """\
from mypyc.build import mypycify
from setuptools import setup

setup(ext_modules=mypycify({modules!r}, opt_level="3", group_name="quantum_hot"))
"""


def commit() -> str:
    """Return the commit that is built, with `+` where the tree differs from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--match", ""],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def stage(name: str) -> Path:
    """Copy what a wheel is made of."""
    place = STAGES / name
    shutil.rmtree(place, ignore_errors=True)
    left_out = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", "*.c", "build")
    shutil.copytree(ROOT / "src", place / "src", ignore=left_out)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, place / file)
    (place / COMMIT_FILE).write_text(commit() + "\n")
    return place


def build(place: Path) -> None:
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "-w", str(DIST), str(place)],
        check=True,
    )


def main() -> int:
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("quantum_mq-*.whl"):
        old.unlink()
    build(stage("pure"))
    if shutil.which("cc") is None:
        print("No C compiler: there is only the wheel of plain Python.")
    else:
        place = stage("compiled")
        sources = [f"src/{module.replace('.', '/')}.py" for module in hot_modules()]
        (place / "setup.py").write_text(SETUP.format(modules=sources))
        build(place)
    for made in sorted(DIST.glob("quantum_mq-*.whl")):
        print(f"{made.relative_to(ROOT)}  {made.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
