"""The words that the lake's commands share, in groups that a command takes as one parameter."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from quantum.cli.credentials import tell_children
from quantum.cli.exits import Exit, fail

TablePath = Annotated[
    str, typer.Option("--table", metavar="PATH", help="The table: a directory or a URL.")
]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep here what is done; after a stop the same command goes on behind it.",
    ),
]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Where logs are, and their keys."""

    cluster: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Admin addresses of a running cluster.")
    ] = None
    archive: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Its archive; alone, or behind what the cluster has."),
    ] = None
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="The directory of a stopped broker instead.")
    ] = None
    keys: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="Where keys come from: a path, directory, env:NAME or module:NAME."
        ),
    ] = "directory"
    broker: Annotated[
        str | None,
        typer.Option("--broker", metavar="DIR", help="A directory with the cluster's broker.json."),
    ] = None

    def where(self) -> str:
        return where_of(self.cluster, self.archive, self.data)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Who works, and what is said meanwhile."""

    master: Annotated[
        str,
        typer.Option(
            help="`inline` for this process, `auto` for that while there is little to read, or "
            "Spark's master, such as local[*]."
        ),
    ] = "auto"
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark; repeatable.")
    ] = None
    progress: Annotated[
        bool, typer.Option("--progress", help="Tell how far it is, also without a terminal.")
    ] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one line for each thing.")
    ] = False


@dataclass(frozen=True, slots=True)
class AgainOptions:
    """Once, or again and again."""

    once: Annotated[
        bool, typer.Option("--once", help="All that is there, then stop: the default.")
    ] = False
    every: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="Do it again and again, so long after the last time."
        ),
    ] = None


def where_of(cluster: str | None, archive: str | None, data: str | None) -> str:
    """Return what `open_source` takes."""
    if data is not None and cluster is None and archive is None:
        return data
    if data is not None or (cluster is None and archive is None):
        fail("say where the logs are: --cluster, --archive, both, or --data", Exit.USAGE)
    if archive is not None and "://" not in archive:
        archive = Path(archive).absolute().as_uri()
    if cluster is None:
        assert archive is not None
        return archive
    tell_children()
    return f"cluster:{cluster}" + (f"+{archive}" if archive else "")


def moment_of(at_ms: int | None, at: str | None) -> int | None:
    """Return a moment in milliseconds, however it was said."""
    if at is None:
        return at_ms
    try:
        found = datetime.fromisoformat(at)
    except ValueError:
        found = None
    if at_ms is not None or found is None or found.tzinfo is None:
        fail("say one moment, with its zone: 2026-11-15T20:00:00Z", Exit.USAGE)
    return int(found.timestamp() * 1000)
