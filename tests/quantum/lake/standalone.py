"""A real Spark master with real workers, on loopback, in processes of their own."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from quantum.lake.java import java_home
from tests.clustor.runtime.waiting import free_base_port

HOST = "127.0.0.1"
DEADLINE_SECONDS = 600.0
_PR_SET_PDEATHSIG = 1
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


def _end_with_this_process() -> None:
    """Let the kernel end a child whose test was killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class StandaloneSpark:
    """`with StandaloneSpark(tmp_path) as spark: spark_session(spark.master)`.

    The workers know nothing of this tree: what they run was shipped to them.
    """

    def __init__(self, directory: Path, *, workers: int = 2, cores: int = 1) -> None:
        self._directory = directory
        self._workers = workers
        self._cores = cores
        base = free_base_port(1) + 10
        self._port, self._web_port = base + 1, base + 2
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self._port}"

    def __enter__(self) -> Self:
        ports = ["--host", HOST, "--port", str(self._port), "--webui-port", str(self._web_port)]
        self._start("master", _MASTER, ports)
        for number in range(self._workers):
            work = self._directory / f"work-{number}"
            what = ["--host", HOST, "--cores", str(self._cores), "--memory", "1g"]
            what += ["--webui-port", "0", "--work-dir", str(work), self.master]
            self._start(f"worker-{number}", _WORKER, what)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self, name: str, java_class: str, arguments: list[str]) -> None:
        home = Path(str(pyspark.__file__)).parent
        environment = {key: os.environ[key] for key in os.environ if key != "PYTHONPATH"}
        environment |= {
            "JAVA_HOME": java_home(),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with (self._directory / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                [home / "bin" / "spark-class", java_class, *arguments],
                env=environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_end_with_this_process,  # noqa: PLW1509  # one call, no locks
            )
        self._processes.append(process)

    def _wait(self) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.alive_workers() < self._workers:
            assert all(each.poll() is None for each in self._processes), self.last_words()
            assert time.monotonic() < deadline, f"never came up\n{self.last_words()}"
            time.sleep(0.1)

    def alive_workers(self) -> int:
        """Ask the master how many workers it has."""
        try:
            address = f"http://{HOST}:{self._web_port}/json/"
            with urllib.request.urlopen(address, timeout=20) as answer:
                status: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return 0
        return int(status.get("aliveworkers", 0))

    def last_words(self) -> str:
        logs = sorted(self._directory.glob("*.log"))
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in logs)

    def stop(self) -> None:
        """End every process that was started here, workers first."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
