"""One message on a real cluster of three nodes: would it come, where has it been, who had it.

Every node is asked, and each must give the same answer; stock clients publish and subscribe.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any, Final
from urllib.parse import quote, urlencode

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from quantum.cli.admin_client import AdminUnreachable, fetch
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.mqtt_broker import MQTT_ROLE

SECONDS: Final = 60.0
TENANT: Final = "/v1/tenants/dev"
CLIENTS: Final = ("screen-a", "screen-b", "screen-c", "screen-d")
"""Enough that their sessions are in more than one partition (checked below)."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("explain")
    with ClusterProcess(data, tenant_prgs=3, patience=UNHURRIED, restart=False) as made:
        made.until(lambda: is_served(made), "all partitions are served, and every node knows it")
        yield made


def is_served(cluster: ClusterProcess) -> bool:
    for node in range(1, 4):
        try:
            code, page = fetch(cluster.admin(node), "/v1/broker/status", seconds=SECONDS)
        except AdminUnreachable:
            return False
        if code != 200 or len(page["partitions"]) != 3:
            return False
        if any(row["leader"] is None for row in page["partitions"]):
            return False
    return True


def asked(cluster: ClusterProcess, node: int, path: str, **query: object) -> dict[str, Any]:
    code, page = fetch(cluster.admin(node), f"{TENANT}/{path}?{urlencode(query)}", seconds=SECONDS)
    assert code == 200, page
    return page


def mqtt_port(cluster: ClusterProcess, node: int) -> int:
    return cluster.base_port + 10 * node + MQTT_ROLE


class StockClient:
    """paho, over MQTT 5, with a session that outlives its connection."""

    def __init__(self, port: int, name: str, *, clean: bool = True) -> None:
        self.messages: Queue[bytes] = Queue()
        self.answers: Queue[Any] = Queue()
        self._subscribed: Queue[None] = Queue()
        connected: Queue[None] = Queue()
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        self.client.on_message = lambda *said: self.messages.put(said[2].payload)
        self.client.on_publish = lambda *said: self.answers.put(said[4])
        self.client.on_connect = lambda *said: None if said[3].is_failure else connected.put(None)
        self.client.on_subscribe = lambda *_: self._subscribed.put(None)
        terms = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho has none
        terms.SessionExpiryInterval = 3600
        self.client.connect("127.0.0.1", port, clean_start=clean, properties=terms)
        self.client.loop_start()
        connected.get(timeout=SECONDS)  # paho asks again by itself where it is refused at first

    def subscribe(self, topic_filter: str) -> None:
        self.client.subscribe(topic_filter, qos=1)
        self._subscribed.get(timeout=SECONDS)

    def publish(self, topic: str, payload: str, *, asks: bool = True) -> str:
        """Publish at QoS 1, and return what the acknowledgement names; empty: nothing."""
        said = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho has none
        said.UserProperty = [("quantum-receipt", "")] if asks else [("other", "x")]
        self.client.publish(topic, payload, qos=1, properties=said)
        answer = self.answers.get(timeout=SECONDS)
        named = dict(getattr(answer, "UserProperty", []))
        return str(named.get("quantum-receipt", ""))

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def told_until(cluster: ClusterProcess, what: str, message: str, client: str) -> dict[str, Any]:
    """Return a message's trail once every node's log tells of a step: followers apply later."""
    trails: list[dict[str, Any]] = []

    def all_tell() -> bool:
        query = urlencode({"message": message, "client_id": client})
        path = f"{TENANT}/explain/message?{query}"
        answers = [fetch(cluster.admin(node), path, seconds=SECONDS) for node in (1, 2, 3)]
        if any(code == 404 for code, _ in answers):
            return False  # a follower that has not heard of it yet
        trails[:] = [page for _, page in answers]
        assert [each.pop("answered_by") for each in trails] == [1, 2, 3]
        is_told = what in {step["what"] for step in trails[0]["steps"]}
        return is_told and all(each == trails[0] for each in trails)

    cluster.until(all_tell, f"every node tells the same of {message}: {what}")
    return trails[0]


