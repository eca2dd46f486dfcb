"""What the commands about an archive share: its address, its keys, and its errors in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from clustor.log.errors import KeyUnavailable
from clustor.log.keys import KeyRing
from quantum.archive import (
    ArchiveDamaged,
    ArchiveError,
    ArchiveFormatUnknown,
    ArchiveMissing,
    ArchiveMisuse,
    Objects,
    PrgId,
    archived_prgs,
)
from quantum.cli.exits import Exit, fail
from quantum.lake.archive.keys import DirectoryKeys
from quantum.lake.errors import WrongKey

Url = Annotated[
    str, typer.Argument(metavar="URL", help="s3://bucket/prefix, file:///path and the like.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one line per partition.")]

_BY_ERROR: Final[tuple[tuple[type[Exception], Exit], ...]] = (
    (ArchiveMisuse, Exit.USAGE),
    (ArchiveMissing, Exit.NOT_FOUND),
    (ArchiveFormatUnknown, Exit.UNSUPPORTED),
    (ArchiveDamaged, Exit.QUARANTINED),
    (KeyUnavailable, Exit.WRONG_KEY),
    (WrongKey, Exit.WRONG_KEY),
    (ArchiveError, Exit.UNREACHABLE),
)


def prgs_of(objects: Objects, url: str) -> list[PrgId]:
    found = archived_prgs(objects)
    if not found:
        fail(f"there is no archive at {url}", Exit.NOT_FOUND)
    return found


def ring_of(directory: Path, prg: PrgId) -> KeyRing:
    """Take a directory as it is, or as the lake's jobs have it: `directory:PATH`."""
    return DirectoryKeys(str(directory).removeprefix("directory:")).keyring(prg)


@contextmanager
def in_one_sentence() -> Iterator[None]:
    try:
        yield
    except (ArchiveError, KeyUnavailable, WrongKey) as error:
        fail(str(error), next(code for kind, code in _BY_ERROR if isinstance(error, kind)))
