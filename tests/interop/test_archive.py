"""The archive and the feed of real brokers: what was acknowledged is read back, exactly."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import pytest

from clustor.log.types import Entry, EntryKind
from clustor.replica import decode_batch
from clustor.replica.header import split_header
from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file, read_cluster_file
from clustor.runtime.development import prepare_cluster
from clustor.runtime.keys.store import create_keyring
from clustor.runtime.pki.identity import cluster_id, utc_now
from quantum.archive import open_objects, verify_prg
from quantum.cli.admin_client import AdminUnreachable, fetch
from quantum.lake.archive import Bounds, DirectoryKeys, IndexRange, LogSource, PrgId
from quantum.lake.archive.object_source import ArchiveSource
from quantum.lake.errors import BadAddress, LogGone, NotPermitted, SourceUnreachable
from quantum.lake.feed.client import ClusterSource
from quantum.lake.opening import open_source
from quantum.tenants.broker_file import (
    BROKER_FILE,
    ArchiveEntry,
    TenantEntry,
    prepare_broker,
    read_broker_file,
)
from tests.interop.broker_process import BrokerProcess
from tests.interop.cluster_process import PATIENT, ClusterProcess, is_so
from tests.interop.test_mqtt_replay import Node
from tests.quantum.serving.client import connect
from tests.slipstream.servers import S3Server


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
    rows: list[dict[str, Any]] = broker.page("/v1/archive")["partitions"]
    return rows


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 180
    while not is_so(condition):
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def asked(broker: BrokerProcess, path: str) -> int:
    """Return the code with which a page is answered."""
    codes: list[int] = []

    def answered() -> bool:
        codes.append(fetch(broker.admin, path)[0])
        return True

    until(answered, broker.last_words)
    return codes[0]


def whole(archive: str, root: Path) -> set[bytes]:
    """Name the messages that an archive holds now."""
    try:
        held = commands(open_source(archive, DirectoryKeys(str(root / "var"))))
    except BadAddress:
        return set()  # not every partition has begun
    return set(re.findall(rb"message-\d{4}|after-the-kill", held))


def test_what_a_broker_acknowledged_is_in_its_archive_soon(tmp_path: Path) -> None:
    messages = [b"message-%04d" % number for number in range(50)]
    archive = (tmp_path / "archive").as_uri()
    with BrokerProcess(tmp_path / "var", archive=archive) as broker:
        publish(broker.mqtt, messages)
        until(lambda: set(messages) <= whole(archive, tmp_path), lambda: archived(broker))
        broker.kill()
        broker.start()
        publish(broker.mqtt, [b"after-the-kill"])
        until(lambda: b"after-the-kill" in whole(archive, tmp_path), lambda: archived(broker))
        assert broker.interrupt() == 0
    source = open_source(archive, DirectoryKeys(str(tmp_path / "var")))
    assert [str(prg) for prg in source.prgs()] == ["dev/0", "dev/1", "dev/2"]
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
    return all(row["behind"] == "0" and not row["compaction_hold"] for row in archived(broker))


def read_live(live: LogSource, prg: PrgId) -> tuple[Bounds, list[Entry]]:
    """Read all that the feed has; compaction may overtake us."""
    while True:
        bounds = live.bounds(prg)
        try:
            return bounds, list(live.entries(IndexRange(prg, bounds.first, bounds.last)))
        except LogGone:
            continue


def is_compacted(live: LogSource, prg: PrgId, through: int) -> bool:
    """Say whether the feed no longer has so much; a busy broker may not say anything at all."""
    with contextlib.suppress(SourceUnreachable):
        return live.bounds(prg).first > through
    return False


def small_logs(data: Path) -> None:
    """Make a broker's directory whose logs rotate, snapshot and compact after a few messages."""
    prepare_cluster(data, cluster_id("dev"), nodes=1, base_port=9_090, groups=1, now=utc_now())
    path = data / CLUSTER_FILE
    wanted = msgspec.structs.replace(
        read_cluster_file(path),
        segment_bytes=64 << 10,
        snapshot_log_bytes=200 << 10,
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
        until(lambda: is_compacted(live, prg, 50), lambda: archived(broker))
        until(lambda: settled(broker), lambda: archived(broker))
        publish(broker.mqtt, [b"more-%d-" % n + bytes(8_000) for n in range(12)], "another")
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
        before, whole, after = live.bounds(prg), both.bounds(prg), live.bounds(prg)
        assert whole.first == 1
        assert before.last <= whole.last <= after.last
        edges = [(piece.first, piece.last) for piece in whole.pieces]
        assert edges[0][0] == 1 and edges[-1][1] == whole.last
        assert all(before[1] + 1 == after[0] for before, after in pairwise(edges))
        found = commands(both)
        assert all(found.count(message[:13]) == 1 for message in messages)
        assert ArchiveSource(archive, keys).tenant_entry("dev") == TenantEntry("dev", 1)
        assert len(both.snapshots(prg)) >= 1
        snapshot = both.snapshots(prg)[-1]
        header, content = split_header(both.open_snapshot(snapshot))
        assert header.base_index == snapshot.base_index
        assert sum(map(len, content)) > 0

        for path, code in (
            ("/v1/feed/dev/9?from=1", 404),
            ("/v1/feed/nobody/0?from=1", 404),
            ("/v1/feed/dev/0", 400),
            ("/v1/feed/dev/x?from=1", 400),
            ("/v1/feed/dev/0?from=0", 400),
            ("/v1/feed/dev/0?from=1&bytes=999999999", 400),
            ("/v1/feed/dev/0?from=1", 403),
        ):
            assert asked(broker, path) == code, path

        create_keyring(tmp_path / "other")
        stranger = open_source(f"cluster:{broker.admin}", DirectoryKeys(str(tmp_path / "other")))
        last = live.bounds(prg).last
        with pytest.raises(NotPermitted):
            list(stranger.entries(IndexRange(prg, last, last)))
        assert broker.interrupt() == 0
    gone_now = ClusterSource((str(broker.admin),), keys, patience_seconds=0.1)
    with pytest.raises(SourceUnreachable):
        gone_now.bounds(prg)


@pytest.fixture
def s3_archive(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = S3Server()
    with urlopen(Request(f"{server.url}/archive", method="PUT")) as answer:
        assert answer.status == 200
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield "s3://archive/of/a/cluster"
    server.stop()


def archiving_cluster(data: Path, archive: str, base_port: int, partitions: int = 1) -> None:
    """Describe a cluster of three nodes that archives its partitions."""
    now = utc_now()
    made = prepare_cluster(data, cluster_id("dev"), nodes=3, base_port=base_port, groups=1, now=now)
    patient = msgspec.structs.replace(made, patience=PATIENT)  # nobody leads but who is told to
    (data / CLUSTER_FILE).write_bytes(encode_cluster_file(patient))
    prepare_broker(data, TenantEntry("dev", partitions))
    described = msgspec.structs.replace(
        read_broker_file(data), archive=ArchiveEntry(archive, flush_seconds=1)
    )
    (data / BROKER_FILE).write_bytes(msgspec.json.encode(described))


def test_a_cluster_archives_on_whoever_leads_it(tmp_path: Path, s3_archive: str) -> None:
    data, keys, prg = tmp_path / "var", DirectoryKeys(str(tmp_path / "var")), PrgId("dev", 0)
    cluster = ClusterProcess(data, tenant_prgs=1, restart=False)
    archiving_cluster(data, s3_archive, cluster.base_port)
    messages: list[bytes] = []

    def leader(at: int) -> int | None:
        try:
            code, answer = fetch(cluster.admin(at), "/v1/broker/status")
        except AdminUnreachable:
            return None
        rows = answer.get("partitions", ()) if code == 200 else ()
        found: int | None = rows[0]["leader"] if rows else None  # none where it has just started
        return found

    def publish_at(node: int, count: int) -> None:
        fresh = [b"message-%04d" % (len(messages) + number) for number in range(count)]
        publish(cluster.base_port + 10 * node + 2, fresh, f"publisher-{len(messages)}")
        messages.extend(fresh)

    def caught_up(at: int) -> bool:
        code, answer = fetch(cluster.admin(at), "/v1/archive")
        rows = answer.get("partitions", ()) if code == 200 else ()
        return any(
            row["leads"] and row["behind"] == "0" and row["archived_index"] != "0" for row in rows
        )

    def tells_all(live: LogSource) -> bool:
        """A follower hears of what is committed a bit later."""
        try:
            told = commands(live)
        except (SourceUnreachable, LogGone):
            return False
        assert all(told.count(message) <= 1 for message in messages)
        return all(message in told for message in messages)

    def led_among(*nodes: int) -> int:
        found: set[int | None] = set()

        def agreed() -> bool:
            found.clear()
            found.update(leader(node) for node in nodes)
            return len(found) == 1 and found <= set(nodes)

        cluster.until(agreed, f"one of {nodes} leads, and they know it")
        (one,) = found
        assert one is not None
        return one

    with cluster:
        old = led_among(1, 2, 3)
        cluster.until(Node(cluster.base_port + 10 * old + 2).serves, "it serves")
        publish_at(old, 40)
        cluster.until(lambda: caught_up(old), "the leader archived all")
        cluster.kill(old)
        alive = [node for node in (1, 2, 3) if node != old]
        new = led_among(*alive)
        cluster.until(Node(cluster.base_port + 10 * new + 2).serves, "it serves")
        publish_at(new, 40)
        cluster.until(lambda: caught_up(new), "the new one goes on")
        for node in alive:
            live = open_source(f"cluster:{cluster.admin(node)}", keys)
            cluster.until(lambda live=live: tells_all(live), f"node {node} tells of everything")  # type: ignore[misc]
        other = next(node for node in alive if node != new)
        os.kill(cluster.pid(other), signal.SIGSTOP)
        impatient = ClusterSource((str(cluster.admin(new)),), keys, patience_seconds=0)

        def refusal() -> str:
            try:
                impatient.bounds(prg)
            except SourceUnreachable as error:
                return error.reason
            return ""

        cluster.until(lambda: "leader" in refusal(), "a node without a quorum refuses")
        os.kill(cluster.pid(other), signal.SIGCONT)
        cluster.until(lambda: not refusal(), "it serves again")
        dead_first = f"cluster:{cluster.admin(old)},{cluster.admin(new)}"
        assert open_source(dead_first, keys).bounds(prg).last > 0
    found = commands(open_source(s3_archive, keys))
    assert all(found.count(message) == 1 for message in messages)
    verified = verify_prg(open_objects(s3_archive), prg, keys.keyring(prg))
    assert verified.sound
    wrote = {row.log_id for row in verified.listing.segments}
    assert len(wrote) >= 2, "both leaders wrote it; the third node, where it was elected at last"
    stopped = open_source(str(data), keys)
    span = IndexRange(prg, 1, verified.listing.last)
    assert list(open_source(s3_archive, keys).entries(span)) == list(stopped.entries(span))


@pytest.mark.soak
def test_a_broker_killed_at_any_time_leaves_a_sound_archive_of_all_it_acknowledged(
    tmp_path: Path,
) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    rng = random.Random(seed)
    archive, keys = (tmp_path / "archive").as_uri(), DirectoryKeys(str(tmp_path / "var"))
    small_logs(tmp_path / "var")
    acknowledged: list[bytes] = []
    prg = PrgId("dev", 0)
    with BrokerProcess(tmp_path / "var", archive=archive, partitions=1) as broker:
        for life in range(8):
            killer = threading.Timer(rng.uniform(0.05, 2.0), broker.kill)
            killer.start()
            with contextlib.suppress(OSError, AssertionError, EOFError), ExitStack() as stack:
                publisher = connect(Node(broker.mqtt), client_id=f"life-{life}")
                stack.callback(publisher.cut)
                for number in range(10_000):
                    message = b"life-%d-message-%05d-" % (life, number)
                    publisher.publish(b"t", message + bytes(4_000), 1)
                    acknowledged.append(message)
            killer.join()
            verified = verify_prg(open_objects(archive), prg, keys.keyring(prg))
            assert verified.sound, verified.findings
            broker.start()
        until(lambda: settled(broker), lambda: archived(broker))
        found = commands(open_source(f"cluster:{broker.admin}+{archive}", keys))
        missing = [message for message in acknowledged if found.count(message) != 1]
        assert not missing
        assert len(acknowledged) > 50
