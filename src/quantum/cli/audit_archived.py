"""Audit logs in an archive: which there are, whose keys are theirs, and what was written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import typer

from clustor.runtime.audit.keys import AUDIT_KEYS_FILE, load_trusted
from clustor.runtime.audit.writer import AUDIT_DIRECTORY
from clustor.runtime.development import node_directory
from clustor.runtime.keys.store import KEYS_DIRECTORY
from clustor.runtime.pki.identity import NodeId
from clustor.security import ChainVerdict, TrustedKeys, digest_of, verify_lines
from quantum.archive import (
    ArchivedLog,
    Objects,
    archived_lines,
    archived_logs,
    object_names,
    open_objects,
    read_mark,
)
from quantum.cli.archive_opening import in_one_sentence
from quantum.cli.exits import Exit, exit_of_fault, fail


def is_url(place: str) -> bool:
    """Say whether a place is an archive and no path."""
    return "://" in place


def verify_archived(
    url: str, keys: Path | None, *, expect_head: str | None, expired: bool, as_json: bool
) -> NoReturn:
    """Verify every audit log of an archive; the first finding gives the exit code."""
    if keys is None:
        fail("give the nodes' public keys: --keys audit-keys.json, or a data directory", Exit.USAGE)
    code = 0
    seen: set[str] = set()
    with in_one_sentence():
        objects = open_objects(url)
        for log in _logs(objects, url):
            lines = _watched(archived_lines(objects, log), expect_head, seen)
            verdict = _verify(lines, url, log, keys, from_start=not expired)
            typer.echo(_told(objects, log, verdict, as_json=as_json))
            code = code or exit_of_fault(verdict.fault)
    if expect_head not in {None, *seen}:
        fail("the expected head is in none of these logs", Exit.QUARANTINED)
    raise typer.Exit(code)


def lines_of(url: str) -> Iterator[bytes]:
    """Yield the lines of all audit logs in an archive."""
    with in_one_sentence():
        objects = open_objects(url)
        for log in _logs(objects, url):
            yield from archived_lines(objects, log)


def _logs(objects: Objects, url: str) -> list[ArchivedLog]:
    found = archived_logs(objects)
    if not found:
        fail(f"there is no audit log in the archive at {url}", Exit.NOT_FOUND)
    return found


def _watched(lines: Iterator[bytes], wanted: str | None, seen: set[str]) -> Iterator[bytes]:
    """Pass lines on, and note the one whose digest is wanted."""
    for line in lines:
        if wanted is not None and digest_of(line) == wanted:
            seen.add(wanted)
        yield line


def _verify(
    lines: Iterator[bytes], url: str, log: ArchivedLog, keys: Path, *, from_start: bool
) -> ChainVerdict:
    """Verify one log; what its node remembers to have exported must be there too."""
    directory = _node_directory(keys, log)
    mark = None if directory is None else read_mark(directory / AUDIT_DIRECTORY)
    is_of_it = mark is not None and (mark.archive, mark.log_id) == (url, log.log_id)
    return verify_lines(
        lines,
        _trusted(keys, directory),
        expect_head=mark.digest if mark is not None and is_of_it else None,
        from_start=from_start,
        require_signed=True,
    )


def _node_directory(keys: Path, log: ArchivedLog) -> Path | None:
    """Return the data directory of a log's node where `keys` is one, or holds the cluster's."""
    for directory in (node_directory(keys, NodeId(log.node)), keys):
        if (directory / KEYS_DIRECTORY / AUDIT_KEYS_FILE).is_file():
            return directory
    return None


def _trusted(keys: Path, directory: Path | None) -> TrustedKeys:
    """A node's own keys alone are trusted for its log, where they can be told apart."""
    return load_trusted(keys if directory is None else directory / KEYS_DIRECTORY / AUDIT_KEYS_FILE)


def _told(objects: Objects, log: ArchivedLog, verdict: ChainVerdict, *, as_json: bool) -> str:
    report: dict[str, Any] = {
        "intact": verdict.is_intact,
        "node": log.node,
        "log_id": log.log_id,
        "objects": len(object_names(objects, log)),
        "lines": verdict.lines,
        "events": verdict.events,
        "sealed_sequence": verdict.sealed_sequence,
        "head": verdict.sealed_head,
    }
    fault = verdict.fault
    if fault is not None:
        report |= {"kind": fault.kind.value, "detail": fault.detail, "line": fault.line}
    if as_json:
        return json.dumps(report)
    if fault is not None:
        return f"{log}: {fault.kind.value}: line {fault.line}: {fault.detail}"
    return (
        f"{log}: intact: {verdict.events} events in {verdict.lines} lines, "
        f"{report['objects']} objects\n  head            {verdict.sealed_head}"
    )
