"""Rows of real brokers: each acknowledged publish once, from a directory, an archive and a feed."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from quantum.archive.types import PrgId
from quantum.lake.archive import DirectoryKeys, KeyProvider, LogSource
from quantum.lake.errors import BadAddress, SourceUnreachable
from quantum.lake.feed.client import ClusterSource
from quantum.lake.offsets import Offsets
from quantum.lake.opening import open_source
from quantum.lake.planner import BatchLimits, Cutting, plan
from quantum.lake.reader import offer_of, read_task
from quantum.lake.schema import MESSAGE
from tests.interop.broker_process import BrokerProcess
from tests.interop.test_mqtt_replay import Node
from tests.quantum.serving.client import connect

COLUMNS = ["prg", "raft_index", "sub_index", "payload", "qos", "publisher"]
COLUMNS += ["origin_prg", "origin_term", "row_kind"]


def publish(port: int, client: str, count: int, qos: int, *, lasting: bool = False) -> list[bytes]:
    """Publish to topics of every partition, and wait for each answer."""
    publisher = connect(
        Node(port), client_id=client, clean=not lasting, session_expiry_interval=100 * lasting
    )
    payloads = [b"%b-%d-%d" % (client.encode(), qos, number) for number in range(count)]
    for number, payload in enumerate(payloads):
        publisher.publish(b"t/%d" % (number % 7), payload, qos)
    publisher.leave()
    publisher.cut()
    return payloads


def rows(source: LogSource, start: Offsets) -> tuple[pa.Table, Offsets]:
    batches, end = batches_of(source, start)
    return pa.Table.from_batches(batches), end


def batches_of(source: LogSource, start: Offsets) -> tuple[list[pa.RecordBatch], Offsets]:
    offers = {prg: offer_of(source, prg) for prg in source.prgs()}
    end, tasks = plan(start, offers, BatchLimits(), cutting=Cutting(task_bytes=2_000))
    return [batch for task in tasks for batch in read_task(source, task, COLUMNS)], end


def payloads_of(table: pa.Table) -> Counter[bytes]:
    assert set(table.column("row_kind").to_pylist()) == {MESSAGE}
    return Counter(table.column("payload").to_pylist())


def way_of(row: dict[str, object]) -> str:
    """Say how a message came to its topic's partition."""
    if row["prg"] == row["origin_prg"]:
        return "here"
    return "stream" if row["origin_term"] is None else "passed on"


def wait_for_archive(broker: BrokerProcess, archive: str, keys: KeyProvider, wanted: int) -> None:
    """Wait for the archive itself: what the broker says of it may be a moment old."""
    deadline = time.monotonic() + 180
    while _count(open_source(archive, keys)) < wanted:
        assert time.monotonic() < deadline, broker.page("/v1/archive")
        time.sleep(0.02)


def wait_for_rows(source: LogSource, wanted: int) -> None:
    deadline = time.monotonic() + 180
    while (found := _count(source)) < wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def _count(source: LogSource) -> int:
    try:
        return sum(batch.num_rows for batch in batches_of(source, Offsets())[0])
    except BadAddress:
        return 0  # not every partition has begun


def test_every_source_gives_the_same_rows(tmp_path: Path) -> None:
    var, archive = tmp_path / "var", (tmp_path / "archive").as_uri()
    keys = DirectoryKeys(str(var))
    with BrokerProcess(var, archive=archive) as broker:
        sent = publish(broker.mqtt, "one", 30, 1)
        sent += publish(broker.mqtt, "two", 20, 2)
        sent += publish(broker.mqtt, "lasting", 20, 2, lasting=True)
        feed = open_source(f"cluster:{broker.admin}", keys)
        wait_for_rows(feed, len(sent))  # a lasting session's QoS 2 counts before it is passed on
        live, _ = rows(feed, Offsets())
        assert payloads_of(live) == Counter(sent)
        ways = Counter(map(way_of, live.to_pylist()))
        assert min(ways[way] for way in ("here", "passed on", "stream")) > 3, ways
        wait_for_archive(broker, archive, keys, len(sent))
        assert broker.interrupt() == 0
    order = [("prg", "ascending"), ("raft_index", "ascending"), ("sub_index", "ascending")]
    stopped, _ = rows(open_source(str(var), keys), Offsets())
    archived, _ = rows(open_source(archive, keys), Offsets())
    assert stopped.sort_by(order).equals(live.sort_by(order))
    assert archived.sort_by(order).equals(live.sort_by(order))


def test_a_broker_that_goes_away_is_waited_for_and_named(tmp_path: Path) -> None:
    keys = DirectoryKeys(str(tmp_path / "var"))
    with BrokerProcess(tmp_path / "var") as broker:
        sent = publish(broker.mqtt, "one", 20, 1)
        patient = ClusterSource((str(broker.admin),), keys)
        _, end = rows(patient, Offsets())
        sent_later = publish(broker.mqtt, "later", 20, 1)
        prg = PrgId("dev", 0)
        offer = offer_of(patient, prg)
        _, tasks = plan(end, {prg: offer}, BatchLimits())
        source = ClusterSource((str(broker.admin),), keys, patience_seconds=0.3)
        broker.kill()
        with pytest.raises(SourceUnreachable) as caught:
            list(read_task(source, tasks[0], COLUMNS))
        assert (caught.value.prg, caught.value.index) == (prg, tasks[0].first)
        broker.start()
        table, _ = rows(patient, end)
        assert payloads_of(table) == Counter(sent_later)
        assert payloads_of(rows(patient, Offsets())[0]) == Counter(sent + sent_later)
