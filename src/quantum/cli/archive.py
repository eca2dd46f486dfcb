"""`quantum archive`: how far the archive is, and whether it is what it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table

from quantum.archive import (
    ArchiveDamaged,
    ArchiveFindingKind,
    ArchiveFormatUnknown,
    ArchiveMissing,
    Listing,
    Objects,
    PrgId,
    Verified,
    open_objects,
    read_listing,
    verify_prg,
)
from quantum.archive.chain import read_record
from quantum.cli.admin_client import AdminUnreachable, fail_unreachable, fetch, parse_address
from quantum.cli.archive_opening import AsJson, Url, in_one_sentence, prgs_of, ring_of
from quantum.cli.archive_retain import retain
from quantum.cli.consoles import errors
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail

app = typer.Typer(
    help="Look at an archive of closed segments and snapshots; let go of the oldest.",
    no_args_is_help=True,
)
app.command()(retain)

Keys = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="A directory with the key ring; default: nothing is decrypted."
    ),
]

_TROUBLE: Final = ("stopped", "retrying")
_BY_KIND: Final = {
    ArchiveFindingKind.MISSING: Exit.NOT_FOUND,
    ArchiveFindingKind.WRONG_KEY: Exit.WRONG_KEY,
    ArchiveFindingKind.ALTERED: Exit.QUARANTINED,
    ArchiveFindingKind.UNKNOWN_FORMAT: Exit.UNSUPPORTED,
}


@app.command()
@speaking
def status(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="An archive; default: ask the broker.")
    ] = None,
    admin: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", envvar="QUANTUM_ADMIN", help="The broker to ask."),
    ] = "127.0.0.1:9080",
    *,
    as_json: AsJson = False,
) -> None:
    """Show what an archive holds, or, without URL, what a broker's archiver is doing.

    Exit code 0: all is well. 1: the archiver of a partition or of the audit log has stopped or
    fails. 2: not a URL. 3: no archive here. 6: the chain of records is broken. 7: written by a
    later release. 12: the store or the broker does not answer.
    """
    if url is None:
        _show_archiver(admin, as_json=as_json)
    with in_one_sentence():
        objects = open_objects(str(url))
        rows = [_listed(objects, prg) for prg in prgs_of(objects, str(url))]
    columns = ("prg", "first", "last", "segments", "snapshots", "gaps", "bytes", "written")
    _show("Archive", columns, rows, as_json=as_json)
    raise typer.Exit(0)


def _show_archiver(admin: str, *, as_json: bool) -> None:
    try:
        code, answer = fetch(parse_address(admin), "/v1/archive")
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except AdminUnreachable as error:
        fail_unreachable(error)
    if code == 404:
        fail("this broker has no archive; start it with --archive URL", Exit.NOT_FOUND)
    if code != 200:
        fail(str(answer.get("message", code)), Exit.FAILED)
    rows: list[dict[str, Any]] = answer["partitions"]
    columns = ("prg", "state", "archived_index", "behind", "archived_bytes")
    _show(f"Archiving to {answer['archive']}", columns, rows, as_json=as_json)
    for row in [] if as_json else rows:
        for why in (row["reason"], row["compaction_hold"]):
            if why:
                typer.echo(f"{row['prg']}: {why}")
    states = [row["state"] for row in rows]
    audit = answer.get("audit")
    if audit is not None:
        states.append(audit["state"])
        typer.echo(_about_audit(audit), err=as_json)  # JSON is one line per partition
    raise typer.Exit(Exit.FAILED if any(state in _TROUBLE for state in states) else 0)


def _about_audit(audit: dict[str, Any]) -> str:
    through, why = audit["exported_sequence"], audit["reason"]
    return f"audit log: {audit['state']}, lines through {through}" + (f": {why}" if why else "")


def _listed(objects: Objects, prg: PrgId) -> dict[str, Any]:
    listing = read_listing(objects, prg, None)
    record, _ = read_record(objects, prg, listing.seq)
    written = datetime.fromtimestamp(record.written_at_ms / 1000, UTC)
    return _row(listing) | {"written": written.isoformat(timespec="seconds")}


def _row(listing: Listing) -> dict[str, Any]:
    return {
        "prg": str(listing.prg),
        "first": listing.first,
        "last": listing.last,
        "segments": len(listing.segments),
        "snapshots": len(listing.snapshots),
        "gaps": len(listing.gaps),
        "bytes": listing.bytes,
    }


@app.command()
def verify(url: Url, keys: Keys = None, *, as_json: AsJson = False) -> None:
    """Read everything in an archive again: the chain, every object's digest and, with keys, every
    block of every entry.

    Exit code 0: everything that is listed is there, and is what was written. 3: an object is
    missing, or there is no archive. 4: wrong key. 6: something was altered. 7: written by a later
    release. 12: the store does not answer. What no record lists, and gaps, are told and harmless.
    """
    with in_one_sentence():
        objects = open_objects(url)
        prgs = prgs_of(objects, url)
        rings = {prg: None if keys is None else ring_of(keys, prg) for prg in prgs}
        total = sum(_bytes(objects, prg) for prg in prgs)
        with _progress(total, hidden=as_json) as advance:
            found = [verify_prg(objects, prg, rings[prg], advance) for prg in prgs]
    for verified in found:
        _print_verdict(verified, as_json=as_json, decrypted=keys is not None)
    codes = [
        int(_BY_KIND[each.kind])
        for verified in found
        for each in verified.findings
        if each.kind in _BY_KIND
    ]
    raise typer.Exit(max(codes, default=0))


def _bytes(objects: Objects, prg: PrgId) -> int:
    """Say how much there is to read; a broken chain is told by what reads it again."""
    try:
        return read_listing(objects, prg, None).bytes
    except (ArchiveDamaged, ArchiveFormatUnknown, ArchiveMissing):
        return 0


def _print_verdict(verified: Verified, *, as_json: bool, decrypted: bool) -> None:
    row = _row(verified.listing) | {"sound": verified.sound, "entries_read": verified.entries}
    if as_json:
        findings = [
            {"kind": each.kind, "object": each.object, "index": each.index, "detail": each.detail}
            for each in verified.findings
        ]
        typer.echo(json.dumps(row | {"findings": findings}))
        return
    verdict = "sound" if verified.sound else "NOT SOUND"
    read = f"{verified.entries} entries decrypted" if decrypted else "nothing decrypted: no --keys"
    typer.echo(
        f"{row['prg']}: {verdict}: entries {row['first']} to {row['last']} in {row['segments']} "
        f"segments, {row['snapshots']} snapshots; {read}"
    )
    for each in verified.findings:
        where = "" if each.index is None else f" at index {each.index}"
        typer.echo(f"{row['prg']}: {each.kind}{where}: {each.object} {each.detail}")


def _show(
    title: str, columns: tuple[str, ...], rows: list[dict[str, Any]], *, as_json: bool
) -> None:
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    table = Table(title=title)
    for column in columns:
        is_number = bool(rows) and isinstance(rows[0][column], int)
        table.add_column(column.replace("_", " "), justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    Console().print(table)


@contextmanager
def _progress(total: int, *, hidden: bool) -> Iterator[Callable[[int], None]]:
    bars = Progress(
        "{task.description}",
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=hidden or not errors.is_terminal,
    )
    with bars:
        task = bars.add_task("reading", total=total)
        yield lambda size: bars.advance(task, size)
