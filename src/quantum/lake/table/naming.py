"""The names of data files. They say when a file can no longer become part of the table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from quantum.lake.table.types import FileKind, StreamName

_INGESTED: Final = re.compile(
    r"^(?:rows|dead|typed|state)-([^-]+)-(\d{16})-(\d{16})-[0-9a-f]{16,}\.[a-z]+$"
)
_REWRITTEN: Final = re.compile(r"^compact-(\d{20})-[0-9a-f]{16,}\.[a-z]+$")


@dataclass(frozen=True, slots=True)
class Ingested:
    """A file that holds offsets of a stream; it can be committed until others commit them."""

    stream: StreamName
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file that replaces others; it can be committed right after its base version only."""

    base: int


def ingested_name(
    kind: FileKind,
    stream: StreamName,
    first: int,
    last: int,
    token: str,
    *,
    suffix: str = "parquet",
) -> str:
    return f"{kind}-{escaped(stream)}-{first:016d}-{last:016d}-{token}.{suffix}"


def rewritten_name(base: int, token: str, *, suffix: str = "parquet") -> str:
    return f"compact-{base:020d}-{token}.{suffix}"


def parse_name(name: str) -> Ingested | Rewritten | None:
    """Read a data file's name; None for one that is not ours."""
    found = _INGESTED.match(name)
    if found:
        return Ingested(
            StreamName(unquote(found[1].replace("~", "%"))), int(found[2]), int(found[3])
        )
    found = _REWRITTEN.match(name)
    return Rewritten(int(found[1])) if found else None


def escaped(text: str) -> str:
    """Write any text with letters that no path, URI or pattern gives another meaning."""
    return (
        quote(text, safe="")
        .replace("~", "%7E")
        .replace("%", "~")
        .replace("-", "~2D")
        .replace(".", "~2E")
    )


def place_of(tenant: str, date: str, *, hidden: str = "") -> str:
    """Return the directory of a tenant's day, as Hive writes it; `hidden` keeps plain readers out.

    A tenant's id has letters, digits and hyphens only.
    """
    place = f"tenant={quote(tenant, safe='')}/date={date}"
    return f"{hidden}/{place}" if hidden else place
