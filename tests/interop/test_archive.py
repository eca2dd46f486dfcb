"""The archive and the feed of real brokers: what was acknowledged is read back, exactly."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clustor.log.types import EntryKind
from clustor.replica import decode_batch
from quantum.archive import open_objects, verify_prg
from quantum.cli.admin_client import fetch
from quantum.lake.archive import DirectoryKeys, IndexRange, LogSource, open_source
from tests.interop.broker_process import BrokerProcess
from tests.interop.test_mqtt_replay import Node
from tests.quantum.serving.client import connect


def publish(port: int, messages: list[bytes], client: str = "publisher") -> None:
    publisher = connect(Node(port), client_id=client)
    for number, message in enumerate(messages):
        publisher.publish(b"t/%d" % (number % 5), message, 1)
    publisher.leave()
    publisher.cut()


def commands(source: LogSource) -> bytes:
    """Everything that the logs hold, one after another."""
    found = bytearray()
    for prg in source.prgs():
        bounds = source.bounds(prg)
        for entry in source.entries(IndexRange(prg, bounds.first, bounds.last)):
            if entry.kind is EntryKind.DATA:
                found += b"".join(decode_batch(entry.payload))
    return bytes(found)


def archived(broker: BrokerProcess) -> list[dict[str, Any]]:
    code, answer = fetch(broker.admin, "/broker/archive")
    assert code == 200
    rows: list[dict[str, Any]] = answer["partitions"]
    return rows


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def test_what_a_broker_acknowledged_is_in_its_archive_soon(tmp_path: Path) -> None:
    messages = [b"message-%04d" % number for number in range(50)]
    archive = (tmp_path / "archive").as_uri()
    with BrokerProcess(tmp_path / "var", archive=archive) as broker:
        publish(broker.mqtt, messages)
        until(lambda: all(row["behind"] == 0 for row in archived(broker)), lambda: archived(broker))
        found = commands(open_source(archive, DirectoryKeys(str(tmp_path / "var"))))
        assert all(found.count(message) == 1 for message in messages)
        broker.kill()
        broker.start()
        publish(broker.mqtt, [b"after-the-kill"])
        until(lambda: all(row["behind"] == 0 for row in archived(broker)), lambda: archived(broker))
        assert broker.interrupt() == 0
    source = open_source(archive, DirectoryKeys(str(tmp_path / "var")))
    found = commands(source)
    assert all(found.count(message) == 1 for message in [*messages, b"after-the-kill"])
    stopped = open_source(str(tmp_path / "var"), DirectoryKeys(str(tmp_path / "var")))
    for prg in source.prgs():
        last = source.bounds(prg).last
        span = IndexRange(prg, 1, last)
        assert list(source.entries(span)) == list(stopped.entries(span))
    for prg in source.prgs():
        assert verify_prg(open_objects(archive), prg, None).sound


def test_a_stopped_brokers_directory_gives_everything_acknowledged(tmp_path: Path) -> None:
    messages = [b"message-%04d" % number for number in range(50)]
    with BrokerProcess(tmp_path / "var") as broker:
        publish(broker.mqtt, messages)
        assert broker.interrupt() == 0
    source = open_source(str(tmp_path / "var"), DirectoryKeys(str(tmp_path / "var")))
    assert [str(prg) for prg in source.prgs()] == ["dev/0", "dev/1", "dev/2"]
    found = commands(source)
    assert all(found.count(message) == 1 for message in messages)
    again: LogSource = pickle.loads(pickle.dumps(source))
    assert commands(again) == found
