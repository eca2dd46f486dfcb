"""The archive and the feed of real brokers: what was acknowledged is read back, exactly."""

from __future__ import annotations

import pickle
from pathlib import Path

from clustor.log.types import EntryKind
from clustor.replica import decode_batch
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
