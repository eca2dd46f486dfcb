"""A cluster, clients, and a table that is filled meanwhile, while everything is killed.

Afterwards the table holds exactly what was acknowledged, `verify` says so, and says otherwise
where something was planted; `replay` gives the cluster's own digests.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quantum.lake.errors import SourceUnreachable
from quantum.lake.jobs import TableVerdict, verify
from quantum.lake.jobs.live import live_digests
from quantum.lake.jobs.row_files import read_file
from quantum.lake.table import DirectoryStore, FileKind, Table
from quantum.protocols.mqtt.codec import Publish
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.lake_process import (
    DEADLINE_SECONDS,
    LakeProcess,
    kill_executor,
    lake,
    table_state,
    wait_for_versions,
)
from tests.interop.test_mqtt_replay import Node
from tests.interop.torture_clients import Publisher

SEED = 20261115
STANDALONE = [
    *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"),
    *("--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"),
]
MESSAGES = 100  # of each client in each of four waves
WAVES = 4
LEADERS_GONE_MAX = 3  # one is killed; a machine that stands still elects another


@dataclass
class CountingPublisher(Publisher):
    """Knows how often it sent each message."""

    sent: Counter[int] = field(default_factory=Counter)

    def _packet(self, packet_id: int, number: int, topic: str, *, again: bool) -> Publish:
        self.sent[number] += 1
        return super()._packet(packet_id, number, topic, again=again)


class Publishers:
    """Clients at QoS 1 and 2 that publish from a thread until everything is acknowledged."""

    def __init__(self, ports: list[int], rng: random.Random) -> None:
        topics = [f"lake/{number}" for number in range(7)]
        self.clients = [
            CountingPublisher(
                f"p{number}", ports, rng, topics=topics, qos=1 + number % 2, limit=MESSAGES
            )
            for number in range(4)
        ]
        self._ends = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def _live(self) -> None:
        self._loop.run_until_complete(self._run())
        self._loop.close()

    def __enter__(self) -> Publishers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "not everything was acknowledged"

    async def _run(self) -> None:
        running = [asyncio.ensure_future(client.run()) for client in self.clients]
        while not (self._ends.is_set() and self.are_idle):
            await asyncio.sleep(0.02)
        for client in self.clients:
            client.finished.set()
            client.disturb()
        await asyncio.gather(*running)

    def publish_more(self, messages: int) -> None:
        """Let them go on; they notice when they connect again."""
        for client in self.clients:
            client.limit = (client.limit or 0) + messages
            self._loop.call_soon_threadsafe(client.disturb)

    def publish_until_version(self, job: LakeProcess, table: Path, version: int) -> None:
        """Wait for a version of the table; where all is in it already, publish for another."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while table_state(table).version < version:
            assert job.is_running, job.last_words()
            assert time.monotonic() < deadline, f"no version {version}\n{job.last_words()}"
            if self.are_idle:
                self.publish_more(1)
            time.sleep(0.5)

    @property
    def are_idle(self) -> bool:
        """Whether everything they were to publish is acknowledged."""
        return all(
            client.idle and (client.limit or 0) < client.next_number for client in self.clients
        )


@pytest.mark.timeout(1800)  # seven JVMs start in it, on whatever else runs here
def test_the_table_holds_exactly_what_was_acknowledged(tmp_path: Path) -> None:
    """A master and two workers of Spark; executors, driver and a broker are killed."""
    from tests.quantum.lake.standalone import StandaloneSpark

    spark = StandaloneSpark(tmp_path)
    (tmp_path / "local").mkdir()
    with spark:
        pids = [each.pid for each in spark._processes]
        survive(tmp_path, spark.master, lambda _: kill_executor(pids), *STANDALONE)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_same_in_one_process_whose_workers_are_killed(tmp_path: Path) -> None:
    survive(tmp_path, "local[2,8]", LakeProcess.kill_worker)


