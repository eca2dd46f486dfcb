"""One trace of one message through a real cluster: its client's, three nodes', its subscriber's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
import pytest

from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file
from clustor.runtime.development import prepare_cluster
from clustor.runtime.pki.identity import cluster_id, utc_now
from clustor.runtime.telemetry.trace_file import TRACES_DIRECTORY
from quantum.cli.admin_client import fetch
from quantum.cli.group_changes import GroupChanges
from quantum.protocols.mqtt.codec import Properties
from quantum.protocols.mqtt.session.traces import KEY
from quantum.routing.ring import HashRing
from quantum.tenants.broker_file import (
    BROKER_FILE,
    TenantEntry,
    TracesEntry,
    prepare_broker,
    read_broker_file,
)
from quantum.types import ClientId, TenantId
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.mqtt_places import all_listen
from tests.interop.test_mqtt_replay import Node
from tests.interop.test_telemetry import metrics
from tests.quantum.cli.test_traces import run as run_traces
from tests.quantum.serving.client import V5, connect

NODES = (1, 2, 3)
TENANT = "dev"
CALLER_SPAN = "00f067aa0ba902b7"
Spans = list[dict[str, Any]]


@dataclass
class Traced:
    """A cluster in which node N leads partition N - 1, and traces what says so itself."""

    cluster: ClusterProcess

    def door(self, node: int) -> Node:
        return Node(self.cluster.base_port + 10 * node + 2)

    def client_at(self, node: int, word: str) -> str:
        """Find a client id whose session a node serves."""
        ring, names = HashRing(), (f"{word}-{number}" for number in count())
        at = node - 1
        return next(
            name
            for name in names
            if ring.session_partition(TenantId(TENANT), ClientId(name.encode()), 3) == at
        )

    def topic_at(self, node: int, word: str) -> bytes:
        """Find a topic that the partition of a node owns."""
        ring, names = HashRing(), (b"%s/%d" % (word.encode(), number) for number in count())
        return next(
            each for each in names if ring.topic_partition(TenantId(TENANT), each, 3) == node - 1
        )

    def spans(self, trace_id: str) -> Spans:
        """Read what all nodes have written of a trace; each span says which node it is of."""
        found: Spans = []
        for path in sorted(self.cluster.data.glob(f"node-*/{TRACES_DIRECTORY}/*.jsonl")):
            *whole, _ = path.read_bytes().split(b"\n")  # the last line may be on its way
            for line in map(json.loads, whole):
                for resource in line["resourceSpans"]:
                    facts = resource["resource"]["attributes"]
                    node = {each["key"]: each["value"] for each in facts}["service.instance.id"]
                    for each in (span for one in resource["scopeSpans"] for span in one["spans"]):
                        found.append(each | {"node": int(node["stringValue"])})
        return [each for each in found if each["traceId"] == trace_id]

    def wait_for(self, trace_id: str, is_whole: Callable[[Spans], bool]) -> Spans:
        self.cluster.until(lambda: is_whole(self.spans(trace_id)), f"{self.spans(trace_id)}")
        return self.spans(trace_id)

    def lead_in_order(self) -> None:
        """Let node N lead partition N - 1, and every node know it."""
        changes = GroupChanges(self.cluster.admins(), 180)

        def partitions(node: int) -> list[dict[str, Any]]:
            code, page = fetch(self.cluster.admin(node), "/v1/broker/status")
            return list(page["partitions"]) if code == 200 else []

        rows: list[dict[str, Any]] = []

        def told() -> bool:
            rows[:] = partitions(1)
            return len(rows) == 3

        self.cluster.until(told, "node 1 tells of its partitions")
        for row in rows:
            changes.transfer(row["group"], row["partition"] + 1)

        def known(node: int) -> bool:
            rows = partitions(node)
            return len(rows) == 3 and all(row["leader"] == row["partition"] + 1 for row in rows)

        self.cluster.until(lambda: all(map(known, NODES)), "every node knows who leads")

        def serves(node: int) -> bool:
            found = partitions(node)
            return len(found) == 3 and bool(found[node - 1]["serves"])

        self.cluster.until(lambda: all(map(serves, NODES)), "all serve")
        self.cluster.until(lambda: all_listen(self.cluster), "all listen")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    data = tmp_path_factory.mktemp("traced") / "var"
    cluster = ClusterProcess(data, tenant_prgs=3)
    now, base_port = utc_now(), cluster.base_port
    made = prepare_cluster(data, cluster_id("dev"), nodes=3, base_port=base_port, groups=1, now=now)
    (data / CLUSTER_FILE).write_bytes(
        encode_cluster_file(msgspec.structs.replace(made, patience=PATIENT))
    )
    prepare_broker(data, TenantEntry(TENANT, 3))
    described = msgspec.structs.replace(read_broker_file(data), traces=TracesEntry(share=0))
    (data / BROKER_FILE).write_bytes(msgspec.json.encode(described))
    with cluster:
        found = Traced(cluster)
        found.lead_in_order()
        yield found


def test_one_publish_is_one_trace_of_seven_spans_on_three_nodes(traced: Traced) -> None:
    """Published at node 1, its topic owned by node 2, its subscriber served by node 3."""
    trace_id = f"{1:032x}"
    context = ((KEY, f"00-{trace_id}-{CALLER_SPAN}-01"), ("other", "kept"))
    topic = traced.topic_at(2, "seven")
    subscriber = connect(traced.door(3), V5, client_id=traced.client_at(3, "subscriber"))
    subscriber.subscribe(topic, 1)
    # The client reaches node 3 and is served by node 1: who serves tells.
    publisher = connect(
        traced.door(3), V5, client_id=traced.client_at(1, "publisher"), user_properties=context
    )
    publisher.publish(topic, b"payload", 1, properties=Properties(user_properties=context))
    message = subscriber.take()
    assert message.payload == b"payload"
    assert message.properties.user_properties == context, "passed on as it was"

    spans = traced.wait_for(trace_id, lambda found: len(found) >= 7)
    by_name = {each["name"]: each for each in spans}
    ids = {name: each["spanId"] for name, each in by_name.items()}
    assert len(spans) == 7 and len(set(ids.values())) == 7
    found = {name: (each["parentSpanId"], each["node"]) for name, each in by_name.items()}
    assert found == {
        "connect": (CALLER_SPAN, 1),
        "publish": (CALLER_SPAN, 1),
        "authorise": (ids["publish"], 1),
        "forward": (ids["publish"], 1),
        "fsync": (ids["forward"], 2),
        "apply": (ids["forward"], 2),
        "deliver": (ids["publish"], 3),
    }
    for each in spans:
        assert 0 < int(each["startTimeUnixNano"]) <= int(each["endTimeUnixNano"])
    fsync = by_name["fsync"]
    assert int(fsync["endTimeUnixNano"]) > int(fsync["startTimeUnixNano"]), "a disk takes time"
    assert b"payload" not in b"".join(
        path.read_bytes() for path in traced.cluster.data.glob("node-*/traces/*.jsonl")
    )
    told = run_traces(traced.cluster.data, "--trace", trace_id)
    assert told.exit_code == 0 and len(told.output.splitlines()) == 8, told.output
    for client in (subscriber, publisher):
        client.leave()
        client.cut()


def test_what_says_nothing_of_a_trace_has_none_and_an_unsampled_one_is_passed_on(
    traced: Traced,
) -> None:
    topic = traced.topic_at(1, "quiet")
    unsampled, last = f"{2:032x}", f"{3:032x}"
    client = connect(traced.door(1), V5, client_id=traced.client_at(1, "quiet"))
    client.subscribe(topic, 1)
    for flags, trace_id in (("00", unsampled), ("01", last)):
        context = ((KEY, f"00-{trace_id}-{CALLER_SPAN}-{flags}"),)
        client.publish(topic, b"x", 1)
        assert client.take().properties.user_properties == ()
        client.publish(topic, b"x", 1, properties=Properties(user_properties=context))
        assert client.take().properties.user_properties == context
    spans = traced.wait_for(last, lambda found: len(found) >= 5)
    assert sorted(each["name"] for each in spans) == [
        "apply",
        "authorise",
        "deliver",
        "fsync",
        "publish",
    ]
    assert traced.spans(unsampled) == []
    traced.cluster.until(
        lambda: metrics(traced.cluster, 1)["quantum_trace_spans_total", ()] >= 5, "they are counted"
    )
    client.leave()
    client.cut()
