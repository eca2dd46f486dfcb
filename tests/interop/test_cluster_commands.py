"""`quantum cluster` as an operator meets it: what it says when all is well, and whom it names when
one node hangs, when its supervisor was killed, and when it is told to stop.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from clustor.runtime.data_directory import LOCK_FILE, holder_of
from quantum.cli.exits import Exit
from tests.clustor.runtime.waiting import free_base_port
from tests.interop.machine import slowness

QUANTUM: Final = [sys.executable, "-m", "quantum.cli"]
READY_SECONDS: Final = 300.0
DEADLINE_SECONDS: Final = 180.0
ONE_HANGS_SECONDS: Final = 8.0
"""A silent node costs its deadline of two seconds once; the rest is for a busy machine."""
NODES: Final = 3


def quantum(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run([*QUANTUM, *arguments])


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def until_done(command: list[str]) -> None:
    """Run a command until it ends well: a busy node answers late, or hands over what it leads."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (done := run(command)).returncode != 0:
        assert time.monotonic() < deadline, done.stdout + done.stderr


class Up:
    """A `cluster up`, and what it said until it was ready."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.base_port = free_base_port(NODES)
        self.flags = ["cluster", "up", "--data", str(data), "--nodes", str(NODES)]
        self.flags += ["--base-port", str(self.base_port), "--tenant-prgs", "1"]
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [*QUANTUM, *self.flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        late = threading.Timer(READY_SECONDS, self.process.kill)
        late.start()
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if "cluster status" in line:  # the last line of its greeting
                break
        late.cancel()
        assert self.process.poll() is None, self.said

    def pid(self, node: int) -> int:
        found = holder_of(self.data / f"node-{node}" / LOCK_FILE)
        assert found
        return found


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    started = Up(tmp_path_factory.mktemp("cluster") / "data")
    try:
        yield started
    finally:
        with started.process:  # closes its pipe, and waits
            started.process.kill()
        for node in range(1, NODES + 1):
            with suppress(ProcessLookupError, AssertionError):
                os.kill(started.pid(node), signal.SIGKILL)


def test_it_says_that_it_is_ready_where_and_what_to_try(up: Up) -> None:
    text = "\n".join(up.said)
    assert "Quantum is ready: 3 nodes" in text
    for node in range(1, NODES + 1):
        address = f"127.0.0.1:{up.base_port + 10 * node + 2}"
        assert f"mqtt={address}" in text and f"MQTT {address}" in text
    (line,) = (line.strip() for line in up.said if " pub hello/world " in line)
    until_done(shlex.split(line))
    until_done([*QUANTUM, "cluster", "status", "--data", str(up.data)])


def test_a_node_that_hangs_is_named_soon_and_costs_the_exit_code(up: Up) -> None:
    os.kill(up.pid(3), signal.SIGSTOP)
    try:
        for command in ("members", "status"):
            until_named(up, command)
    finally:
        os.kill(up.pid(3), signal.SIGCONT)


def until_named(up: Up, command: str) -> None:
    """Run a command until node 3 alone is named, and soon.

    On a busy machine another node may be late as well, or the command itself: that passes, and
    asking one node behind the other would be too slow each time.
    """
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        began = time.monotonic()
        found = quantum("cluster", command, "--data", str(up.data))
        took = time.monotonic() - began
        said = found.stdout + found.stderr
        silent = [node for node in range(1, NODES + 1) if f"node {node} does not answer" in said]
        is_soon = took < ONE_HANGS_SECONDS * slowness()
        is_named = silent == [3] and is_shown(command, found.stdout)
        if is_named and is_soon and found.returncode == Exit.FAILED:
            return
        assert time.monotonic() < deadline, (took, found.returncode, said)


def is_shown(command: str, said: str) -> bool:
    """Say whether a status has a row for the silent node, and for no other."""
    rows = [line.split()[0] for line in said.splitlines() if line.endswith("does not answer")]
    return command != "status" or set(rows) == {"3"}


def test_nodes_that_lost_their_supervisor_are_named_and_can_be_stopped(up: Up) -> None:
    again = quantum(*up.flags)
    assert again.returncode == Exit.NOT_FOUND
    assert "the cluster runs already" in again.stderr and str(up.process.pid) in again.stderr
    pids = {node: up.pid(node) for node in range(1, NODES + 1)}
    up.process.kill()
    up.process.wait()
    again = quantum(*up.flags)
    assert again.returncode == Exit.NOT_FOUND, again.stdout
    for node, pid in pids.items():
        assert f"node {node} is process {pid}" in again.stderr
    assert f"cluster down --data {up.data}" in again.stderr
    down = quantum("cluster", "down", "--data", str(up.data))
    assert down.returncode == 0, down.stderr
    assert sorted(down.stdout.splitlines()) == [
        f"stopped node {node} (process {pid})" for node, pid in sorted(pids.items())
    ]
    assert quantum("cluster", "down", "--data", str(up.data)).stdout == "nothing ran\n"
    assert quantum("cluster", "down", "--data", "/proc/nope").returncode == Exit.NOT_FOUND
