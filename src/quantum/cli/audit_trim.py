"""`quantum audit trim`: files that are past their time, and in the archive where there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clustor.runtime.audit.writer import AUDIT_DIRECTORY
from clustor.runtime.data_directory import sync_directory
from clustor.runtime.disk import DirectoryStorage
from clustor.security import RETAINED_DAYS_MIN, SecurityError, file_name, plan_trim
from clustor.wall_clock import wall_clock_ms
from quantum.archive import ArchiveError, read_mark
from quantum.cli.exits import Exit, fail

_DAY_MS = 86_400_000


def trim(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="The log's directory, or a node's data directory."),
    ],
    *,
    days: Annotated[
        int, typer.Option(min=RETAINED_DAYS_MIN, help="Remove files older than so many days.")
    ] = RETAINED_DAYS_MIN,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Remove the oldest files of an audit log, whole ones, oldest first; also while its node runs.

    Where the node exports its log to an archive, no file goes before all of its lines are there.
    `verify` needs --expired afterwards. Exit codes: 0 done, 3 no log here, 6 not what was written.
    """
    below = path / AUDIT_DIRECTORY
    directory = below if below.is_dir() else path
    if not directory.is_dir():
        fail(f"no audit log in {path}", Exit.NOT_FOUND)
    storage = DirectoryStorage(directory)
    try:
        mark = read_mark(directory)
        exported = None if mark is None else mark.through
        before_ms = wall_clock_ms() - days * _DAY_MS
        going = plan_trim(storage, before_ms=before_ms, exported=exported)
    except (SecurityError, ArchiveError) as error:
        fail(str(error), Exit.QUARANTINED)
    finally:
        storage.close()
    for number in [] if dry_run else going:
        (directory / file_name(number)).unlink()
        sync_directory(directory)  # one by one: a crash leaves no hole
    _tell(going, exported, dry_run=dry_run, as_json=as_json)


def _tell(going: list[int], exported: int | None, *, dry_run: bool, as_json: bool) -> None:
    names = [file_name(number) for number in going]
    if as_json:
        report = {"files": names, "removed": not dry_run, "exported_sequence": exported}
        typer.echo(json.dumps(report))
        return
    word = "would go" if dry_run else "removed"
    typer.echo(f"{len(names)} files {word}" + "".join(f"\n  {name}" for name in names))
