"""A cluster that is gone, and comes back from its archive and its keys alone: MQTT, Kafka, AMQP,
tenants, users, rules, roles and settings; as it stood at a backup, at a moment and at an entry."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from typer.testing import CliRunner

from clustor.runtime.development import node_directory
from clustor.runtime.disk import DirectoryStorage
from clustor.runtime.keys.store import KEYS_DIRECTORY, load_keyring
from clustor.runtime.pki.identity import NodeId
from clustor.streams.config import StreamConfig
from clustor.streams.opening import open_store
from quantum.archive import PrgId
from quantum.archive.roots import open_roots
from quantum.cli.admin_api import AdminApi
from quantum.cli.app import build
from quantum.cli.archive_opening import ring_of
from quantum.node.archived_log import PointInTime
from quantum.node.archived_state import replay_archive
from quantum.node.archived_tenant import cut_of
from quantum.node.consistent_cut import ChannelMarks, lacking, marks_of
from quantum.node.replaying import replay_directory
from quantum.tenants.broker_file import read_broker_file
from quantum.tenants.group_ids import group_of
from tests.interop.broker_process import DEADLINE_SECONDS, BrokerProcess
from tests.interop.kafka_clients import make_topic, produce_all, read_all, until
from tests.interop.stock_proton import browse, connected, send_all, take_all
from tests.interop.test_backup import back_up, points
from tests.interop.test_mqtt_replay import Node
from tests.interop.test_scheduled_backups import quantum
from tests.quantum.serving.client import V311, connect

PARTITIONS = 2
EARLY, LATE = range(60), range(60, 100)
OTHER = "Other_1.b"
"""A name that a tenant may have, and that no host has."""
DEV = "/v1/tenants/dev"
OPEN = [
    {"effect": "Allow", "action": "Any", "resource": resource}
    for resource in ("Topic", "Stream", "Queue", "Group", "TransactionalId", "Cluster")
]
RULES = [
    *OPEN,
    {"effect": "Deny", "action": "Publish", "principal": "user:ann", "filter": "secret/#"},
]


def ask(broker: BrokerProcess, method: str, path: str, body: object = None) -> Any:
    """Ask, again where the control plane is not there yet."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        told = AdminApi(broker.admin).ask(method, path, body=body)
        if told.code not in (409, 429, 503, 504):
            assert told.code == 200, told.body
            return told.body
        assert time.monotonic() < deadline, told.body
        time.sleep(0.1)


def kafka(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.kafka}"


def load(broker: BrokerProcess, numbers: range) -> None:
    """Let every protocol leave something behind."""
    client = connect(Node(broker.mqtt), client_id="publisher")
    for number in numbers:
        said = b"message %d" % number
        assert not client.publish(b"kept/%d" % (number % 20), said, 1, retain=True).is_failure
        assert not client.publish(b"sensors/%d" % number, said, 1).is_failure
    client.leave()
    client.cut()
    produce_all(kafka(broker), "orders", [f"order {number}" for number in numbers])
    with connected(broker.amqp) as connection:
        send_all(connection, "jobs", *(f"job {number}" for number in numbers))
        if numbers is EARLY:
            assert [each.body for each in take_all(connection, "jobs", 10)] == [
                f"job {number}" for number in range(10)
            ]


def prepare(broker: BrokerProcess) -> None:
    """Make what is kept, and say who may do what."""
    at = ("--admin", str(broker.admin))
    added = CliRunner().invoke(
        build(["users"]), ["users", "add", "ann", "--password-stdin", *at], input="sesame\n"
    )
    assert added.exit_code == 0, added.output
    away = connect(Node(broker.mqtt), V311, client_id="away", clean=False)
    away.subscribe(b"sensors/#", 1)
    away.cut()
    for command in (
        ("streams", "create", "log", "--capture", "sensors/#"),
        ("queues", "create", "jobs"),
    ):
        made = quantum(*command, *at)
        assert made.exit_code == 0, made.output
    make_topic(kafka(broker), "orders", 3)
    ask(broker, "PUT", f"{DEV}/acls", {"expected_version": 0, "rules": RULES})
    ask(broker, "PATCH", f"{DEV}/quotas", {"quotas": {"connections_max": 4_321}})
    held = ask(broker, "GET", "/v1/roles")
    bindings = [*held["bindings"], {"identity": "spiffe://people/eve", "role": "Observer"}]
    wanted = {"expected_version": held["version"], "bindings": bindings}
    ask(broker, "PUT", "/v1/roles", wanted)
    ask(broker, "POST", "/v1/tenants", {"tenant_id": OTHER, "sni": "other.example"})
    until(lambda: is_served(broker, OTHER), "the other tenant is served")
    ask(broker, "POST", f"/v1/tenants/{OTHER}/publish", {"topic": "o", "text": "o", "retain": True})


