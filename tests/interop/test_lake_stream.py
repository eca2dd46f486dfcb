"""`readStream.format("quantum")` over a running cluster, through a real Spark.

Micro-batches while clients publish and a broker is killed; what the cluster has compacted comes
from its archive; where that is away, or nothing is left, the query says so and goes on afterwards.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file, read_cluster_file
from clustor.runtime.development import prepare_cluster
from clustor.runtime.pki.identity import cluster_id, utc_now
from quantum.cli.admin_client import AdminUnreachable, fetch
from quantum.lake.archive import DirectoryKeys, PrgId
from quantum.lake.errors import SourceUnreachable
from quantum.lake.opening import open_source
from quantum.lake.schema import GAP, LOGGED, MESSAGE
from quantum.lake.session import spark_session
from quantum.tenants.broker_file import (
    BROKER_FILE,
    ArchiveEntry,
    TenantEntry,
    prepare_broker,
    read_broker_file,
)
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.test_mqtt_replay import Node
from tests.quantum.lake.conftest import SMALL
from tests.quantum.serving.client import connect

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Spark's own, of its dependencies
    pytest.mark.timeout(1800),  # a minute on an idle machine, many on a crowded one
]
DEADLINE_SECONDS = 600
PRG = PrgId("dev", 0)
LEADERS_GONE_MAX = 3  # one is killed; a machine that stands still elects another
PADDING = bytes(8_000)
CROWDED = "Python worker failed to connect back"
"""Spark waits ten seconds for its worker to start, however crowded a machine is."""


def small_logs(data: Path, base_port: int, archive: str) -> None:
    """Describe a cluster whose logs rotate, snapshot and compact after a few messages."""
    prepare_cluster(data, cluster_id("dev"), nodes=3, base_port=base_port, groups=1, now=utc_now())
    path = data / CLUSTER_FILE
    small = msgspec.structs.replace(
        read_cluster_file(path),
        segment_bytes=64 << 10,
        snapshot_log_bytes=200 << 10,
        patience=PATIENT,
    )
    path.write_bytes(encode_cluster_file(small))
    prepare_broker(data, TenantEntry("dev", 1))
    described = msgspec.structs.replace(
        read_broker_file(data), archive=ArchiveEntry(archive, flush_seconds=1)
    )
    (data / BROKER_FILE).write_bytes(msgspec.json.encode(described))


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so(condition):
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def is_so(condition: Callable[[], bool]) -> bool:
    """Say whether it holds; a cluster that is between two leaders does not say so."""
    try:
        return condition()
    except SourceUnreachable:
        return False


class Publisher:
    """Publishes at QoS 1 through whichever node answers, and again what was not acknowledged."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self.sent: Counter[bytes] = Counter()
        self._connections = 0

    def publish(self, names: list[bytes]) -> None:
        waiting = list(names)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while waiting:
            assert time.monotonic() < deadline, "nobody takes messages"
            self._connections += 1
            port = self._ports[self._connections % len(self._ports)]
            with (
                contextlib.suppress(OSError, AssertionError, EOFError),
                contextlib.ExitStack() as on,
            ):
                client = connect(Node(port), client_id=f"publisher-{self._connections}")
                on.callback(client.cut)
                while waiting:
                    self.sent[waiting[0]] += 1
                    client.publish(b"plant/1", waiting[0] + PADDING, 1)
                    waiting.pop(0)
                client.leave()


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    scratch = str(tmp_path / "spark")
    config = SMALL | {"spark.local.dir": scratch, "spark.sql.warehouse.dir": scratch}
    session = spark_session("local[1]", config=config)
    yield session
    session.stop()


def began(query: StreamingQuery) -> StreamingQuery:
    """Wait until a query does something, or has failed."""
    until(lambda: not query.isActive or query.lastProgress is not None, lambda: query)
    return query


