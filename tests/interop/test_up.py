"""`quantum up` as a user meets it: it starts, serves every way in, and survives `kill -9`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clustor.runtime.waiting import free_ports

QUANTUM = "from quantum.cli import main; main()"
READY_SECONDS = 180.0
UNREACHABLE = 12
TRIES = 5


def quantum(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", QUANTUM, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )


def answered(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a client; once more where a slow broker took longer to answer than a client waits."""
    ran = quantum(*arguments)
    for _ in range(TRIES):
        if ran.returncode != UNREACHABLE:
            break
        ran = quantum(*arguments)
    return ran


class Broker:
    """A broker of its own: its data, its ports, and what it said."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.mqtt, self.mqtts, self.ws, self.amqp, self.admin = free_ports(5)

    @property
    def flags(self) -> list[str]:
        ways = {"mqtt": self.mqtt, "mqtts": self.mqtts, "ws": self.ws, "admin": self.admin}
        ways["amqp"] = self.amqp
        addresses = [part for way, port in ways.items() for part in (f"--{way}", at(port))]
        return ["up", "--data", str(self.data), *addresses]

    @contextmanager
    def running(self, *more: str) -> Iterator[subprocess.Popen[str]]:
        log = self.data.parent / "up.log"
        with (
            log.open("a") as written,
            subprocess.Popen(
                [sys.executable, "-c", QUANTUM, *self.flags, *more],
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
            ) as process,
        ):
            late = threading.Timer(READY_SECONDS, process.kill)
            late.start()
            try:
                assert process.stdout is not None
                first = process.stdout.readline()
                late.cancel()
                assert first.startswith("Quantum is ready"), log.read_text()
                yield process
            finally:
                late.cancel()
                process.kill()


def at(port: int) -> str:
    return f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("up") / "var")
    with broker.running():
        yield broker


@pytest.mark.parametrize("proto", ["3.1", "3.1.1", "5"])
def test_every_version_publishes_and_subscribes(broker: Broker, proto: str) -> None:
    port = ["--port", str(broker.mqtt), "--proto", proto]
    done = answered("pub", f"v/{proto}", "hello", "--retain", "--qos", "2", *port)
    assert done.returncode == 0, done.stderr
    found = answered("sub", f"v/{proto}", "--count", "1", "--timeout", "180", "--json", *port)
    assert json.loads(found.stdout)["payload"] == "hello"


def test_a_client_with_a_certificate_comes_in_by_tls(broker: Broker) -> None:
    issued = json.loads(
        quantum("cert", "issue", "lamp", "--data", str(broker.data), "--json").stdout
    )
    tls = ["--port", str(broker.mqtts), "--ca", issued["authority"]]
    mine = ["--cert", issued["certificate"], "--key", issued["key"]]
    done = answered("pub", "tls", "hello", *tls, *mine)
    assert done.returncode == 0, done.stderr
    without = answered("pub", "tls", "hello", *tls)
    assert without.returncode == 1
    assert "certificate required" in without.stderr


def test_the_line_that_cert_issue_shows_works(broker: Broker) -> None:
    if shutil.which("mosquitto_pub") is None:
        pytest.skip("mosquitto_pub is not installed")
    shown = quantum("cert", "issue", "lamp-2", "--data", str(broker.data)).stdout
    (line,) = (line.strip() for line in shown.splitlines() if "mosquitto_pub" in line)
    subprocess.run([*line.split(), "-q", "1"], check=True, timeout=300)


def test_what_was_acknowledged_survives_kill_nine(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "var")
    port = ["--port", str(broker.mqtt)]
    with broker.running() as process:
        done = answered("pub", "kept", "for ever", "--retain", "--qos", "1", *port)
        assert done.returncode == 0, done.stderr
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with broker.running() as process:
        found = answered("sub", "kept", "--count", "1", "--timeout", "180", *port)
        assert found.stdout == "for ever\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(180) == 0


def partitions_of(broker: Broker) -> int:
    done = answered("status", "--admin", at(broker.admin), "--json")
    return len(json.loads(done.stdout)["partitions"])


def test_a_broker_has_one_partition_unless_it_was_made_with_more(
    broker: Broker, tmp_path: Path
) -> None:
    assert partitions_of(broker) == 1
    larger = Broker(tmp_path / "var")
    with larger.running("--tenant-prgs", "3"):
        assert partitions_of(larger) == 3
    with larger.running():
        assert partitions_of(larger) == 3


def test_a_second_broker_on_the_same_data_or_port_is_told(broker: Broker, tmp_path: Path) -> None:
    again = quantum(*broker.flags)
    assert again.returncode == 3
    assert "another process has the data directory open" in again.stderr
    other = Broker(tmp_path / "var")
    other.mqtt = broker.mqtt
    taken = quantum(*other.flags)
    assert taken.returncode == 8
    assert f"address={at(broker.mqtt)}" in "".join(taken.stderr.split("\n"))
    assert "Traceback" not in taken.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    {
        "plaintext for the world": (["--mqtt", "0.0.0.0:1883"], "--mqtt is '0.0.0.0:1883'"),
        "an address that is none": (["--mqtts", "x"], "--mqtts is 'x', and must be HOST:PORT"),
        "partitions beyond number": (["--tenant-prgs", "513"], "a whole number from 0 to 512"),
        "no such file": (["--config", "nowhere.toml"], "cannot read nowhere.toml"),
    }.values(),
)
def test_wrong_settings_are_one_sentence(flags: list[str], says: str, tmp_path: Path) -> None:
    data = tmp_path / "var"
    done = quantum("up", "--data", str(data), *flags)
    assert done.returncode == 2
    assert says in done.stderr.replace("\n", " ")
    assert not data.exists()