def is_served(broker: BrokerProcess, tenant: str) -> bool:
    rows = broker.page("/v1/broker/status")["partitions"]
    served = [each["serves"] for each in rows if each["tenant"] == tenant]
    return len(served) >= 3 and all(served)


def commit_group(broker: BrokerProcess) -> None:
    """Let a group of Kafka's read a third, and say so."""
    options = {"bootstrap.servers": kafka(broker), "group.id": "clerks"}
    consumer = Consumer({**options, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    taken = 0
    while taken < 20:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            taken += 1
            consumer.commit(message=message, asynchronous=False)
    consumer.close()


@dataclass(frozen=True)
class Ruin:
    """What is left of a broker: its archive and its keys, and what it was."""

    url: str
    keys: Path
    between: str
    first: dict[str, Any]
    last: dict[str, Any]
    streams: dict[str, dict[int, tuple[int, int, int]]] = field(default_factory=dict)

    @property
    def options(self) -> list[str]:
        return ["--from", self.url, "--keys", str(self.keys)]


def stream_digests(data: Path) -> dict[str, dict[int, tuple[int, int, int]]]:
    """What a broker's disk says of its streams: how far each reaches, and its chained checksum."""
    directory = node_directory(data, NodeId(1))
    keys = load_keyring(directory / KEYS_DIRECTORY)
    ordinal = [each.name for each in read_broker_file(data).tenants].index("dev")
    found = {}
    for number in range(PARTITIONS):
        storage = DirectoryStorage(directory / "state" / str(group_of(ordinal, number)))
        try:
            opened = open_store(storage, keys, StreamConfig())
        finally:
            storage.close()
        assert opened is not None
        found[f"dev/{number}"] = {
            int(each.partition): (each.start_index, each.next_index, each.digest)
            for each in opened.store.partitions.values()
        }
    return found


def records_of(streams: dict[str, dict[int, tuple[int, int, int]]]) -> int:
    return sum(each[1] for held in streams.values() for each in held.values())


@pytest.fixture(scope="module")
def ruin(tmp_path_factory: pytest.TempPathFactory) -> Ruin:
    root = tmp_path_factory.mktemp("whole")
    data, url = root / "data", f"file://{root / 'archive'}"
    with BrokerProcess(data, partitions=PARTITIONS, archive=url) as broker:
        prepare(broker)
        load(broker, EARLY)
        commit_group(broker)
        first = back_up(broker, url)
        between = datetime.now(UTC) + timedelta(milliseconds=1)
        while datetime.now(UTC) <= between:  # a stamp of its own for what is late
            time.sleep(0.002)
        load(broker, LATE)
        late = {"expected_version": 1, "rules": OPEN}
        ask(broker, "PUT", f"{DEV}/acls", late)
        last = back_up(broker, url)
        until(lambda: records_of(stream_digests(data)) == 3 * 100, "all of it is in its files")
        streams = stream_digests(data)
        assert broker.interrupt() == 0
    shutil.copytree(data / "keys", root / "keys")
    shutil.rmtree(data)
    return Ruin(url, root / "keys", between.isoformat(), first, last, streams)


def restored(ruin: Ruin, into: Path, *options: str) -> dict[str, Any]:
    done = quantum("restore", *ruin.options, "--into", str(into), *options, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def captured(broker: BrokerProcess) -> list[str]:
    at = ("--tenant", "dev", "--admin", str(broker.admin))
    read = quantum("streams", "read", "log", *at, "--json")
    assert read.exit_code == 0, read.output
    return sorted(read.output.splitlines())


def check_everything(broker: BrokerProcess, numbers: range) -> None:
    """Let stock clients read what every protocol left behind."""
    said = {f"order {number}" for number in numbers}
    assert sorted(read_all(kafka(broker), "orders", 3)) == sorted(said)
    with connected(broker.amqp) as connection:
        waiting = numbers[10:]
        bodies = [each.body for each in browse(connection, "jobs", len(waiting))]
        assert bodies == [f"job {number}" for number in waiting]
    assert len(captured(broker)) == len(numbers)
    reader = connect(Node(broker.mqtt), client_id="reader")
    reader.subscribe(b"kept/#", 1)
    newest = {b"message %d" % number for number in numbers[-20:]}
    assert {reader.take().payload for _ in newest} == newest
    reader.cut()


def check_session(broker: BrokerProcess, numbers: range) -> None:
    """Let a client come again that was away, and take what waited for it."""
    away = connect(Node(broker.mqtt), V311, client_id="away", clean=False)
    got = sorted(away.take().payload for _ in numbers)
    assert got == sorted(b"message %d" % number for number in numbers)
    away.cut()


def check_records(broker: BrokerProcess, rules: list[dict[str, str]]) -> None:
    found = ask(broker, "GET", f"{DEV}/acls")["rules"]
    assert [each["effect"] for each in found] == [each["effect"] for each in rules]
    assert ask(broker, "GET", f"{DEV}/quotas")["connections_max"] in (4_321, "4321")
    identities = [each["identity"] for each in ask(broker, "GET", "/v1/roles")["bindings"]]
    assert "spiffe://people/eve" in identities and "spiffe://restored/operator" in identities
    users = quantum("users", "list", "--admin", str(broker.admin))
    assert "ann" in users.output
    ann = connect(Node(broker.mqtt), client_id="ann", user_name="ann", password=b"sesame")
    assert not ann.connack.reason_code.is_failure
    denied = ann.publish(b"secret/1", b"x", 1).is_failure
    assert denied == (rules is RULES), "the rule that denies counts"
    ann.cut()
    until(lambda: is_served(broker, OTHER), "the other tenant is served")
    assert "other.example" in json.dumps(ask(broker, "GET", f"/v1/tenants/{OTHER}"))
    kept = ask(broker, "GET", f"/v1/tenants/{OTHER}/retained")["items"]
    assert [each["topic"] for each in kept] == ["o"]


def test_all_of_it_comes_back_as_it_was_last_and_goes_on(ruin: Ruin, tmp_path: Path) -> None:
    back = tmp_path / "back"
    done = restored(ruin, back, "--backup", str(ruin.last["made_ms"]))
    found = {each["prg"]: each["digest"] for each in done["partitions"]}
    assert found == points(ruin.last, "digest")
    groups = {each["prg"]: each["index"] for each in done["groups"]}
    assert set(groups) == {"control/0", "kv/1"} and all(groups.values())
    assert stream_digests(back) == ruin.streams, "every record of every stream, byte by byte"
    numbers = range(100)
    with BrokerProcess(back, partitions=PARTITIONS) as broker:
        check_everything(broker, numbers)
        check_session(broker, numbers)
        check_records(broker, OPEN)
        broker.kill()
        broker.start()
        check_everything(broker, numbers)
        produce_all(kafka(broker), "orders", ["one more"])
        with connected(broker.amqp) as connection:
            taken = take_all(connection, "jobs", 90)
            assert [each.body for each in taken] == [f"job {number}" for number in range(10, 100)]
            send_all(connection, "jobs", "another")
            assert [each.body for each in take_all(connection, "jobs", 1)] == ["another"]
        assert "one more" in read_all(kafka(broker), "orders", 3)


def test_a_moment_between_is_neither_more_nor_less(ruin: Ruin, tmp_path: Path) -> None:
    back = tmp_path / "back"
    done = restored(ruin, back, "--to-time", ruin.between)
    found = {each["prg"]: each["digest"] for each in done["partitions"] if "dev" in each["prg"]}
    wanted = {prg: each for prg, each in points(ruin.first, "digest").items() if "dev" in prg}
    assert found == wanted
    with BrokerProcess(back, partitions=PARTITIONS) as broker:
        check_everything(broker, EARLY)
        check_session(broker, EARLY)
        check_records(broker, RULES)
        options = {"bootstrap.servers": kafka(broker), "group.id": "clerks"}
        consumer = Consumer({**options, "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        left: set[tuple[int | None, int | None]] = set()
        while len(left) < len(EARLY) - 20:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                left.add((message.partition(), message.offset()))
        consumer.close()


def test_a_tenant_alone_to_one_entry_of_one_partition(ruin: Ruin, tmp_path: Path) -> None:
    indexes = points(ruin.first, "index")
    places = [f"{prg}={index}" for prg, index in indexes.items() if prg.startswith("dev/")]
    options = [option for place in places for option in ("--to-index", place)]
    done = restored(ruin, tmp_path / "back", "--tenant", "dev", *options)
    assert done["tenants"] == ["dev"]
    found = {each["prg"]: (each["index"], each["digest"]) for each in done["partitions"]}
    wanted = points(ruin.first, "digest")
    assert found == {prg: (indexes[prg], wanted[prg]) for prg in found} and len(found) == PARTITIONS
    on_disk = {
        f"{each.tenant}/{each.partition}": each.digest
        for each in replay_directory(tmp_path / "back", None, lambda _: None)
    }
    assert on_disk == {prg: each[1] for prg, each in found.items()}


def test_what_was_told_of_a_partition_is_there_when_its_own_entry_came_late(ruin: Ruin) -> None:
    """The archive of one partition ends before what another knows to have arrived there."""
    objects = open_roots(ruin.url).tenants
    ends = {each["prg"]: each["index"] for each in ruin.last["points"]}
    prgs = [PrgId("dev", number) for number in range(PARTITIONS)]

    def marks(prg: PrgId, index: int) -> ChannelMarks:
        place = PointInTime(index=index)
        return marks_of(replay_archive(objects, prg, ring_of(ruin.keys, prg), place).broker)

    told = {prg.number: marks(prg, ends[str(prg)]) for prg in prgs}
    assert not lacking(told)
    sender, receiver = (0, 1) if told[0].acked.get(1) else (1, 0)
    through = told[sender].acked[receiver]
    assert through, "something went from one to the other"
    behind = prgs[receiver]
    low, high = 0, ends[str(behind)]  # the first entry by which all of it had arrived
    while high - low > 1:
        middle = (low + high) // 2
        has = marks(behind, middle).counted.get(sender, 0) >= through
        low, high = (low, middle) if has else (middle, high)
    early = {**ends, str(behind): low}
    assert lacking({prg.number: marks(prg, early[str(prg)]) for prg in prgs}), "it would be lost"
    cut = cut_of(
        objects,
        lambda prg: ring_of(ruin.keys, prg),
        prgs,
        lambda prg: PointInTime(index=early[str(prg)]),
    )
    found = {each.prg: each.index for each in cut.points}
    assert found == {**{str(prg): ends[str(prg)] for prg in prgs}, str(behind): high}


def looked(ruin: Ruin, what: str) -> list[dict[str, Any]]:
    """Look at the moment between."""
    done = quantum("at", ruin.between, what, *ruin.options, "--tenant", "dev", "--json")
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.output.splitlines()]


def test_the_time_machine_shows_queues_and_streams_as_they_stood(ruin: Ruin) -> None:
    queues = looked(ruin, "queues")
    assert [row["queued"] for row in queues if row.get("queue") == "jobs"] == [50]
    assert [row["queued"] for row in queues if row.get("client") == "away"] == [60]
    streams = looked(ruin, "streams")
    assert sum(row["next"] for row in streams if row.get("stream") == "log") == 60
    topics = [row for row in streams if row.get("topic") == "orders"]
    assert sorted(row["partition"] for row in topics) == [0, 1, 2]
    assert sum(row["next"] for row in topics) == 60
    assert [row["client"] for row in looked(ruin, "sessions")].count("away") == 1
    assert len(looked(ruin, "retained")) == 20


def test_the_time_machine_serves_stock_clients(ruin: Ruin, tmp_path: Path) -> None:
    """What they change there changes nothing: the next look finds the same."""
    for _ in range(2):
        broker = BrokerProcess(tmp_path / "unused", partitions=PARTITIONS)
        broker.look_back(ruin.between, *ruin.options)
        with broker:
            check_everything(broker, EARLY)
            with connected(broker.amqp) as connection:
                taken = take_all(connection, "jobs", 50)
                assert [each.body for each in taken] == [f"job {n}" for n in range(10, 60)]
            produce_all(kafka(broker), "orders", ["not for long"])
            assert broker.interrupt() == 0
