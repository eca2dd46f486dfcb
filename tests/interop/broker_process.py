"""`quantum up` in a process of its own: the broker that a newcomer starts, with all its doors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from clustor.runtime.peers.transport import Address
from quantum.cli.admin_client import AdminUnreachable, fetch
from tests.clustor.runtime.waiting import all_listen, free_ports

DEADLINE_SECONDS = 180.0
HOST = "127.0.0.1"
_COMMAND = "from quantum.cli import main; main()"


class BrokerProcess:
    """One broker, on the same ports and the same data however often it starts."""

    def __init__(
        self,
        data: Path,
        *,
        partitions: int = 3,
        archive: str = "",
        flush_seconds: int = 1,
        backup_seconds: int = 0,
    ) -> None:
        self.data = data
        admin, self.mqtt, self.mqtts, self.ws, self.kafka, self.amqp = free_ports(6)
        self.admin = Address(HOST, admin)
        self._log = data.parent / f"{data.name}.log"
        self._command = [sys.executable, "-c", _COMMAND, "up", "--data", str(data)]
        self._command += ["--mqtt", f"{HOST}:{self.mqtt}", "--mqtts", f"{HOST}:{self.mqtts}"]
        self._command += ["--ws", f"{HOST}:{self.ws}", "--admin", f"{HOST}:{self.admin.port}"]
        self._command += ["--kafka", f"{HOST}:{self.kafka}"]
        self._command += ["--amqp", f"{HOST}:{self.amqp}"]
        self._command += ["--tenant-prgs", str(partitions)]
        self._environment = dict(os.environ)
        if archive:
            self._command += ["--archive", archive]
            self._environment["QUANTUM_ARCHIVE_FLUSH_SECONDS"] = str(flush_seconds)
        if backup_seconds:
            self._command += ["--backup-interval-seconds", str(backup_seconds)]
            self._command += ["--backup-keep-count", "3"]
        self._process: subprocess.Popen[bytes] | None = None

    def run_program(self, program: Path) -> None:
        """Let a program start the broker that has something of its own; it is run from its file."""
        self._command[1:3] = [str(program)]

    def look_back(self, moment: str, *options: str) -> None:
        """Let `quantum at` start it instead, as it stood at a moment, in a directory of its own."""
        up = self._command.index("up")
        ports = self._command[up + 3 :]
        self._command[up:] = ["at", moment, *options, "--", "serve", *ports]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._end()  # nobody leaves a context that was not entered
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self.kill()

    def start(self) -> None:
        """Start, and return when every partition is served, on every port."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
            )
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self._serves():
            assert self._process.poll() is None, f"it ended by itself\n{self.last_words()}"
            assert time.monotonic() < deadline, f"never served\n{self.last_words()}"
            time.sleep(0.05)

    def _serves(self) -> bool:
        try:
            code, page = fetch(self.admin, "/v1/broker/status")
        except AdminUnreachable:
            return False
        served = [each["serves"] for each in page.get("partitions", ())]
        if code != 200 or not served or not all(served):
            return False
        return all_listen((self.mqtt, self.mqtts, self.ws, self.kafka))

    def page(self, path: str) -> dict[str, Any]:
        """Return a page of its admin port, however long it takes to answer."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            with suppress(AdminUnreachable):
                code, found = fetch(self.admin, path)
                assert code == 200, found
                return found
            time.sleep(0.05)
        raise AssertionError(f"never answered: {path}\n{self.last_words()}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def interrupt(self) -> int:
        """Press Ctrl-C, and return the exit code."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGINT)
        code = self._process.wait(120)
        self._process = None
        return code

    def kill(self) -> None:
        """End it as a power cut would end its process."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(120)
        self._process = None

    def last_words(self) -> str:
        return "\n".join(self.words().splitlines()[-30:])

    def words(self) -> str:
        """Return all that it said."""
        return self._log.read_text(errors="replace")
