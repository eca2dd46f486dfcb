"""`quantum lake …` in processes of its own, and ways to end their parts abruptly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from quantum.cli.exits import Exit
from quantum.lake.table import NoTable, Table, TableState, open_store

DEADLINE_SECONDS = 600.0
_COMMAND = "from quantum.cli.lake import app; app()"


def lake(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a job to its end; once more where no node answered in the two seconds it gives them."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        done = subprocess.run(
            [sys.executable, "-c", _COMMAND, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != Exit.UNREACHABLE or time.monotonic() > deadline:
            return done


class LakeProcess:
    """A job that goes on until it is told, or killed."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.kill()

    def kill(self) -> None:
        """End the driver and its JVM as a power cut would."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(120)

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        return self._process.wait(DEADLINE_SECONDS)

    def kill_worker(self) -> bool:
        """Kill a process of Python that carries tasks out; say whether there was one."""
        for pid in _descendants(self._process.pid):
            if b"pyspark.daemon" in _command(pid) and b"pyspark.daemon" in _command(_parent(pid)):
                with suppress(ProcessLookupError):  # it ended by itself; another one is there soon
                    os.kill(pid, signal.SIGKILL)
                    return True
        return False

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def kill_executor(workers: list[int]) -> bool:
    """Kill an executor of a standalone cluster, JVM and all; say whether there was one."""
    for worker in workers:
        for pid in _descendants(worker):
            if b"CoarseGrainedExecutorBackend" in _command(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return True
    return False


def table_state(path: Path) -> TableState:
    try:
        return Table.open(open_store(str(path))).state
    except NoTable:
        return TableState()


def wait_for_versions(job: LakeProcess, path: Path, version: int) -> None:
    """Return when a table has reached a version."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while table_state(path).version < version:
        assert job.is_running, job.last_words()
        assert time.monotonic() < deadline, f"no version {version}\n{job.last_words()}"
        time.sleep(0.05)


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(_parent(int(entry.name)), []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
