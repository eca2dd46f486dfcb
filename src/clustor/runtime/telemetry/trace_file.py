"""Finished spans in files, written beside the loop: one line of OTLP/JSON for each batch.

traces/spans-0000000001.jsonl     rotates by size; old files go by number and by age

Nothing waits for a span: with a full queue, or a disk that refuses, it is dropped and counted.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import deque
from dataclasses import dataclass
from errno import ENOSPC
from io import FileIO
from pathlib import Path
from typing import Final

from clustor.telemetry.tracing import Span, encode_spans

TRACES_DIRECTORY: Final = "traces"
_NAME: Final = re.compile(r"spans-([0-9]{10})\.jsonl")
_DAY_SECONDS: Final = 86_400

journal = logging.getLogger("clustor.telemetry")


@dataclass(frozen=True, slots=True)
class TraceFileLimits:
    """How much may wait, and how much is kept (quantumqtt §1: 30 days)."""

    queue_spans_max: int = 8_192
    line_spans_max: int = 512
    file_bytes_max: int = 16 << 20
    files_max: int = 8
    days_max: int = 30
    pause_seconds: float = 0.2
    """How long spans gather before they are written."""


LIMITS: Final = TraceFileLimits()


class TraceFile:
    """Where the spans of one node go. `add` is called in the loop, everything else by a thread."""

    def __init__(self, directory: Path, node: int, limits: TraceFileLimits = LIMITS) -> None:
        """Begin a new file; raises OSError where that cannot be."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._node = node
        self._limits = limits
        self._queue: deque[Span] = deque()
        self.written = 0
        self.dropped = 0
        """Spans that found no room, or that the disk refused."""
        self._failed = False
        self._file = self._begin()
        self._has_some = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def add(self, span: Span) -> None:
        """Take a span; it never waits."""
        if len(self._queue) >= self._limits.queue_spans_max:
            self.dropped += 1
            return
        self._queue.append(span)
        if not self._has_some.is_set():
            self._has_some.set()

    def close(self) -> None:
        """Write what waits, and end."""
        self._stop.set()
        self._has_some.set()
        self._thread.join()
        self._file.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._has_some.wait()
            self._stop.wait(self._limits.pause_seconds)
            self._has_some.clear()
            self._write_waiting()
        self._write_waiting()

    def _write_waiting(self) -> None:
        while self._queue:
            count = min(len(self._queue), self._limits.line_spans_max)
            spans = [self._queue.popleft() for _ in range(count)]
            try:
                self._write(encode_spans(self._node, spans))
            except OSError as error:
                self.dropped += count
                self._say_failed(error)
            else:
                self.written += count
                self._failed = False

    def _write(self, line: bytes) -> None:
        if self._file.tell() and self._file.tell() + len(line) > self._limits.file_bytes_max:
            self._file.close()
            self._file = self._begin()
        if self._failed:
            line = b"\n" + line  # what was written of the line before ends here
        if self._file.write(line) != len(line):
            raise OSError(ENOSPC, os.strerror(ENOSPC))

    def _say_failed(self, error: OSError) -> None:
        if not self._failed:
            journal.warning("spans are dropped: %s", error.strerror)
        self._failed = True

    def _begin(self) -> FileIO:
        """Open the next file, and remove those that are too many or too old."""
        numbers = sorted(int(match[1]) for _, match in self._files())
        fresh = (numbers[-1] if numbers else 0) + 1
        oldest_kept = time.time() - self._limits.days_max * _DAY_SECONDS
        for path, match in self._files():
            is_old = path.stat().st_mtime < oldest_kept
            if is_old or int(match[1]) <= fresh - self._limits.files_max:
                path.unlink(missing_ok=True)
        return (self._directory / f"spans-{fresh:010d}.jsonl").open("ab", buffering=0)

    def _files(self) -> list[tuple[Path, re.Match[str]]]:
        found = ((path, _NAME.fullmatch(path.name)) for path in self._directory.iterdir())
        return [(path, match) for path, match in found if match is not None]
