"""Who does a job where nobody says: this process while there is little to read, Spark otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clustor.runtime.audit.writer import AUDIT_DIRECTORY
from quantum.archive.types import PrgId
from quantum.lake.archive import LogSource
from quantum.lake.archive.falling_through import FallThroughSource
from quantum.lake.feed.client import ClusterSource
from quantum.lake.jobs.reading import table_state
from quantum.lake.jobs.sources import SettledSource
from quantum.lake.table import FileKind, NoTable, TableStore

AUTO: Final = "auto"
INLINE: Final = "inline"
INLINE_BYTES_MAX: Final = 64 << 20
"""One process reads that much in about the time in which Spark comes up."""
SESSION_BYTES: Final = 16
"""What one session of a simulated fleet counts as."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Who works: this process where `is_inline`, else Spark with `master`; and why, if we chose."""

    is_inline: bool
    master: str | None = None
    sentence: str = ""


def choose(
    master: str, size_bytes: int | None, *, is_remote: bool = False, is_set: bool = False
) -> Choice:
    """Take the master that was said, or choose by size. Pure.

    `size_bytes` is None where it is not known yet. Who named a server (`is_remote`) or gave Spark
    settings (`is_set`) wants Spark.
    """
    if master != AUTO:
        return Choice(master == INLINE, None if master == INLINE else master)
    if is_remote or is_set:
        return Choice(is_inline=False)
    if size_bytes is None:
        return Choice(is_inline=False, sentence="how much there is to read is not known: by Spark")
    much = f"{size_bytes / (1 << 20):,.1f} MiB to read"
    if size_bytes <= INLINE_BYTES_MAX:
        sentence = f"{much}: in this process (--master local[*] would use Spark)"
        return Choice(is_inline=True, sentence=sentence)
    return Choice(is_inline=False, sentence=f"{much}: by Spark (--master inline would do without)")


def log_bytes(source: LogSource, through: Mapping[PrgId, int] | None = None) -> int:
    """Say about how much there is to read behind `through`. Raises LakeError."""
    through = through or {}
    match source:
        case SettledSource():
            return log_bytes(source.below, through)
        case FallThroughSource():
            return log_bytes(source.live, through) + log_bytes(source.archive, through)
        case ClusterSource():
            return source.bytes_behind(through)
    pieces = [(prg, piece) for prg in source.prgs() for piece in source.bounds(prg).pieces]
    return sum(piece.bytes for prg, piece in pieces if piece.last > through.get(prg, 0))


def table_bytes(table: str | TableStore) -> int:
    """Say how large the rows of a table are. Raises NoTable."""
    _, state = table_state(table)
    return sum(file.bytes for file in state.of_kind(FileKind.ROWS))


def offsets_of(table: str | TableStore) -> dict[PrgId, int]:
    """Say how far a table is; a table that is not there yet has nothing."""
    try:
        _, state = table_state(table)
    except NoTable:
        return {}
    return {PrgId.parse(name): each.last for name, each in state.ranges.items()}


def audit_bytes(directories: Sequence[str]) -> int:
    """Say how large audit logs are, in their own directories or in nodes'."""
    files = (
        file
        for each in directories
        for folder in (Path(each), Path(each) / AUDIT_DIRECTORY)
        for file in folder.glob("*")
        if file.is_file()
    )
    return sum(file.stat().st_size for file in files)
