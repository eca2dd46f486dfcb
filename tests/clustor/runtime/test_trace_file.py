"""Spans on a real disk: none waits, what is kept is bounded, and a bad disk harms nobody."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clustor.runtime.telemetry.trace_file import TraceFile, TraceFileLimits
from clustor.telemetry.tracing import NO_PARENT, Span
from tests.clustor.runtime.waiting import until

QUICK = TraceFileLimits(pause_seconds=0.0)


def span(number: int) -> Span:
    return Span(
        trace_id=number.to_bytes(16, "big"),
        span_id=number.to_bytes(8, "big"),
        parent_id=NO_PARENT,
        name="publish",
        began_ns=number,
        ended_ns=number,
        attributes={},
    )


def numbers(directory: Path) -> list[int]:
    """Return the spans of all files, in the order of files and lines."""
    found: list[int] = []
    for path in sorted(directory.iterdir()):
        for line in path.read_bytes().splitlines():
            (resource,) = json.loads(line)["resourceSpans"]
            (scope,) = resource["scopeSpans"]
            found += [int(each["traceId"], 16) for each in scope["spans"]]
    return found


def test_every_span_is_written_once_and_in_order(tmp_path: Path) -> None:
    for start in range(2):
        file = TraceFile(tmp_path / "traces", 1, QUICK)
        for number in range(700):
            file.add(span(1_000 * start + number))
        file.close()
        assert (file.written, file.dropped) == (700, 0)
    assert numbers(tmp_path / "traces") == [*range(700), *range(1_000, 1_700)]
    assert len(list((tmp_path / "traces").iterdir())) == 2, "each start has a file of its own"


def test_a_full_queue_drops_and_counts(tmp_path: Path) -> None:
    limits = TraceFileLimits(queue_spans_max=10, pause_seconds=60)
    file = TraceFile(tmp_path, 1, limits)
    for number in range(25):
        file.add(span(number))
    file.close()
    assert (file.written, file.dropped) == (10, 15)
    assert numbers(tmp_path) == list(range(10))


def test_files_rotate_and_the_oldest_go(tmp_path: Path) -> None:
    limits = TraceFileLimits(
        line_spans_max=10, file_bytes_max=6_000, files_max=3, pause_seconds=0.0
    )
    file = TraceFile(tmp_path, 1, limits)
    for number in range(500):
        file.add(span(number))
    file.close()
    found = sorted(tmp_path.iterdir())
    assert len(found) == 3 and all(path.stat().st_size <= 6_000 for path in found)
    kept = numbers(tmp_path)
    assert kept == list(range(kept[0], 500)), "the newest, without a gap"


def test_what_is_older_than_its_time_goes_with_the_next_start(tmp_path: Path) -> None:
    TraceFile(tmp_path, 1, QUICK).close()
    TraceFile(tmp_path, 1, QUICK).close()
    os.utime(tmp_path / "spans-0000000001.jsonl", (0, 0))
    (tmp_path / "a note of somebody.txt").write_text("stays")
    TraceFile(tmp_path, 1, QUICK).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a note of somebody.txt",
        "spans-0000000002.jsonl",
        "spans-0000000003.jsonl",
    ]


async def test_a_disk_that_refuses_loses_spans_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = TraceFile(tmp_path, 1, QUICK)
    healthy = file._file
    with Path("/dev/full").open("wb", buffering=0) as full:
        file._file = full
        for number in range(3):
            file.add(span(number))
        await until(lambda: file.dropped == 3, "all are dropped")
    assert caplog.text.count("spans are dropped") == 1
    healthy.write(b'{"resou')  # a part of a line, which the disk had room for
    file._file = healthy
    file.add(span(9))
    file.close()
    assert (file.written, file.dropped) == (1, 3)
    torn, whole = (tmp_path / "spans-0000000001.jsonl").read_bytes().splitlines()
    assert torn == b'{"resou' and json.loads(whole), "who reads goes on behind it"


def test_a_directory_that_cannot_be_made_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        TraceFile(tmp_path / "file" / "traces", 1)
