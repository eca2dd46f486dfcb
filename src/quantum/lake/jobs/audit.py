"""`audit`: the audit logs of many nodes, verified in parallel, and who did what in them.

A log is cut behind each seal; batches are verified by whoever is free, and joined again in order
(`clustor.security.audit_verify` says what that finds and what it cannot). Events come from the
same pass: what is answered was verified.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clustor.log.errors import KeyUnavailable
from clustor.runtime.audit.keys import AUDIT_KEYS_FILE, PublicKeyEntry, read_audit_keys
from clustor.runtime.audit.writer import AUDIT_DIRECTORY
from clustor.runtime.disk import DirectoryStorage
from clustor.runtime.keys.store import KEYS_DIRECTORY
from clustor.security import (
    NOTHING,
    Anchor,
    AuditReader,
    AuditUnreadable,
    BatchVerdict,
    EventLine,
    SealedLines,
    TrustedKey,
    TrustedKeys,
    decode_line,
    file_numbers,
    join_batches,
    read_anchor,
    split_batches,
    trust,
    verify_batch,
)
from quantum.lake.errors import BadAddress, WrongKey
from quantum.lake.jobs.progress import Progress, Step, silence
from quantum.lake.jobs.runner import Runner, runner_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "audit"
CHUNK_BYTES: Final = 4 << 20
_WAVE: Final = 64
EVENTS_DDL: Final = (
    "log STRING, sequence BIGINT, at_ms BIGINT, who STRING, what STRING, object STRING, "
    "outcome STRING, tenant STRING, trace_id STRING"
)


@dataclass(frozen=True, slots=True)
class EventQuestion:
    """Which events are asked for; an empty text asks for nothing."""

    who: str = ""
    what: str = ""
    tenant: str = ""
    outcome: str = ""
    since_ms: int = 0

    def wants(self, line: EventLine) -> bool:
        return (
            line.at_ms >= self.since_ms
            and self.who in line.who
            and self.what in line.what
            and self.outcome in line.outcome
            and self.tenant in ("", line.tenant)
        )


@dataclass(frozen=True, slots=True)
class Audited:
    """What one log is."""

    log: str
    lines: int
    events: int
    batches: int
    unsigned_lines: int
    head: str
    fault: str = ""
    fault_line: int = 0

    @property
    def is_intact(self) -> bool:
        return not self.fault


def audit(
    directories: Sequence[str],
    *,
    spark: SparkSession | Runner | None = None,
    keys: str | None = None,
    question: EventQuestion | None = None,
    progress: Progress = silence,
) -> tuple[list[Audited], list[dict[str, Any]]]:
    """Verify logs and answer a question about them.

    Each directory is a log's, or a node's. Raises BadAddress where there is no log, WrongKey where
    there are no keys to trust.
    """
    runner = runner_of(spark)
    audited: list[Audited] = []
    events: list[dict[str, Any]] = []
    for nth, name in enumerate(directories):
        found, answered = _audit_log(name, runner, keys, question)
        audited.append(found)
        events += answered
        progress(Step(JOB, f"{name}: {found.events} events", nth + 1, len(directories)))
    events.sort(key=lambda row: (row["at_ms"], row["log"], row["sequence"]))
    return audited, events


def _audit_log(
    name: str, runner: Runner, keys: str | None, question: EventQuestion | None
) -> tuple[Audited, list[dict[str, Any]]]:
    directory = _log_directory(Path(name))
    try:
        trusted = read_audit_keys(Path(keys) if keys is not None else _find_keys(directory))
    except KeyUnavailable as error:
        raise WrongKey(str(error)) from error
    storage = DirectoryStorage(directory)
    try:
        if not file_numbers(storage):
            raise BadAddress("no audit log here", directory=name)
        anchor = _anchor(storage)  # before the lines: the log may be growing
        reader = AuditReader(storage)
        verdicts: list[BatchVerdict] = []
        events: list[dict[str, Any]] = []
        work = partial(verify_chunk, trusted, question, name)
        for wave in _waves(chunks(split_batches(reader.lines()))):
            for some, answered in runner.run(work, wave):
                verdicts += some
                events += answered
        return _joined(name, verdicts, anchor, reader, _trust(trusted)), events
    finally:
        storage.close()


def _waves(found: Iterator[list[SealedLines]]) -> Iterator[list[list[SealedLines]]]:
    wave: list[list[SealedLines]] = []
    for chunk in found:
        wave.append(chunk)
        if len(wave) >= _WAVE:
            yield wave
            wave = []
    if wave:
        yield wave


def chunks(
    batches: Iterator[SealedLines], chunk_bytes: int = CHUNK_BYTES
) -> Iterator[list[SealedLines]]:
    """Group batches into pieces that are worth a task."""
    chunk: list[SealedLines] = []
    size = 0
    for batch in batches:
        chunk.append(batch)
        size += sum(map(len, batch.lines))
        if size >= chunk_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _trust(keys: tuple[PublicKeyEntry, ...]) -> TrustedKeys:
    return trust(
        *(
            TrustedKey(
                bytes.fromhex(each.public_key),
                each.activates_at_ms,
                each.retires_at_ms,
            )
            for each in keys
        )
    )


def verify_chunk(
    keys: tuple[PublicKeyEntry, ...],
    question: EventQuestion | None,
    log: str,
    chunk: list[SealedLines],
) -> tuple[list[BatchVerdict], list[dict[str, Any]]]:
    """Verify batches, each by itself, and pick their events. Runs where Spark says."""
    trusted = _trust(keys)
    verdicts, events = [], []
    for batch in chunk:
        is_first = batch.first_line == 1
        verdict = verify_batch(
            batch,
            trusted,
            previous_digest=NOTHING if is_first else None,
            first_sequence=1 if is_first else None,
        )
        verdicts.append(verdict)
        if question is not None and verdict.fault is None:
            events += [_event(log, line) for line in _events(batch) if question.wants(line)]
    return verdicts, events


def _events(batch: SealedLines) -> Iterator[EventLine]:
    for raw in batch.lines:
        line = decode_line(raw)
        if isinstance(line, EventLine):
            yield line


def _event(log: str, line: EventLine) -> dict[str, Any]:
    return {
        "log": log,
        "sequence": line.sequence,
        "at_ms": line.at_ms,
        "who": line.who,
        "what": line.what,
        "object": line.object,
        "outcome": line.outcome,
        "tenant": line.tenant,
        "trace_id": line.trace_id,
    }


def _joined(
    name: str,
    verdicts: list[BatchVerdict],
    anchor: Anchor | str,
    reader: AuditReader,
    trusted: TrustedKeys,
) -> Audited:
    seen = None if isinstance(anchor, str) else anchor
    verdict = join_batches(verdicts, trusted, seen)
    fault, line = "", 0
    if verdict.fault is not None:
        fault, line = f"{verdict.fault.kind}: {verdict.fault.detail}", verdict.fault.line
    elif isinstance(anchor, str):
        fault = anchor
    elif reader.changed_leftovers:
        fault = "altered: what a crash left behind the last line was changed since"
    return Audited(
        name,
        verdict.lines,
        verdict.events,
        verdict.batches,
        verdict.unsigned_lines,
        verdict.head,
        fault,
        line,
    )


def _anchor(storage: DirectoryStorage) -> Anchor | str:
    try:
        return read_anchor(storage)
    except AuditUnreadable as error:
        return f"truncated: {error}"


def _log_directory(path: Path) -> Path:
    below = path / AUDIT_DIRECTORY
    directory = below if below.is_dir() else path
    if not directory.is_dir():
        raise BadAddress("no audit log here", directory=str(path))
    return directory


def _find_keys(directory: Path) -> Path:
    for each in (directory, *directory.resolve().parents):
        candidate = each / KEYS_DIRECTORY / AUDIT_KEYS_FILE
        if candidate.is_file():
            return candidate
    raise KeyUnavailable("no audit keys in this directory or above it")
