"""The archive and the feed of real brokers: what was acknowledged is read back, exactly."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clustor.log.types import Entry, EntryKind
from clustor.replica import decode_batch
from clustor.replica.header import split_header
from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file, read_cluster_file
from clustor.runtime.development import prepare_cluster
from clustor.runtime.keystore import create_keyring
from clustor.runtime.pki import cluster_id, utc_now
from quantum.archive import open_objects, verify_prg
from quantum.cli.admin_client import fetch
from quantum.lake.archive import Bounds, DirectoryKeys, IndexRange, LogSource, PrgId, open_source
from quantum.lake.errors import LogGone, NotPermitted, SourceUnreachable
from quantum.lake.feed import ClusterSource
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


def settled(broker: BrokerProcess) -> bool:
    """Say whether everything is archived, and compaction has nothing left to wait for."""
    return all(row["behind"] == 0 and not row["compaction_hold"] for row in archived(broker))


def read_live(live: LogSource, prg: PrgId) -> tuple[Bounds, list[Entry]]:
    """Read all that the feed has; compaction may overtake us."""
    while True:
        bounds = live.bounds(prg)
        try:
            return bounds, list(live.entries(IndexRange(prg, bounds.first, bounds.last)))
        except LogGone:
            continue


def small_logs(data: Path) -> None:
    """Make a broker's directory whose logs rotate, snapshot and compact after a few messages."""
    prepare_cluster(data, cluster_id("dev"), nodes=1, base_port=9_090, groups=1, now=utc_now())
    path = data / CLUSTER_FILE
    wanted = msgspec.structs.replace(
        read_cluster_file(path), segment_bytes=64 << 10, snapshot_log_bytes=200 << 10
    )
    path.write_bytes(encode_cluster_file(wanted))


def test_a_feed_falls_through_to_the_archive_where_the_log_was_compacted(tmp_path: Path) -> None:
    messages = [b"message-%04d-" % number + bytes(8_000) for number in range(120)]
    archive, keys = (tmp_path / "archive").as_uri(), DirectoryKeys(str(tmp_path / "var"))
    small_logs(tmp_path / "var")
    with BrokerProcess(tmp_path / "var", archive=archive, partitions=1) as broker:
        publish(broker.mqtt, messages)
        live = open_source(f"cluster:{broker.admin}", keys)
        prg = PrgId("dev", 0)
        until(lambda: live.bounds(prg).first > 50, lambda: archived(broker))
        until(lambda: settled(broker), lambda: archived(broker))
        publish(broker.mqtt, [b"more-1", b"more-2"], "another")
        bounds, tail = read_live(live, prg)
        assert [entry.index for entry in tail] == list(range(bounds.first, bounds.last + 1))
        listing = open_source(archive, keys).bounds(prg)
        assert listing.last >= bounds.first - 1, "the log waited for its archive"
        with pytest.raises(LogGone) as gone:
            list(live.entries(IndexRange(prg, 1, bounds.last)))
        assert gone.value.first == 1
        assert gone.value.readable_from is not None and gone.value.readable_from >= bounds.first

        both: LogSource = pickle.loads(
            pickle.dumps(open_source(f"cluster:{broker.admin}+{archive}", keys))
        )
        whole = both.bounds(prg)
        assert (whole.first, whole.last) == (1, live.bounds(prg).last)
        edges = [(piece.first, piece.last) for piece in whole.pieces]
        assert edges[0][0] == 1 and edges[-1][1] == whole.last
        assert all(before[1] + 1 == after[0] for before, after in pairwise(edges))
        found = commands(both)
        assert all(found.count(message[:13]) == 1 for message in messages)
        assert len(both.snapshots(prg)) >= 1
        snapshot = both.snapshots(prg)[-1]
        header, content = split_header(both.open_snapshot(snapshot))
        assert header.base_index == snapshot.base_index
        assert sum(map(len, content)) > 0

        create_keyring(tmp_path / "other")
        stranger = open_source(f"cluster:{broker.admin}", DirectoryKeys(str(tmp_path / "other")))
        with pytest.raises(NotPermitted):
            list(stranger.entries(IndexRange(prg, bounds.last, bounds.last)))
        assert broker.interrupt() == 0
    gone_now = ClusterSource((str(broker.admin),), keys, patience_seconds=0.1)
    with pytest.raises(SourceUnreachable):
        gone_now.bounds(prg)


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
