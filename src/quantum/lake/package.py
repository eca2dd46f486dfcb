"""One zip of the packages that workers need, for `--py-files` (`quantum lake package`).

Made of the sources that are running: workers and driver agree on every format. Compiled modules are
left out, because a zip cannot be imported from with them; the same sources run without.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

PACKAGES: Final = ("clustor", "slipstream", "quantum")
_SUFFIXES: Final = frozenset({".py", ".typed", ".json"})
_STAMP: Final = (1980, 1, 1, 0, 0, 0)  # equal sources give equal bytes


def build_package(target: Path) -> Path:
    """Write the zip. It appears whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in _files():
            archive.writestr(zipfile.ZipInfo(name, _STAMP), path.read_bytes())
    partial.replace(target)
    return target


def _files() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        root = Path(str(import_module(package).__file__)).parent
        for path in sorted(root.rglob("*")):
            if path.suffix in _SUFFIXES and path.is_file():
                yield str(path.relative_to(root.parent)), path