def committed_files(log: Path) -> list[str]:
    """Name the files that count, as the log of Spark's sink has them: every tenth batch repeats
    those before it, and what a batch left that was not committed is in none."""
    batches = sorted((int(each.stem), each) for each in log.glob("[0-9]*"))
    whole = max((nth for nth, each in batches if each.suffix == ".compact"), default=-1)
    entries = [
        json.loads(line)
        for nth, each in batches
        if nth >= whole
        for line in each.read_text().splitlines()[1:]
    ]
    return [unquote(urlsplit(entry["path"]).path) for entry in entries if entry["action"] == "add"]


class Stream:
    """A query from a cluster into Parquet, by name: the same name goes on where it stopped."""

    def __init__(self, spark: SparkSession, out: Path, **options: str) -> None:
        self._spark = spark
        self._out = out
        self._options = options

    def go_on(self) -> None:
        """Start it again where it ended because no node answered: from where it stopped."""
        why = str(self.query.exception() or "")
        if "SourceUnreachable" in why or CROWDED in why:
            self.start()
        else:
            if why:
                print(why)  # whole: an assertion would cut it
            assert not why

    def start(self, *, now: bool = False) -> StreamingQuery:
        """Start it; where nothing but a slow start of Spark's own worker fails, again."""
        while CROWDED in str((query := began(self._start(now=now))).exception()):
            pass
        self.query = query
        return query

    def _start(self, *, now: bool) -> StreamingQuery:
        frame = self._spark.readStream.format("quantum").options(**self._options).load()
        names = ("raft_index", "sub_index", "gap_through", "row_kind", "payload")
        writer = (
            frame.select(*names)
            .writeStream.format("parquet")
            .option("path", str(self._out / "rows"))
            .option("checkpointLocation", str(self._out / "checkpoint"))
        )
        return (writer.trigger(availableNow=True) if now else writer).start()

    def rows(self) -> list[tuple[int, int | None, int | None, str, bytes]]:
        if not (self._out / "rows" / "_spark_metadata").exists():
            return []
        found = self._spark.read.parquet(str(self._out / "rows")).collect()
        rows = [
            (row[0], row[1], row[2], row[3], bytes(row[4] or b"").rstrip(b"\0")) for row in found
        ]
        places = Counter((row[0], row[1]) for row in rows)
        assert max(places.values(), default=1) == 1, places.most_common(3)
        return sorted(rows, key=lambda row: (row[0], row[1] or 0))

    def names(self) -> Counter[bytes]:
        """Count what was committed so far, without Spark: whoever waits asks often."""
        found: Counter[bytes] = Counter()
        for file in committed_files(self._out / "rows" / "_spark_metadata"):
            rows = pq.read_table(file, columns=["row_kind", "payload"]).to_pylist()
            found.update(
                bytes(row["payload"] or b"").rstrip(b"\0") for row in rows if row["row_kind"] != GAP
            )
        return found

    def run(self) -> None:
        """Read all there is now. Raises what Spark does, but for a slow start of its worker."""
        while True:
            try:
                assert self.start(now=True).awaitTermination(DEADLINE_SECONDS), "still running"
            except PySparkException as error:
                if CROWDED not in str(error):
                    raise
            else:
                return


def leader_of(cluster: ClusterProcess) -> int:
    found: int | None = None

    def is_known() -> bool:
        nonlocal found
        with contextlib.suppress(AdminUnreachable):
            code, answer = fetch(cluster.admin(1), "/v1/broker/status")
            found = answer["partitions"][0]["leader"] if code == 200 else None
        return found is not None

    cluster.until(is_known, "a leader")
    assert found is not None
    return found


def numbered(word: bytes, count: int) -> list[bytes]:
    return [b"%s-%04d" % (word, number) for number in range(count)]


def agree(found: Counter[bytes], publisher: Publisher) -> bool:
    """Each message has its row; more than one only where it was sent again: by its client, or by
    the node that the client came by, to the next leader."""
    return set(found) == set(publisher.sent) and all(
        found[name] <= publisher.sent[name] + LEADERS_GONE_MAX for name in found
    )


def has_all(stream: Stream, publisher: Publisher) -> bool:
    stream.go_on()
    return agree(stream.names(), publisher)


