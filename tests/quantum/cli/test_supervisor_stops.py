"""How long a supervisor waits for its nodes: as long as a stop may take, and not for ever."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quantum.cli import cluster_processes, supervisor
from quantum.cli.supervisor import Supervisor

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"
SLOW = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), sys.exit(0)))\n"
    "print(flush=True)\nsignal.pause()\n"
)


@contextmanager
def begun(program: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it hears signals from here on
        yield process


def stop(processes: dict[int, subprocess.Popen[bytes]]) -> None:
    found = object.__new__(Supervisor)
    found._running = processes
    found._stop_all()
    assert not found._running


def test_a_node_that_takes_its_time_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with begun(SLOW) as slow:
        stop({1: slow})
        assert slow.returncode == 0
    assert "killed" not in capsys.readouterr().out


def test_a_node_that_never_stops_is_killed_at_the_bound_and_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOP_SECONDS_MAX", 0.2)
    with begun(DEAF) as deaf:
        stop({7: deaf})
        assert deaf.returncode == -signal.SIGKILL
    assert "node 7 did not stop in time and was killed" in capsys.readouterr().out


def test_who_stops_a_supervisor_waits_longer_than_it_does() -> None:
    assert supervisor.STOP_SECONDS_MAX >= 30
    assert cluster_processes.STOP_SECONDS_MAX >= 2 * supervisor.STOP_SECONDS_MAX
