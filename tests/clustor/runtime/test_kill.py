"""A real process on real files is killed with SIGKILL while it appends, again and again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from clustor.log import IoWriterMode, LogReader
from clustor.log.keys import KeyRing
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
    for _ in range(KILLS):
        acknowledged = append_until_killed(tmp_path, mode, rng.randint(1, 120), acknowledged)
        check(tmp_path, keys, acknowledged)
    assert acknowledged > 1_000


def append_until_killed(root: Path, mode: IoWriterMode, acks: int, before: int) -> int:
    """Let a process append until it was heard `acks` times, kill it, and drain what it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.clustor.runtime.appending_process", str(root), mode.name],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    acknowledged = before
    try:
        for _ in range(acks):
            line = process.stdout.readline()
            assert line, f"the process ended by itself with {process.wait()}"
            acknowledged = int(line)
    finally:
        process.kill()
    # What it said before it died counts as well; a line that it did not finish does not.
    rest = process.stdout.read().split(b"\n")[:-1]
    process.wait()
    process.stdout.close()
    return int(rest[-1]) if rest else acknowledged


def check(root: Path, keys: KeyRing, acknowledged: int) -> None:
    storage = DirectoryStorage(root / "state" / "1")
    reader = LogReader.open(storage, keys)
    assert reader.image.problem is None
    held = {entry.index: entry.payload for entry in reader.entries(unproven=True)}
    assert reader.proven_index >= acknowledged
    assert set(held) >= set(range(reader.image.entries.base_index + 1, acknowledged + 1))
    assert all(payload == payload_of(index) for index, payload in held.items())
    storage.close()
