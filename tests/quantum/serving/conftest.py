"""Two brokers for the same tests: one in this process that has no clock, and a real one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.mqtt_broker import running_broker
from tests.quantum.serving.client import Dialer, SocketLine
from tests.quantum.serving.lab import Lab


class ProcessBroker:
    """A broker behind a port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lines: list[SocketLine] = []

    def dial(self) -> SocketLine:
        line = SocketLine(self._port)
        self._lines.append(line)
        return line

    def hang_up(self) -> None:
        """End every connection that a test left open."""
        for line in self._lines:
            line.cut()
        self._lines.clear()


@pytest.fixture(scope="session")
def process_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBroker]:
    data: Path = tmp_path_factory.mktemp("broker")
    with running_broker(data) as port:
        yield ProcessBroker(port)
    for state in list(data.rglob("state")):  # what the node said stays
        shutil.rmtree(state, ignore_errors=True)


@pytest.fixture
def lab() -> Lab:
    """A broker of which a test may move the time."""
    return Lab()


@pytest.fixture(params=["lab", "process"])
def broker(request: pytest.FixtureRequest) -> Iterator[Dialer]:
    """A broker that speaks MQTT: every statement holds for both."""
    if request.param == "lab":
        yield Lab()
        return
    process: ProcessBroker = request.getfixturevalue("process_broker")
    yield process
    process.hang_up()
