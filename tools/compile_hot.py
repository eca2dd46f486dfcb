"""Compile the hot modules in place with mypyc, or say why they stay plain Python.

Compiled code that is older than its source would be tested in its place, so a stamp holds
the digest of every input, and `tests/conftest.py` refuses a stale one.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAMP = ROOT / ".hot-stamp"


def hot_modules() -> list[str]:
    """Name the modules that pyproject.toml declares hot, as dotted paths."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    modules: list[str] = settings["tool"]["quantum"]["hot-modules"]
    return modules


def source_of(module: str) -> Path:
    return ROOT / "src" / (module.replace(".", "/") + ".py")


def digest() -> str:
    """Digest everything that decides what the compiled modules are."""
    hasher = hashlib.sha256(sys.version.encode())
    for module in hot_modules():
        hasher.update(module.encode() + b"\0" + source_of(module).read_bytes())
    return hasher.hexdigest()


def remove_compiled() -> None:
    for built in (ROOT / "src").rglob("*.so"):
        built.unlink()
    STAMP.unlink(missing_ok=True)


def compile_in_place(modules: list[str]) -> subprocess.CompletedProcess[str]:
    script = (
        "from setuptools import setup\n"
        "from mypyc.build import mypycify\n"
        f"setup(name='hot', packages=[], py_modules=[], package_dir={{'': 'src'}},\n"
        f"      ext_modules=mypycify({['src/' + m.replace('.', '/') + '.py' for m in modules]!r},"
        " opt_level='3', group_name='quantum_hot'))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script, "build_ext", "--inplace", "--build-temp", "build/hot"],
        cwd=ROOT,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def main() -> int:
    modules = hot_modules()
    if STAMP.exists() and STAMP.read_text() == digest():
        return 0
    remove_compiled()
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if not modules:
        return 0
    if shutil.which(compiler) is None and shutil.which("cc") is None:
        print("No C compiler: the hot modules run as plain Python.")
        return 0
    result = compile_in_place(modules)
    if result.returncode:
        remove_compiled()
        print(result.stdout + result.stderr, file=sys.stderr)
        print("mypyc could not compile the hot modules (see above).", file=sys.stderr)
        return 1
    STAMP.write_text(digest())
    print(f"Compiled {len(modules)} hot modules with mypyc.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
