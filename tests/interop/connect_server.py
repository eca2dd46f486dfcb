"""A real Spark Connect server on loopback, in a process of its own, that knows nothing of us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pyspark

from quantum.lake.java import java_home
from tests.clustor.runtime.waiting import free_base_port

HOST = "127.0.0.1"
DEADLINE_SECONDS = 600.0


class ConnectServer:
    """`with ConnectServer(tmp_path) as server: … SPARK_REMOTE=server.remote`."""

    def __init__(self, directory: Path, *, py_files: Path | None = None) -> None:
        self._directory = directory
        self._py_files = py_files
        self._port = free_base_port(1) + 11
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def remote(self) -> str:
        return f"sc://{HOST}:{self._port}"

    def __enter__(self) -> Self:
        home = Path(str(pyspark.__file__)).parent
        environment = {key: os.environ[key] for key in os.environ if key != "PYTHONPATH"}
        environment |= {
            "JAVA_HOME": java_home(),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
            "SPARK_LOG_DIR": str(self._directory / "logs"),
            "SPARK_PID_DIR": str(self._directory),
            "PYSPARK_PYTHON": sys.executable,
        }
        settings = {
            # Eight tries of a task: Spark gives a Python worker ten seconds to start, and in
            # local mode a job fails with the first that did not.
            "spark.master": "local[1,8]",
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.driver.host": HOST,
            "spark.driver.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": str(self._directory / "warehouse"),
        }
        command = [str(home / "sbin" / "start-connect-server.sh"), "--wait"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += [] if self._py_files is None else ["--py-files", str(self._py_files)]
        with (self._directory / "connect.log").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._wait()
        return self

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            assert self._process.poll() is None, self.last_words()
            assert time.monotonic() < deadline, f"never came up\n{self.last_words()}"
            try:
                socket.create_connection((HOST, self._port), 1).close()
                return
            except OSError:
                time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def last_words(self) -> str:
        logs = [self._directory / "connect.log", *(self._directory / "logs").glob("*")]
        return "\n".join(log.read_text(errors="replace")[-4000:] for log in logs)
