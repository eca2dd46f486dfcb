"""`quantum audit`: is the log what was written, and what does it say?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress

from clustor.log.errors import KeyUnavailable
from clustor.runtime.audit.keys import AUDIT_KEYS_FILE, load_trusted
from clustor.runtime.audit.writer import AUDIT_DIRECTORY
from clustor.runtime.disk import DirectoryStorage
from clustor.runtime.keys.store import KEYS_DIRECTORY
from clustor.security import (
    AuditReader,
    AuditUnreadable,
    ChainFault,
    ChainFaultKind,
    ChainVerdict,
    EventLine,
    TrustedKeys,
    decode_line,
    file_numbers,
    read_anchor,
    verify_lines,
)
from quantum.cli.audit_archived import is_url, lines_of, verify_archived
from quantum.cli.audit_trim import trim
from quantum.cli.exits import Exit, exit_of_fault, fail

app = typer.Typer(help="Verify and read a node's audit log.", no_args_is_help=True)
app.command()(trim)

_PROGRESS_BYTES: Final = 8 << 20

Log = Annotated[
    str,
    typer.Argument(
        metavar="PATH|URL",
        help="The log's directory, a node's data directory, or an archive: s3://bucket/prefix.",
    ),
]


@app.command()
def verify(
    place: Log,
    *,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys",
            help="Public keys to trust: an audit-keys.json; for an archive also the data directory "
            "of a node or of its cluster.",
        ),
    ] = None,
    expect_head: Annotated[
        str | None,
        typer.Option("--expect-head", metavar="DIGEST", help="A line's digest, kept elsewhere."),
    ] = None,
    require_signed: Annotated[
        bool, typer.Option("--require-signed", help="Refuse lines that no seal covers yet.")
    ] = False,
    expired: Annotated[
        bool, typer.Option("--expired", help="The oldest files were removed after their time.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find a line that was altered, dropped, moved or cut off, or signed by a wrong key.

    Lines behind the last seal are chained, not signed; their number is shown. A log that was put
    back to an older state together with its anchor is found by --expect-head alone: keep the head
    that this command prints on another machine. Of an archive every node's log is verified; it
    must hold all that a data directory given with --keys remembers to have exported. Exit codes: 0
    intact, 1 unsigned lines with --require-signed, 3 no log here, 4 a wrong key, 6 not what was
    written, 12 the archive does not answer.
    """
    if is_url(place):
        verify_archived(place, keys, expect_head=expect_head, expired=expired, as_json=as_json)
    path = Path(place)
    with _opened(path) as storage:
        trusted = _trusted(keys, path)
        try:
            anchor = read_anchor(storage)  # before the lines: the log may be growing
        except AuditUnreadable as error:
            _end_without_anchor(error, as_json=as_json)
        reader = AuditReader(storage)
        with _progress(reader) as lines:
            verdict = verify_lines(
                lines,
                trusted,
                anchor=anchor,
                expect_head=expect_head,
                from_start=not expired,
                require_signed=require_signed,
            )
        if verdict.fault is None and reader.changed_leftovers:
            detail = "what a crash left behind the last line was changed since"
            verdict.fault = ChainFault(ChainFaultKind.ALTERED, verdict.lines, detail)
        report = _report(verdict, reader)
    typer.echo(json.dumps(report) if as_json else _as_text(report))
    if verdict.fault is not None:
        raise typer.Exit(exit_of_fault(verdict.fault))


