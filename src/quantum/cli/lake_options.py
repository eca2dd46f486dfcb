"""The words that the lake's commands share."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from quantum.cli.credentials import tell_children
from quantum.cli.exits import Exit, fail

Cluster = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Admin addresses of a running cluster.")
]
Archive = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Its archive; alone, or behind what the cluster has."),
]
Data = Annotated[
    str | None, typer.Option(metavar="DIR", help="The directory of a stopped broker instead.")
]
TablePath = Annotated[
    str, typer.Option("--table", metavar="PATH", help="The table: a directory or a URL.")
]
Keys = Annotated[
    str,
    typer.Option(help="Where keys come from: directory[:PATH], env:NAME or module:NAME."),
]
BrokerDirectory = Annotated[
    str | None,
    typer.Option("--broker", metavar="DIR", help="A directory with the cluster's broker.json."),
]
Once = Annotated[bool, typer.Option("--once", help="All that is there, then stop: the default.")]
Every = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="SECONDS", help="Do it again and again, so long after the last time."
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep here what is done; after a stop the same command goes on behind it.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(help="Spark's master, or `inline` for this process; default: all cores here."),
]
Conf = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark; repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one line for each thing.")]


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