def survive(
    tmp_path: Path, master: str, kill_some: Callable[[LakeProcess], bool], *more: str
) -> None:
    """Fill a table while clients publish and everything is killed; then judge it."""
    rng = random.Random(SEED)
    table, var = tmp_path / "table", tmp_path / "var"
    with ClusterProcess(var, tenant_prgs=3, patience=UNHURRIED) as cluster:
        nodes = [Node(cluster.base_port + 10 * node + 2) for node in (1, 2, 3)]
        cluster.until(lambda: all(node.serves() for node in nodes), "MQTT is served")
        admins = ",".join(f"{each.host}:{each.port}" for each in cluster.admins())
        logs = ["--cluster", admins, "--keys", f"directory:{var}"]
        ingest = ["ingest", *logs, "--table", str(table), "--master", master, *more]
        with Publishers([node.port for node in nodes], rng) as publishers:
            with LakeProcess(tmp_path / "first.log", *ingest) as job:
                wait_for_versions(job, table, 1)
                version = table_state(table).version
                publishers.publish_more(MESSAGES)
                killed = [kill_some(job)]
                cluster.kill(rng.choice((1, 2, 3)))
                publishers.publish_until_version(job, table, version + rng.choice((1, 2)))
                publishers.publish_more(MESSAGES)
                job.kill()
            version = table_state(table).version
            with LakeProcess(tmp_path / "second.log", *ingest) as job:
                publishers.publish_until_version(job, table, version + 1)
                publishers.publish_more(MESSAGES)
                killed.append(kill_some(job))
                cluster.until(lambda: publishers.are_idle, "everything is acknowledged")
                cluster.until(lambda: is_caught_up(table, admins), "the table has everything")
                assert job.stop() == 0, job.last_words()
        assert any(killed), "nobody was there to be killed"
        verified = lake("verify", *logs, "--table", str(table), "--master", "inline", "--json")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        replayed = lake("replay", *logs, "--live", "--master", "inline", "--json")
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        assert len(replayed.stdout.splitlines()) >= 3
    judge(table, publishers)
    root = json.loads(verified.stdout.splitlines()[-1])["root"]
    honest = verify(str(var), str(table))
    assert honest.is_equal
    assert honest.root == root
    plant(table, tmp_path, str(var))


def is_caught_up(table: Path, admins: str) -> bool:
    try:
        digests = live_digests(admins)
    except SourceUnreachable:
        return False  # nobody said so
    ranges = {str(prg): each.last for prg, each in table_state(table).ranges.items()}
    return all(ranges.get(prg, 0) >= index for prg, (index, _) in digests.items())


def judge(table: Path, publishers: Publishers) -> None:
    """At QoS 2 each message once; at QoS 1 each, and again only where it was sent again: by its
    client, or by the node that the client came by, to the next leader."""
    store = DirectoryStore(table)
    files = Table.open(store).state.of_kind(FileKind.ROWS)
    rows = [row for file in files for row in read_file(store, file).to_pylist()]
    places = [(row["prg"], row["raft_index"], row["sub_index"]) for row in rows]
    assert len(set(places)) == len(places)
    seen = Counter(row["payload"].decode() for row in rows)
    for client in publishers.clients:
        assert client.limit is not None and client.limit >= WAVES * MESSAGES
        assert client.acknowledged == set(range(1, client.limit + 1)), client.name
        found = {text: count for text, count in seen.items() if text.startswith(client.name + ":")}
        assert set(found) == {f"{client.name}:{number}" for number in client.acknowledged}
        most = client.sent if client.qos == 1 else Counter(client.acknowledged)
        for text, count in found.items():
            again = LEADERS_GONE_MAX if client.qos == 1 else 0
            assert count <= most[int(text.partition(":")[2])] + again, f"{text}, seed {SEED}"
    assert sum(seen.values()) == len(rows)


Change = Callable[[pa.Table], pa.Table]


def altered(rows: pa.Table) -> pa.Table:
    payloads = [b"forged", *rows.column("payload").to_pylist()[1:]]
    at = rows.schema.get_field_index("payload")
    return rows.set_column(at, "payload", pa.array(payloads, pa.binary()))


def plant(table: Path, tmp_path: Path, var: str) -> None:
    """Plant a deleted row, an altered payload and a duplicated file; each is named."""
    for name, change, kind in (
        ("deleted", lambda rows: rows.slice(1), "missing"),
        ("altered", altered, "different"),
    ):
        copy = tmp_path / name
        shutil.copytree(table, copy)
        place = change_a_file(copy, change)
        found = [each for prg in verify(var, str(copy)).partitions for each in prg.findings]
        assert (kind, *place) in [(each.kind, each.prg, each.raft_index) for each in found]
    copy = tmp_path / "duplicated"
    shutil.copytree(table, copy)
    shown = next(copy.glob("tenant=*/date=*/*.parquet"))
    shutil.copy(shown, shown.with_name("again.parquet"))
    assert is_named(verify(var, str(copy)), "again.parquet")


def is_named(verdict: TableVerdict, name: str) -> bool:
    return not verdict.is_equal and any(name in each.sentence for each in verdict.strays)


def change_a_file(copy: Path, change: Change) -> tuple[str, int]:
    file = Table.open(DirectoryStore(copy)).state.of_kind(FileKind.ROWS)[0]
    path = copy / file.path
    buffer = BytesIO()
    pq.write_table(change(pq.read_table(path)), buffer)
    path.unlink()
    path.write_bytes(buffer.getvalue())
    return str(file.stream), file.first


@pytest.mark.timeout(1800)
def test_the_example_runs(tmp_path: Path) -> None:
    """`examples/lake_notebook.py`: publish, ingest, SQL, a plot."""
    example = Path(__file__).parents[2] / "examples" / "lake_notebook.py"
    done = subprocess.run(
        [sys.executable, str(example), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rows=217" in done.stdout
    assert "rows=0" in done.stdout, "the second run adds nothing"
    assert "<svg" in (tmp_path / "temperatures.svg").read_text()