def test_every_node_says_the_same_of_a_delivery(cluster: ClusterProcess) -> None:
    """The subscription that matches, the session that is away, and what stops a message."""
    there = StockClient(mqtt_port(cluster, 1), "there")
    there.subscribe("plant/+/hot")
    away = StockClient(mqtt_port(cluster, 2), "away")
    away.subscribe("plant/#")
    away.close()

    def view(node: int, client: str, topic: str, **more: object) -> dict[str, Any]:
        return asked(cluster, node, "explain/delivery", client_id=client, topic=topic, **more)

    def agree(client: str, topic: str, wanted: tuple[str, str], **more: object) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def settled() -> bool:
            found[:] = [view(node, client, topic, **more) for node in (1, 2, 3)]
            return all((each["delivered"], each["rule"]) == wanted for each in found)

        cluster.until(settled, f"every node says {wanted} of {client} and {topic}: {found}")
        return found[0]

    try:
        coming = agree("there", "plant/7/hot", ("yes", ""))
        assert coming["connected"] and "plant/+/hot" in coming["sentence"]
        assert [each["filter"] for each in coming["subscriptions"]] == ["plant/+/hot"]
        leaders = {
            row["partition"]: row["leader"]
            for row in fetch(cluster.admin(1), "/v1/broker/status", seconds=SECONDS)[1][
                "partitions"
            ]
        }
        assert coming["answered_by"] == leaders[coming["session_partition"]]
        agree("away", "plant/7/hot", ("queued", ""))
        agree("away", "plant/7/hot", ("no", "Away"), qos=0)
        stopped = agree("there", "plant/7/cold", ("no", "Subscription"))
        assert "none of its 1 subscriptions matches plant/7/cold" in stopped["sentence"]
        assert agree("nobody", "plant/7/hot", ("no", "Session"))["command"]
    finally:
        there.close()


def test_a_share_names_whose_turn_it_is(cluster: ClusterProcess) -> None:
    members = [StockClient(mqtt_port(cluster, 1), f"member-{n}") for n in (1, 2)]
    try:
        for member in members:
            member.subscribe("$share/pool/jobs/+")

        def views() -> list[dict[str, Any]]:
            return [
                asked(cluster, 3, "explain/delivery", client_id=f"member-{n}", topic="jobs/1")
                for n in (1, 2)
            ]

        cluster.until(
            lambda: sorted(each["delivered"] for each in views()) == ["perhaps", "yes"],
            "both are members, and it is the turn of one",
        )
        found = views()
        chosen = next(n for n, each in enumerate(found) if each["delivered"] == "yes")
        assert f"the next one: member-{chosen + 1}" in found[0]["steps"][-2]["sentence"]
        members[0].publish("jobs/1", "work")
        assert members[chosen].messages.get(timeout=SECONDS) == b"work"
    finally:
        for member in members:
            member.close()


def test_a_past_message_is_followed_to_its_acknowledgement(cluster: ClusterProcess) -> None:
    """From the publish through partitions into queues, out again, and acknowledged: by times."""
    for name in CLIENTS:
        client = StockClient(mqtt_port(cluster, 1), name)
        client.subscribe("trail/#")
        client.close()
    publisher = StockClient(mqtt_port(cluster, 2), "publisher")
    message = publisher.publish("trail/1", "followed")
    publisher.close()
    homes = set()
    for name in CLIENTS:
        waiting = told_until(cluster, "queued", message, name)
        assert (waiting["topic"], waiting["publisher"]) == ("trail/1", "publisher")
        steps = {each["what"]: each for each in waiting["steps"] if each["client_id"] == name}
        assert list(steps) == ["matched", "queued"] and "trail/#" in steps["matched"]["sentence"]
        home = steps["queued"]["partition"]
        homes.add(home)
        published, *others = [each for each in waiting["steps"] if not each["client_id"]]
        assert published["what"] == "published"
        if home != published["partition"]:
            assert (home, "delivered") in {(each["partition"], each["what"]) for each in others}
        reader = StockClient(mqtt_port(cluster, 3), name, clean=False)
        assert reader.messages.get(timeout=SECONDS) == b"followed"
        over = told_until(cluster, "acknowledged", message, name)
        reader.close()
        mine = [each["what"] for each in over["steps"] if each["client_id"] == name]
        assert mine == ["matched", "queued", "sent", "acknowledged"]
        times = [int(each["at_ms"]) for each in over["steps"] if each["client_id"] == name]
        assert times == sorted(times) and over["unknown"] == []
    assert len(homes) > 1, "these ids should be in several partitions"