def has_run(stream: Stream, publisher: Publisher) -> bool:
    """Read all there is, as a node knows it: a follower hears of what is committed a bit later."""
    stream.run()
    return agree(stream.names(), publisher)


def test_a_stream_over_a_running_cluster(spark: SparkSession, tmp_path: Path) -> None:
    data, archive = tmp_path / "var", (tmp_path / "archive").as_uri()
    cluster = ClusterProcess(data, tenant_prgs=1, archive=archive)
    small_logs(data, cluster.base_port, archive)
    with cluster:
        ports = [cluster.base_port + 10 * node + 2 for node in (1, 2, 3)]
        cluster.until(lambda: all(Node(port).serves() for port in ports), "MQTT is served")
        admins = ",".join(map(str, cluster.admins()))
        keys = DirectoryKeys(str(data))
        live = {"cluster": admins, "keys": f"directory:{data}"}
        seen = tmp_path / "seen"  # where this reader has the archive mounted
        seen.symlink_to(tmp_path / "archive")
        both = {**live, "path": seen.as_uri(), "maxRecordsPerTrigger": "8"}
        publisher, stream = Publisher(ports), Stream(spark, tmp_path / "both", **both)

        # Micro-batches, while clients publish and brokers are killed.
        stream.start()
        publisher.publish(numbered(b"calm", 20))
        until(lambda: has_all(stream, publisher), stream.names)
        thread = threading.Thread(target=publisher.publish, args=(numbered(b"storm", 60),))
        thread.start()
        until(lambda: publisher.sent[b"storm-0010"] > 0, lambda: publisher.sent)
        cluster.kill(leader_of(cluster))
        thread.join(DEADLINE_SECONDS)
        until(lambda: has_all(stream, publisher), stream.names)
        written = list((tmp_path / "both" / "checkpoint" / "commits").glob("[0-9]*"))
        assert len(written) > 3, "one batch is no stream"
        stream.query.stop()
        read = max(row[0] for row in stream.rows())

        # What was compacted meanwhile comes from the archive, and is judged by its snapshots.
        publisher.publish(numbered(b"compacted", 90))
        feeds = [open_source(f"cluster:{admin}", keys) for admin in cluster.admins()]
        until(  # on every node: whichever answers, it has no more
            lambda: all(feed.bounds(PRG).first > read + 1 for feed in feeds),
            lambda: [feed.bounds(PRG) for feed in feeds],
        )
        seen.unlink()
        with pytest.raises(PySparkException) as caught:
            stream.run()
        assert "SourceUnreachable" in str(caught.value) and "dev/0" in str(caught.value)
        rows_only = Stream(spark, tmp_path / "both", **both, onGap="row")
        with pytest.raises(PySparkException, match="SourceUnreachable"):
            rows_only.run()  # an archive that is away is no gap
        seen.symlink_to(tmp_path / "archive")
        until(lambda: has_run(stream, publisher), stream.names)
        assert {row[3] for row in stream.rows()} == {MESSAGE}
        assert Counter(row[4] for row in stream.rows()) == stream.names()

        # Without an archive there is a gap, up to wherever the cluster has compacted by now.
        publisher.publish(numbered(b"last", 3))
        until(lambda: has_run(stream, publisher), stream.names)
        with pytest.raises(PySparkException) as gone:
            Stream(spark, tmp_path / "fail", **live).run()
        assert "LogGone" in str(gone.value) and "prg=dev/0, index=1" in str(gone.value)
        gaps = Stream(spark, tmp_path / "gaps", **live, onGap="row")
        gaps.run()
        found = gaps.rows()
        missing = [(row[0], row[2] or 0) for row in found if row[3] == GAP]
        assert missing[0][0] == 1 and missing[0][1] > read
        rest = [row for row in found if row[3] != GAP]
        assert {row[3] for row in rest} <= {LOGGED}
        wanted = [
            row[4]
            for row in stream.rows()
            if not any(first <= row[0] <= last for first, last in missing)
        ]
        assert [row[4] for row in rest] == wanted
