"""A data directory of an earlier build is opened by this one: nothing that it held is lost.

`tools/golden_directory.py` made them; one is added when a stored format changes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from quantum.protocols.mqtt.codec import ProtocolVersion, Publish
from tests.interop.broker_process import BrokerProcess
from tests.interop.test_half_open import Port
from tests.quantum.serving.client import V5, V311, Client, connect
from tools.golden_directory import CAPTURED, FOR_EVER, GOLDEN, QUEUED, STREAM

DIRECTORIES = sorted(GOLDEN.glob("*.tar.xz"))
FORMAT_VERSION = 1


def test_there_are_directories() -> None:
    assert DIRECTORIES


@pytest.mark.parametrize("packed", DIRECTORIES, ids=lambda path: path.name.partition(".")[0])
def test_what_an_earlier_build_kept_is_there(tmp_path: Path, packed: Path) -> None:
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    data = tmp_path / "var"
    for metadata in data.glob("node-1/state/*/metadata.json"):
        assert json.loads(metadata.read_bytes())["format_version"] == FORMAT_VERSION
    with BrokerProcess(data, partitions=1) as broker:
        check(broker)
        broker.kill()
        broker.start()  # what it wrote behind the old bytes can be read again
        assert [row["payload"]["text"] for row in captured(broker)] == [*numbers(CAPTURED), "new"]


def check(broker: BrokerProcess) -> None:
    door = Port(broker.mqtt)
    check_queue(come_back(door, "away", V5), [1 + number % 2 for number in range(QUEUED)])
    check_queue(come_back(door, "old", V311), [1] * QUEUED)
    late = connect(door, V5, client_id="late")
    late.subscribe(b"retained/#", 1)
    assert sorted(late.take().topic for _ in range(2)) == [b"retained/kept/0", b"retained/kept/1"]
    late.expect_quiet()
    rows = captured(broker)
    assert [row["payload"]["text"] for row in rows] == numbers(CAPTURED)
    assert [int(row["offset"]) for row in rows] == list(range(CAPTURED))
    assert [row["address"] for row in rows] == [f"sensors/{n % 3}" for n in range(CAPTURED)]
    assert not late.publish(b"sensors/1", b"new", 1).is_failure
    late.cut()


def come_back(door: Port, client_id: str, version: ProtocolVersion) -> Client:
    asked = {"session_expiry_interval": FOR_EVER} if version is V5 else {}
    client = connect(door, version, client_id=client_id, clean=False, **asked)  # type: ignore[arg-type]
    assert client.connack.session_present
    return client


def check_queue(client: Client, qos: list[int]) -> None:
    """See that all that was queued comes, each topic in its order."""
    got: list[Publish] = [client.take() for _ in qos]
    for topic in range(2):
        mine = [int(each.payload) for each in got if each.topic == b"queue/%d" % topic]
        assert mine == list(range(topic, QUEUED, 2))
    assert sorted(each.qos for each in got) == sorted(qos)
    client.expect_quiet()
    client.cut()


def captured(broker: BrokerProcess) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "quantum.cli", "streams", "read", STREAM, "--json"]
    command += ["--admin", str(broker.admin)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]
