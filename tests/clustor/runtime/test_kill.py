"""A real process on real files is killed with SIGKILL while it appends, again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from clustor.log.keys import KeyRing
from clustor.log.reader import LogReader
from clustor.log.types import IoWriterMode
from clustor.runtime.disk import DirectoryStorage, RingBroken, open_mode
from clustor.runtime.keys.store import create_keyring
from tests.clustor.runtime.appending_process import payload_of

KILLS = 25  # for each of two ways to write: fifty in all


@pytest.mark.parametrize("mode", [IoWriterMode.BLOCKING, IoWriterMode.FIXED_URING])
def test_nothing_acknowledged_is_lost_when_the_process_is_killed(
    tmp_path: Path, mode: IoWriterMode
) -> None:
    try:
        open_mode(mode).close()
    except RingBroken as refusal:
        pytest.skip(f"the kernel refuses io_uring: {refusal}")
    keys = create_keyring(tmp_path)
    rng = Random(mode)
    acknowledged = 0
    with appending(tmp_path, mode) as processes:
        for _ in range(KILLS):
            acknowledged = append_until_killed(processes, rng.randint(1, 120), acknowledged)
            check(tmp_path, keys, acknowledged)
    assert acknowledged > 1_000


@contextmanager
def appending(root: Path, mode: IoWriterMode) -> Iterator[subprocess.Popen[bytes]]:
    """Who starts processes that append, one for each line that it is told."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.clustor.runtime.appending_process", str(root), mode.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def append_until_killed(processes: subprocess.Popen[bytes], acks: int, before: int) -> int:
    """Let a process append until it was heard `acks` times, kill it, and drain what it said."""
    assert processes.stdin is not None and processes.stdout is not None
    processes.stdin.write(b"\n")
    began, pid = _said(processes)
    assert began == b"began"
    acknowledged = before
    try:
        for _ in range(acks):
            words = _said(processes)
            assert len(words) == 1, f"the process ended by itself: {words}"
            acknowledged = int(words[0])
    finally:
        os.kill(int(pid), signal.SIGKILL)
    # What it said before it died counts as well.
    while len(words := _said(processes)) == 1:
        acknowledged = int(words[0])
    assert words == [b"ended", b"%d" % -signal.SIGKILL]
    return acknowledged


def _said(processes: subprocess.Popen[bytes]) -> list[bytes]:
    assert processes.stdout is not None
    return processes.stdout.readline().split()


def check(root: Path, keys: KeyRing, acknowledged: int) -> None:
    storage = DirectoryStorage(root / "state" / "1")
    reader = LogReader.open(storage, keys)
    assert reader.image.problem is None
    held = {entry.index: entry.payload for entry in reader.entries(unproven=True)}
    assert reader.proven_index >= acknowledged
    assert set(held) >= set(range(reader.image.entries.base_index + 1, acknowledged + 1))
    assert all(payload == payload_of(index) for index, payload in held.items())
    storage.close()