@app.command()
def show(
    place: Log,
    *,
    who: Annotated[str, typer.Option(help="Only identities that contain this.")] = "",
    what: Annotated[str, typer.Option(help="Only actions that contain this.")] = "",
    tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "",
    outcome: Annotated[str, typer.Option(help="Only outcomes that contain this.")] = "",
    since: Annotated[datetime | None, typer.Option(help="Only from this moment (UTC) on.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 1_000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Print events. Nothing is verified here: that is what `verify` is for."""
    since_ms = 0 if since is None else int(since.replace(tzinfo=UTC).timestamp() * 1000)
    found: list[EventLine] = []
    with _lines(place) as lines:
        for raw in lines:
            line = decode_line(raw)
            if (
                isinstance(line, EventLine)
                and line.at_ms >= since_ms
                and who in line.who
                and what in line.what
                and outcome in line.outcome
                and tenant in ("", line.tenant)
            ):
                found.append(line)
                if len(found) > 2 * limit:
                    del found[:-limit]
    for line in found[-limit:]:
        typer.echo(_event_as_json(line) if as_json else _event_as_text(line))


@contextmanager
def _lines(place: str) -> Iterator[Iterator[bytes]]:
    if is_url(place):
        yield lines_of(place)
        return
    with _opened(Path(place)) as storage:
        yield AuditReader(storage).lines()


@contextmanager
def _opened(path: Path) -> Iterator[DirectoryStorage]:
    """Open the log in a directory, or in the data directory of a node."""
    below = path / AUDIT_DIRECTORY
    directory = below if below.is_dir() else path
    if not directory.is_dir():
        fail(f"no audit log in {path}", Exit.NOT_FOUND)
    storage = DirectoryStorage(directory)
    try:
        if not file_numbers(storage):
            fail(f"no audit log in {directory}", Exit.NOT_FOUND)
        yield storage
    except OSError as error:
        fail(f"cannot read {error.filename or directory}: {error.strerror}", Exit.FAILED)
    finally:
        storage.close()


def _trusted(keys: Path | None, path: Path) -> TrustedKeys:
    try:
        return load_trusted(keys or _find_keys(path))
    except KeyUnavailable as error:
        fail(str(error), Exit.WRONG_KEY)


def _find_keys(path: Path) -> Path:
    """Find the public keys beside the log: in the nearest data directory above it."""
    start = path.resolve()
    for directory in (start, *start.parents):
        candidate = directory / KEYS_DIRECTORY / AUDIT_KEYS_FILE
        if candidate.is_file():
            return candidate
    raise KeyUnavailable("no audit keys in this directory or above it: give --keys")


def _end_without_anchor(error: AuditUnreadable, *, as_json: bool) -> NoReturn:
    if as_json:
        typer.echo(json.dumps({"intact": False, "kind": "truncated", "detail": str(error)}))
    fail(str(error), Exit.QUARANTINED)


@contextmanager
def _progress(reader: AuditReader) -> Iterator[Iterator[bytes]]:
    """Show how far it is, on a terminal and where it takes a while."""
    total = reader.size_bytes
    if total < _PROGRESS_BYTES or not sys.stderr.isatty():
        yield reader.lines()
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("verifying", total=total)

        def counted() -> Iterator[bytes]:
            for line in reader.lines():
                bar.update(task, completed=reader.bytes_read)
                yield line

        yield counted()


def _report(verdict: ChainVerdict, reader: AuditReader) -> dict[str, Any]:
    report: dict[str, Any] = {
        "intact": verdict.is_intact,
        "log_id": verdict.log_id,
        "files": len(reader.numbers),
        "lines": verdict.lines,
        "events": verdict.events,
        "sealed_sequence": verdict.sealed_sequence,
        "sealed_head": verdict.sealed_head,
        "head": verdict.head,
        "unsigned_lines": verdict.unsigned_lines,
        "leftover_bytes": sum(each.bytes for each in reader.leftovers),
        "torn_bytes": reader.torn_bytes,
    }
    fault = verdict.fault
    if fault is not None:
        place = reader.locate(fault.line)
        report |= {"kind": fault.kind.value, "detail": fault.detail, "line": fault.line}
        report |= {"file": place.file, "line_of_file": place.line} if fault.line else {}
    return report


def _as_text(report: dict[str, Any]) -> str:
    if not report["intact"]:
        where = f"{report['file']}:{report['line_of_file']}" if "file" in report else "the anchor"
        return f"{report['kind']}: {where}: {report['detail']}"
    lines = [
        f"intact: {report['events']} events in {report['lines']} lines, {report['files']} files",
        f"  signed through  {report['sealed_sequence']}",
        f"  head            {report['sealed_head']}",
    ]
    if report["unsigned_lines"]:
        lines.append(f"  not signed yet  {report['unsigned_lines']} lines, chained only")
    if report["leftover_bytes"] or report["torn_bytes"]:
        crashed = report["leftover_bytes"] + report["torn_bytes"]
        lines.append(f"  left by crashes {crashed} bytes that no line holds")
    return "\n".join(lines)


def _event_as_json(line: EventLine) -> str:
    members = {name: getattr(line, name) for name in line.__struct_fields__}
    return json.dumps(members, ensure_ascii=False)


def _event_as_text(line: EventLine) -> str:
    at = datetime.fromtimestamp(line.at_ms / 1000, UTC)
    facts = " ".join(f"{name}={value!r}" for name, value in line.facts.items())
    parts = (f"{at:%Y-%m-%d %H:%M:%S}", line.outcome, line.what, line.who, line.object, facts)
    return "  ".join(_plain(part) for part in parts if part)


def _plain(text: str) -> str:
    """Let nobody write to a terminal what it would obey."""
    return "".join(each if each.isprintable() else "�" for each in text)
