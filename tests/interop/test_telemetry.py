"""A real cluster says whether it is ready, what it counts, and why somebody waits."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from clustor.runtime.admission import FlowNumbers
from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file
from clustor.runtime.development import prepare_cluster
from clustor.runtime.pki.identity import cluster_id, utc_now
from quantum.cli.admin_client import AdminUnreachable, fetch
from quantum.cli.why import why as why_command
from quantum.protocols.mqtt.codec import Publish, ReasonCode, TopicName, encode_packet
from quantum.protocols.mqtt.codec.types import PacketId
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.mqtt_places import all_listen, all_served
from tests.quantum.serving.client import V5, SocketLine, connect

NODES = (1, 2, 3)
UNREACHABLE = 12
TENANTS = """
[tenants.dev]
acl = [{ effect = "allow", pattern = "#" }, { effect = "deny", pattern = "secret/#" }]
connection_rates.publishes = { per_second = 2, burst = 20 }
"""


OPEN: list[SocketLine] = []


@pytest.fixture(autouse=True)
def _hang_up() -> Iterator[None]:
    """End every connection that a test left open."""
    yield
    while OPEN:
        OPEN.pop().cut()


@dataclass
class Door:
    port: int

    def dial(self) -> SocketLine:
        line = SocketLine(self.port)
        OPEN.append(line)
        return line


def door(cluster: ClusterProcess, node: int) -> Door:
    return Door(cluster.base_port + 10 * node + 2)


def page(cluster: ClusterProcess, node: int, path: str) -> tuple[int, Any]:
    try:
        return fetch(cluster.admin(node), path)
    except AdminUnreachable:
        return 0, {}


def metrics(
    cluster: ClusterProcess, node: int
) -> dict[tuple[str, tuple[tuple[str, str], ...]], Any]:
    address = cluster.admin(node)
    connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        text = response.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise AdminUnreachable(str(error)) from error
    finally:
        connection.close()
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def why(cluster: ClusterProcess, node: int, *arguments: str) -> tuple[int, str]:
    """Run `quantum why`; return its exit code and what it says."""
    return run_why("--admin", str(cluster.admin(node)), *arguments)


def run_why(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(why_command)
    ran = CliRunner().invoke(app, arguments)
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    return ran.exit_code, ran.output


def causes(cluster: ClusterProcess, client: str, query: str = "") -> dict[str, str]:
    """Ask every node about a client; give the sentences by their clauses."""
    answers = [page(cluster, node, f"/clients/{client}/why{query}")[1] for node in NODES]
    every = [cause for answer in answers for cause in answer.get("causes", ())]
    return {cause["clause"]: cause["sentence"] for cause in every}


def seen(cluster: ClusterProcess, client: str, clause: str, make: Callable[[], object]) -> str:
    """Make something happen until a clause is seen: a busy machine may change leaders meanwhile."""
    found: dict[str, str] = {}

    def happened() -> bool:
        with contextlib.suppress(AssertionError, OSError):
            make()
            found.update(causes(cluster, client))
        return clause in found

    cluster.until(happened, f"{clause} of {client}")
    return found[clause]


def is_ready(cluster: ClusterProcess, node: int) -> bool:
    return page(cluster, node, "/readyz")[0] == 200


def publishes(count: int, topic: bytes = b"t") -> bytes:
    return b"".join(
        encode_packet(Publish(TopicName(topic), b"x", 1, packet_id=PacketId(1 + number)), V5)
        for number in range(count)
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("telemetry") / "cluster"
    with ClusterProcess(data, tenant_prgs=3, patience=PATIENT) as cluster:
        cluster.until(lambda: all(is_ready(cluster, node) for node in NODES), "all are ready")
        (data / "tenants.new").write_text(TENANTS)
        (data / "tenants.new").rename(data / "tenants.toml")  # whole, whenever it is looked at
        yield cluster


@contextmanager
def stopped(cluster: ClusterProcess, *nodes: int) -> Iterator[None]:
    for node in nodes:
        os.kill(cluster.pid(node), signal.SIGSTOP)
    try:
        yield
    finally:
        for node in nodes:
            os.kill(cluster.pid(node), signal.SIGCONT)


def test_two_of_three_nodes_stop_and_nobody_is_ready_until_they_come_back(
    cluster: ClusterProcess,
) -> None:
    cluster.until(lambda: all(is_ready(cluster, node) for node in NODES), "all are ready")

    def alike() -> bool:
        shown = [page(cluster, node, "/readyz")[1].get("readiness_digest") for node in NODES]
        return None not in shown and len(set(shown)) == 1

    cluster.until(alike, "one digest of what is ready")

    def is_heard() -> bool:
        return bool(page(cluster, 1, "/readyz")[1].get("controlplane.cache_state") == "Fresh")

    cluster.until(is_heard, "its copy of the control plane is shown")
    with stopped(cluster, 2, 3):
        began = time.monotonic()
        cluster.until(lambda: not is_ready(cluster, 1), "it notices")
        print(f"\nnot ready after {time.monotonic() - began:.2f} s")
        last: dict[str, Any] = {}

        def none_is() -> bool:
            code, body = page(cluster, 1, "/readyz")
            last.update(body)
            if code != 503 or body["partition_ready_ratio"] != 0.0:
                return False
            return set(body["reasons"]) <= {"NoLeader", "ProofTooOld"}

        try:
            cluster.until(none_is, "all of them, for want of the others")
        finally:
            print(last)
        cluster.until(lambda: page(cluster, 1, "/livez")[0] == 200, "alive: nothing to restart")

        def unanswered() -> bool:
            answer = page(cluster, 1, "/groups/1/why/WhyNotLeader")[1]
            return answer.get("clause") in ("NoAnswers", "NoQuorum")

        cluster.until(unanswered, "it says that the others do not answer")
    cluster.until(lambda: all(is_ready(cluster, node) for node in NODES), "ready again")
    cluster.until(lambda: all_served(cluster), "served again")


def test_the_scrape_counts_what_clients_did(cluster: ClusterProcess) -> None:
    def exchange() -> bool:
        """Ten messages there and back; a busy machine may change leaders in the middle."""
        with contextlib.suppress(AssertionError, OSError):
            writer = connect(door(cluster, 1), client_id="counted")
            reader = connect(door(cluster, 2), client_id="reading")
            reader.subscribe(b"count/#", 1)
            for number in range(10):
                assert not writer.publish(b"count/%d" % number, b"", 1).is_failure
                reader.take()
            return True
        return False

    least = {
        ("quantum_publishes_received_total", (("qos", "1"),)): 10,
        ("quantum_publishes_sent_total", (("qos", "1"),)): 10,
        ("quantum_connections", ()): 2,
        ("clustor_wal_fsync_latency_ms_count", ()): 1,
        ("clustor_raft_commit_latency_ms_count", ()): 1,
        ("clustor_raft_groups", ()): 12,
    }
    totals: list[dict[Any, float]] = []

    def counted() -> bool:
        if not exchange():
            return False
        found = [metrics(cluster, node) for node in NODES]
        totals.append({name: sum(float(each.get(name, 0)) for each in found) for name in least})
        return all(totals[-1][name] >= count for name, count in least.items())

    try:
        cluster.until(counted, "what was done is counted")
    finally:
        print(totals[-1:])


def test_a_full_receive_window_is_named(cluster: ClusterProcess) -> None:
    def fill() -> None:
        terms: dict[str, Any] = {"receive_maximum": 3, "session_expiry_interval": 600}
        reader = connect(door(cluster, 1), client_id="greedy", clean=False, **terms)
        reader.subscribe(b"window/#", 1)
        writer = connect(door(cluster, 2))
        for _ in range(8):
            writer.publish(b"window/t", b"", 1)

    words = seen(cluster, "greedy", "ReceiveWindowFull", fill)
    assert "3 messages are unacknowledged and 3 may be (at most 3)" in words


def test_what_the_rules_forbid_is_named_by_the_command(cluster: ClusterProcess) -> None:
    def break_them() -> None:
        writer = connect(door(cluster, 1), client_id="restless")
        assert writer.publish(b"secret/plan", b"", 1) is ReasonCode.NOT_AUTHORIZED

    words = seen(cluster, "restless", "NotAuthorized", break_them)
    assert "PUBLISH_REFUSED of secret/plan" in words
    said: list[tuple[int, str]] = []

    def told() -> bool:
        said.append(why(cluster, 2, "restless", "--topic", "secret/plan"))
        return said[-1][0] != UNREACHABLE

    cluster.until(told, "node 2 answers")
    code, text = said[-1]
    assert code == 1
    assert "restless: " in text

    def forbidden() -> bool:
        found = causes(cluster, "restless", "?topic=secret/plan").get("NotAuthorized", "")
        return "secret/plan" in found

    cluster.until(forbidden, "the topic is named")


def test_the_rate_that_slows_a_client_is_named(cluster: ClusterProcess) -> None:
    def hurry() -> None:
        writer = connect(door(cluster, 1), client_id="hasty")
        writer.line.send(publishes(39))  # a burst and nearly another: a debt of ten seconds
        writer.line.send(publishes(1))

    words = seen(cluster, "hasty", "RateLimited", hurry)
    assert "its own rate of publishes is exceeded" in words


def test_an_unknown_client_and_an_unknown_group(cluster: ClusterProcess) -> None:
    def said(what: str) -> tuple[int, str]:
        found: list[tuple[int, str]] = []

        def answered() -> bool:
            found.append(why(cluster, 1, what))
            return found[-1][0] != UNREACHABLE

        cluster.until(answered, "an answer")
        return found[-1]

    code, text = said("nobody-at-all")
    assert (code, "has no session" in text) == (1, True)
    assert said("4711")[0] == 3
    assert "leads" in said("1")[1]
    assert run_why("--admin", "127.0.0.1:1", "x")[0] == 12
    assert run_why("--admin", "nowhere", "x")[0] == 2


def test_no_leader_is_named_for_the_client_and_for_the_group(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    with ClusterProcess(data, tenant_prgs=3, restart=False, patience=PATIENT) as cluster:
        cluster.until(lambda: all(is_ready(cluster, node) for node in NODES), "all are ready")

        def connected() -> bool:
            with contextlib.suppress(AssertionError, OSError):
                return not connect(door(cluster, 1), client_id="reader").connack.reason_code
            return False

        cluster.until(connected, "the client is let in")
        for node in (2, 3):
            cluster.kill(node)

        def leaderless() -> bool:
            """First an election runs, and then it is seen that the others are gone."""
            return "1 of 3 voters" in causes(cluster, "reader").get("NoLeader", "")

        cluster.until(leaderless, "its partition has no leader, and why")

        def says(about: str, *words: str) -> bool:
            code, text = why(cluster, 1, about)
            return code == 1 and all(each in text for each in words)

        sentence = "which has no leader: nobody leads: 1 of 3 voters can be reached"
        cluster.until(lambda: says("reader", sentence, "node 2, node 3"), "the client is told")
        cluster.until(
            lambda: says("1", "group 1: nobody leads"),
            "group 1 is without a leader too: each finds out",
        )


def test_a_blocked_group_has_no_credits_and_says_whose_word_it_was(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    described = prepare_cluster(
        data, cluster_id("dev"), nodes=1, base_port=7000, groups=1, now=utc_now()
    )
    blocked = msgspec.structs.replace(described, flow=FlowNumbers(structural_hard_block=True))
    (data / CLUSTER_FILE).write_bytes(encode_cluster_file(blocked))
    with ClusterProcess(data, nodes=1, tenant_prgs=1) as cluster:
        cluster.until(lambda: _is_led(cluster), "it leads")
        writer = connect(door(cluster, 1), client_id="writer")
        writer.line.send(publishes(3))

        def stalled() -> bool:
            answer = page(cluster, 1, "/clients/writer/why")[1]
            return "NoCredits" in {cause["clause"] for cause in answer.get("causes", ())}

        cluster.until(stalled, "its publishes wait for credits")

        def says() -> bool:
            code, text = why(cluster, 1, "writer")
            return code == 1 and "structural_hard_block refuses every write" in text

        cluster.until(says, "the command says so")

        def blocked_by() -> bool:
            _, answer = page(cluster, 1, "/groups/1000/why/WhyCreditZero")
            return (answer.get("holds"), answer.get("clause")) == (True, "StructuralHardBlock")

        cluster.until(blocked_by, "the group says so")

        def unready() -> bool:
            code, body = page(cluster, 1, "/readyz")
            return code == 503 and set(body["reasons"]) == {"IngestBlocked"}

        cluster.until(unready, "not ready, for the same reason")


def _is_led(cluster: ClusterProcess) -> bool:
    code, found = page(cluster, 1, "/v1/broker/status")
    served = [each["serves"] for each in found.get("partitions", ())]
    return code == 200 and bool(served) and all(served) and all_listen(cluster)


def test_the_journal_is_json_where_the_environment_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTUM_LOG_FORMAT", "json")
    data = tmp_path / "cluster"
    with ClusterProcess(data, nodes=1, tenant_prgs=1) as cluster:
        cluster.until(lambda: _is_led(cluster), "it leads")
    lines = (data / "node-1.log").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert len(events) > 3
    assert {event["node_id"] for event in events} == {1}
    assert any(event["event"].startswith("group %d: %s in term") for event in events)
