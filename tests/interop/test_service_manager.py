"""A node under a service manager: it says when it serves, that it lives, and when it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clustor.runtime.waiting import free_base_port
from tests.interop.host_processes import DEADLINE_SECONDS, ONE_MACHINE, QUANTUM

WATCHDOG_SECONDS = 3.0


class Manager:
    """The end of `NOTIFY_SOCKET` that systemd would hold."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(place))

    def heard(self, word: str) -> None:
        """Wait for a word; whatever comes before it is heard, too."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            self._socket.settimeout(max(0.1, deadline - time.monotonic()))
            if word in self._socket.recv(4_096).decode().splitlines():
                return

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    opened = Manager(tmp_path / "notify")
    yield opened
    opened.close()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Make the folder of a cluster of one host, on loopback."""
    first = free_base_port(1) + 10  # the ports of its first node
    ports = (
        *("--peer-port", str(first), "--admin-port", str(first + 1)),
        *("--mqtts-port", str(first + 2), "--wss-port", "0"),
    )
    small = ("--data", "data", "--segment-mib", "4", "--disk-override", ONE_MACHINE)
    command = ["cluster", "init", "--hosts", "a=127.0.0.1", "--out", str(tmp_path / "out")]
    subprocess.run([*QUANTUM, *command, *ports, *small], check=True, capture_output=True)
    return tmp_path / "out" / "a" / "quantum.toml"


def test_a_node_says_when_it_serves_that_it_lives_and_when_it_ends(
    manager: Manager, config: Path
) -> None:
    told = {
        **os.environ,
        "NOTIFY_SOCKET": str(manager.place),
        "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1_000_000)),
    }
    command = [*QUANTUM, "node", "start", "--config", str(config)]
    log = config.with_name("node.log")
    with log.open("wb") as output:
        node = subprocess.Popen(command, env=told, stderr=output)
    try:
        manager.heard("READY=1")
        live = [*QUANTUM, "node", "ready", "--live", "--config", str(config)]
        answered = subprocess.run(live, capture_output=True, text=True)
        assert answered.returncode == 0, answered.stderr + log.read_text()
        for _ in range(3):
            manager.heard("WATCHDOG=1")
        os.kill(node.pid, signal.SIGSTOP)  # a loop that hangs says nothing: that is the alarm
        with pytest.raises(TimeoutError):
            drain(manager)
        os.kill(node.pid, signal.SIGCONT)
        manager.heard("WATCHDOG=1")
        node.terminate()
        manager.heard("STOPPING=1")
        assert node.wait(60) == 0
    finally:
        node.kill()
        node.wait()


def drain(manager: Manager) -> None:
    """Take what is said until nothing is for as long as a watchdog waits."""
    while True:
        manager._socket.settimeout(WATCHDOG_SECONDS)
        manager._socket.recv(4_096)