def test_a_message_of_a_stream_is_followed_by_its_offset(cluster: ClusterProcess) -> None:
    catalogue = next(
        row["leader"]
        for row in fetch(cluster.admin(1), "/v1/broker/status", seconds=SECONDS)[1]["partitions"]
        if row["partition"] == 0
    )
    made = command(
        cluster, catalogue, "streams", "create", "kept", "--capture", "kept/#", "--tenant", "dev"
    )
    assert made.returncode == 0, made.stderr
    publisher = StockClient(mqtt_port(cluster, 1), "keeper")
    ids = [publisher.publish(f"kept/{n}", f"message {n}") for n in range(8)]
    publisher.close()
    found = set()
    for partition in range(3):
        records = asked(cluster, 2, "streams/kept/records", partition=partition)["items"]
        for record in records:
            trail = asked(
                cluster,
                2,
                "explain/message",
                stream="kept",
                partition=partition,
                offset=record["offset"],
            )
            assert trail["topic"] == record["address"]
            found.add(trail["id"])
    assert found == set(ids)


def command(cluster: ClusterProcess, node: int, *words: str) -> subprocess.CompletedProcess[str]:
    quantum = Path(sys.executable).with_name("quantum")
    return subprocess.run(
        [quantum, *words, "--admin", str(cluster.admin(node))],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def offline(*words: str | Path) -> subprocess.CompletedProcess[str]:
    quantum = Path(sys.executable).with_name("quantum")
    return subprocess.run(
        [quantum, "receipts", "verify", *words],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_who_asks_for_nothing_is_told_nothing(cluster: ClusterProcess) -> None:
    publisher = StockClient(mqtt_port(cluster, 1), "plain")
    assert publisher.publish("plain/1", "x", asks=False) == ""
    publisher.close()


def test_a_receipt_is_proof_without_any_node(cluster: ClusterProcess, tmp_path: Path) -> None:
    """All three sign; without one of them two are a quorum; a changed one is refused.

    It comes last: a node is killed, and nobody starts it again.
    """
    publisher = StockClient(mqtt_port(cluster, 1), "payer")
    ids = {f"bill/{n}": publisher.publish(f"bill/{n}", "42 EUR") for n in range(4)}
    publisher.close()
    topic, message = next(iter(ids.items()))
    keys, payload = tmp_path / "nodes.json", tmp_path / "payload"
    keys.write_text(command(cluster, 3, "receipts", "keys").stdout)
    payload.write_text("42 EUR")

    def kept(message: str, node: int, signers: int) -> Path:
        got: list[dict[str, Any]] = []

        def signed() -> bool:
            code, page = fetch(
                cluster.admin(node), f"{TENANT}/receipts/{quote(message)}", seconds=SECONDS
            )
            got[:] = [page]
            return code == 200 and len(page["statements"]) == signers

        cluster.until(signed, f"{signers} nodes sign")
        path = tmp_path / f"{message}.{node}.json"
        path.write_text(json.dumps(got[0]))
        return path

    receipts = [kept(message, node, 3) for node in (1, 2, 3)]
    for receipt in receipts:
        proven = offline(receipt, "--keys", keys, "--topic", topic, "--payload", payload)
        assert proven.returncode == 0, proven
        assert "on the disks of the nodes 1, 2, 3" in proven.stdout
    receipt = receipts[0]
    other = offline(receipt, "--keys", keys, "--topic", "bill/9", "--payload", payload)
    assert other.returncode == 1 and "another message" in other.stdout
    forged = tmp_path / "forged.json"
    forged.write_text(receipt.read_text().replace('"term": "', '"term": "9'))
    assert offline(forged, "--keys", keys).returncode == 1

    last = max(ids.values(), key=lambda each: int(each.split("-")[1]))
    group, index, digest = last.split("-")
    path = f"{TENANT}/receipts/{group}-{int(index) + 9**9}-{digest}"
    unknown = fetch(cluster.admin(1), path, seconds=SECONDS)
    assert unknown[0] == 404 and "committed and durable up to" in json.dumps(unknown[1])
    cluster.kill(3)
    receipt = kept(message, 1, 2)
    proven = offline(receipt, "--keys", keys)
    assert proven.returncode == 0 and "node 3 did not sign" in proven.stdout
