"""What `make run` runs, as an ordinary user of machines that give less than ours: it starts there,
acknowledges a message, and stops when it is told to.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.clustor.runtime.waiting import free_ports
from tests.interop.ordinary_user import IMPOSSIBLE, NOBODY
from tests.interop.test_half_open import Port
from tests.quantum.serving.client import connect

LAUNCHER: Final = Path(__file__).with_name("ordinary_user.py")
QUANTUM: Final = Path(sys.executable).with_name("quantum")
READY_SECONDS: Final = 180.0
MIB: Final = 1 << 20
SMALL_MEMORY: Final = 512 * MIB

FEWER: Final = "io_uring with fewer locked buffers"
PLAIN: Final = "io_uring without locked buffers"
THREAD: Final = "one writer thread instead of io_uring"

CASES: Final[dict[str, tuple[dict[str, object], str]]] = {
    "64 KiB of locked memory, on an overlay": ({"memlock": 64 << 10, "overlay": True}, PLAIN),
    "8 MiB of locked memory, on tmpfs": ({"memlock": 8 * MIB, "tmpfs": True}, ""),
    "io_uring forbidden, one processor": ({"forbid_io_uring": True, "cpus": 1}, THREAD),
    "512 MiB of memory, 2 MiB locked, 256 open files": (
        {"data": SMALL_MEMORY, "memlock": 2 * MIB, "nofile": 256},
        FEWER,
    ),
}
"""What the machine gives, and what the broker says it costs."""


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that the ordinary user can reach and owns."""
    place = Path(tempfile.mkdtemp(prefix="quantum-home-"))
    place.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(place, NOBODY, NOBODY)
    yield place
    shutil.rmtree(place, ignore_errors=True)


class Started:
    """A broker that said it is ready."""

    def __init__(self, process: subprocess.Popen[str], mqtt: int) -> None:
        self.process = process
        self.mqtt = mqtt

    def user_id(self) -> int:
        return int(self._status("Uid"))

    def peak_bytes(self) -> int:
        return int(self._status("VmHWM")) << 10

    def _status(self, name: str) -> str:
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
        return next(line.split()[1] for line in lines if line.startswith(f"{name}:"))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(180)


def command(machine: dict[str, object], home: Path, mqtt: int) -> list[str]:
    wanted = dict(machine)
    for kind in ("tmpfs", "overlay"):
        if kind in wanted:
            wanted = {"size": "512m"} | wanted | {kind: str(home)}
    mqtts, ws, amqp, admin = free_ports(4)
    doors = {"mqtt": mqtt, "mqtts": mqtts, "ws": ws, "amqp": amqp, "admin": admin}
    flags = [part for door, port in doors.items() for part in (f"--{door}", f"127.0.0.1:{port}")]
    if os.geteuid() != 0 and {"tmpfs", "overlay"} & wanted.keys():
        pytest.skip("only root may mount a file system")
    launch = [sys.executable, str(LAUNCHER), json.dumps(wanted)]
    return [*launch, str(QUANTUM), "up", "--data", str(home / "var"), *flags]


@contextmanager
def started(machine: dict[str, object], home: Path, errors: Path) -> Iterator[Started]:
    (mqtt,) = free_ports(1)
    with (
        errors.open("w") as written,
        subprocess.Popen(
            command(machine, home, mqtt), stdout=subprocess.PIPE, stderr=written, text=True
        ) as process,
    ):
        late = threading.Timer(READY_SECONDS, process.kill)
        late.start()
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            late.cancel()  # it was in time; what comes after has deadlines of its own
            if not first and process.wait() == IMPOSSIBLE:
                pytest.skip(errors.read_text())
            assert first.startswith("Quantum is ready"), errors.read_text()
            yield Started(process, mqtt)
        finally:
            late.cancel()
            process.kill()


@pytest.mark.parametrize(("machine", "lost"), CASES.values(), ids=CASES.keys())
def test_an_ordinary_user_has_a_broker(
    machine: dict[str, object], lost: str, home: Path, tmp_path: Path
) -> None:
    errors = tmp_path / "errors"
    with started(machine, home, errors) as broker:
        assert broker.user_id() != 0
        client = connect(Port(broker.mqtt))
        client.publish(b"hello/world", b"fsynced before PUBACK", 1)
        client.cut()
        peak = broker.peak_bytes()
        assert broker.stop() == 0, errors.read_text()
    said = errors.read_text()
    assert peak < SMALL_MEMORY
    assert "Traceback" not in said
    told = [line for line in said.splitlines() if "the disk is written by" in line]
    assert len(told) == (1 if lost else 0), said  # once, and only where something is lost
    # What an account may lock is shared by all that run under it: an ordinary user's other brokers
    # may have left nothing of it.
    less = (lost, PLAIN) if lost == FEWER and os.geteuid() != 0 else (lost,)
    assert not lost or any(each in told[0] for each in less), said
