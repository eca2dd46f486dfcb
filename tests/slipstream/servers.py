"""Real servers for tests: a NATS server and an S3 endpoint, each a process on loopback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from tests.clustor.runtime.waiting import free_ports


class NatsServer:
    """A nats-server of our own, with JetStream, that can die and come back on its port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def storage(self) -> Path:
        """Where it keeps its streams."""
        return self._directory / "jetstream-root"

    def start(self) -> None:
        """Start it and wait until it says that it is ready."""
        binary = Path(sys.executable).parent / "nats-server"
        command = [str(binary), "-a", "127.0.0.1", "-p", str(self._port), "-js"]
        command += ["-sd", str(self.storage)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        read_until(self._process.stderr, "Server is ready")

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._forget()

    def stop(self) -> None:
        """End it in order."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._forget()

    def _forget(self) -> None:
        assert self._process is not None
        self._process.wait()
        assert self._process.stderr is not None
        self._process = None


class S3Server:
    """An S3 endpoint that keeps everything in its memory."""

    def __init__(self) -> None:
        self._port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        read_until(self._process.stderr, "Running on")

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


def read_until(stream: IO[str], sign: str) -> None:
    """Read lines until one holds `sign`; go on reading in the background, or the pipe fills."""
    seen: list[str] = []
    for line in stream:
        seen.append(line)
        if sign in line:
            break
    else:
        raise AssertionError("the server did not start: " + "".join(seen))

    def drain() -> None:
        for _ in stream:
            pass
        stream.close()

    threading.Thread(target=drain, daemon=True).start()


def free_port() -> int:
    """Give a port that nobody listens on now."""
    return free_ports(1)[0]


def as_json(line: str) -> dict[str, object]:
    """Read one line of JSON that must be an object."""
    value = json.loads(line)
    assert isinstance(value, dict)
    return value
