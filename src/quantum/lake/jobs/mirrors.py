"""Other formats' logs of the same files, by their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Final, TypeAlias

from quantum.lake.jobs.delta import mirror_to_delta
from quantum.lake.jobs.errors import PackageMissing
from quantum.lake.jobs.iceberg import mirror_to_iceberg
from quantum.lake.refusals import BadOption
from quantum.lake.table import Table

Mirror: TypeAlias = "Callable[[Table], int]"

_KNOWN: Final[dict[str, tuple[str, str, Mirror]]] = {
    "delta": ("deltalake", "Delta tables need the package deltalake", mirror_to_delta),
    "iceberg": ("pyiceberg", "Iceberg tables need the package pyiceberg", mirror_to_iceberg),
}


def mirrors_of(names: Sequence[str]) -> list[Mirror]:
    """Return what brings each format's log up to the table's own.

    Raises BadOption for a format that there is none of, and PackageMissing before anything is
    written rather than after the first commit.
    """
    found: list[Mirror] = []
    for name in dict.fromkeys(names):
        if name not in _KNOWN:
            raise BadOption(f"a format is one of {', '.join(_KNOWN)}", format=name)
        package, sentence, mirror = _KNOWN[name]
        if find_spec(package) is None:
            raise PackageMissing(sentence, extra=name)
        found.append(mirror)
    return found
