"""Streams on three nodes: captured with the publishes' own entries, the same at every node."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from quantum.cli.admin_api import AdminApi, Told
from quantum.cli.admin_client import AdminUnreachable
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.test_clients_outlive_leaders import Publisher, come, until
from tests.interop.test_half_open import Port
from tests.quantum.serving.client import V311

DEV = "/v1/tenants/dev"
PARTITIONS = 2
"""One of three nodes leads none of them: clients that come by it outlive every leader."""
NODES = (1, 2, 3)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("streams")
    with ClusterProcess(data, tenant_prgs=PARTITIONS, patience=PATIENT) as made:
        made.until(lambda: all(is_led(made, number) for number in NODES), "every node knows")
        yield made


def ask(cluster: ClusterProcess, node: int, method: str, path: str, body: object = None) -> Told:
    return AdminApi(cluster.admin(node)).ask(method, DEV + path, body=body)


def is_led(cluster: ClusterProcess, node: int) -> bool:
    """Say whether a node answers, and knows of a leader of every partition."""
    try:
        told = ask(cluster, node, "GET", "/ring")
    except AdminUnreachable:
        return False
    rows = told.body.get("partitions", []) if told.code == 200 else []
    return len(rows) == PARTITIONS and all(row["leader"] for row in rows)


def quantum(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quantum.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def create(cluster: ClusterProcess, node: int, name: str, *options: str) -> None:
    """Make a stream by the command; a leader that changes meanwhile is asked again."""

    def is_made() -> bool:
        admin = str(cluster.admin(node))
        done = quantum("streams", "create", name, *options, "--admin", admin)
        assert "Traceback" not in done.stderr
        return done.returncode == 0

    until(is_made, f"{name} is made")


def records(cluster: ClusterProcess, node: int, name: str) -> list[dict[str, Any]]:
    """Read a whole stream at one node by the command."""
    done = quantum("streams", "read", name, "--json", "--admin", str(cluster.admin(node)))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def contents(rows: list[dict[str, Any]]) -> dict[int, list[tuple[int, str, str]]]:
    """(offset, topic, payload) of each partition, in order."""
    found: dict[int, list[tuple[int, str, str]]] = {}
    for row in rows:
        place = (int(row["offset"]), row["address"], row["payload"]["text"])
        found.setdefault(row["partition"], []).append(place)
    return found


def test_nothing_acknowledged_is_missing_and_every_node_has_the_same_behind_a_kill(
    cluster: ClusterProcess,
) -> None:
    create(cluster, 2, "everything", "--capture", "s/#")
    leaders = [row["leader"] for row in ask(cluster, 1, "GET", "/ring").body["partitions"]]
    apart = next(node for node in NODES if node not in leaders)
    door = Port(cluster.base_port + 10 * apart + 2)
    clients = [come(door, V311, client_id=f"p{qos}", clean=False) for qos in (1, 2)]
    topics = (b"s/one", b"s/two")
    publishers = [
        Publisher(client, topic, qos)
        for client, topic, qos in zip(clients, topics, (1, 2), strict=True)
    ]
    for each in publishers:
        each.start()
    wait_for_more(publishers)
    cluster.kill(leaders[0])
    wait_for_more(publishers)
    for each in publishers:
        each.stopping.set()
        each.join(180)
        assert each.failed is None, each.failed
        each.client.cut()
    wanted = {(f"s/{name}", str(n)) for name, each in zip(("one", "two"), publishers, strict=True)
              for n in range(each.acked)}  # fmt: skip

    def all_have_the_same() -> bool:
        if not all(is_led(cluster, node) for node in NODES):
            return False
        seen = [contents(records(cluster, node, "everything")) for node in NODES]
        return seen[0] == seen[1] == seen[2] and wanted <= said(seen[0]).keys()

    until(all_have_the_same, "all nodes have all of it")
    found = contents(records(cluster, 1, "everything"))
    for rows in found.values():
        assert [offset for offset, _, _ in rows] == list(range(len(rows))), "no gap, none twice"
    twice = [name for name, count in said(found).items() if name[0] == "s/two" and count > 1]
    assert not twice, "QoS 2 is exactly once"


def said(found: dict[int, list[tuple[int, str, str]]]) -> Counter[tuple[str, str]]:
    return Counter((topic, payload) for rows in found.values() for _, topic, payload in rows)


def wait_for_more(publishers: list[Publisher], more: int = 20) -> None:
    before = [each.acked for each in publishers]
    until(
        lambda: all(
            each.acked >= was + more or each.failed
            for each, was in zip(publishers, before, strict=True)
        ),
        "more is acknowledged",
    )


def publish(cluster: ClusterProcess, topic: str, text: str) -> None:
    body = {"topic": topic, "text": text, "qos": 1}

    def is_taken() -> bool:
        return ask(cluster, 1, "POST", "/publish", body).code == 200

    until(is_taken, "it is published")


def partition_of(cluster: ClusterProcess, name: str) -> int:
    """Return the only partition of a stream that has something, once node 1 has it too."""
    found: list[int] = []

    def is_there() -> bool:
        rows = ask(cluster, 1, "GET", f"/streams/{name}").body.get("partitions", [])
        found[:] = [row["partition"] for row in rows if int(row["next"])]
        return bool(found)

    until(is_there, "the node has applied it")
    (number,) = found
    return number


def test_what_is_too_old_goes_and_asking_for_it_names_the_first_offset_that_there_is(
    cluster: ClusterProcess,
) -> None:
    create(cluster, 1, "short", "--capture", "short/only", "--retention", "1s")
    publish(cluster, "short/only", "old")
    number = partition_of(cluster, "short")

    def read(**query: object) -> Told:
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        return ask(cluster, 1, "GET", f"/streams/short/records?partition={number}&{asked}")

    until(lambda: read(offset=0).code == 410, "it is trimmed")
    told = read(offset=0)
    assert told.body["error"] == "OffsetOutOfRange"
    first = int(told.body["facts"]["first"])
    assert first >= 1
    assert read(offset=first).body["items"] == []
    publish(cluster, "short/only", "new")
    rows = read(offset=first, wait_ms=5_000)
    assert rows.code == 410 or [row["payload"]["text"] for row in rows.body["items"]] == ["new"]


def test_readers_wait_for_what_comes_and_find_times(cluster: ClusterProcess) -> None:
    create(cluster, 3, "waited", "--capture", "waited/for")
    publish(cluster, "waited/for", "first")
    number = partition_of(cluster, "waited")
    path = f"/streams/waited/records?partition={number}"
    (first,) = ask(cluster, 1, "GET", path).body["items"]
    after = int(first["timestamp_ms"]) + 1
    assert ask(cluster, 1, "GET", f"{path}&time_ms={after}").body["items"] == []
    done = subprocess.Popen(
        [sys.executable, "-m", "quantum.cli", "streams", "read", "waited", "--follow", "--json",
         "--partition", str(number), "--admin", str(cluster.admin(2))],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert done.stdout is not None
    try:
        assert json.loads(done.stdout.readline())["payload"]["text"] == "first"
        publish(cluster, "waited/for", "second")
        assert json.loads(done.stdout.readline())["payload"]["text"] == "second"
    finally:
        done.kill()
        done.communicate()
    offset = int(first["offset"])
    assert ask(cluster, 1, "GET", f"{path}&time_ms={first['timestamp_ms']}").body["items"][0][
        "offset"
    ] == str(offset)


REFUSED = {
    "a name with a blank": (["create", "a b", "--capture", "x"], 1, "letters"),
    "no filter": (["create", "t2", "--capture", "x/#/y"], 1, "no topic filter: x/#/y"),
    "a retention of no unit": (["create", "t", "--capture", "x", "--retention", "7"], 2, "7d"),
    "no such stream": (["read", "nope"], 1, "no such stream"),
    "no such offset": (["read", "errors", "--from", "999"], 1, "begins at 0"),
    "no such time": (["read", "errors", "--from", "noon"], 2, "2026"),
    "another of this name": (["create", "errors", "--capture", "y"], 1, "of this name"),
    "nothing to delete": (["delete", "nope"], 1, "no such stream"),
}


def test_each_refusal_is_one_sentence_and_an_exit_code(cluster: ClusterProcess) -> None:
    create(cluster, 1, "errors", "--capture", "errors/only")
    until(lambda: ask(cluster, 2, "GET", "/streams/errors").code == 200, "another node knows it")
    for name, (arguments, code, words) in REFUSED.items():
        done = quantum("streams", *arguments, "--admin", str(cluster.admin(2)))
        assert done.returncode == code, (name, done.stderr)
        assert words in done.stderr and done.stderr.count("\n") == 1, (name, done.stderr)


def test_a_deleted_stream_is_gone_everywhere_and_its_name_is_free(cluster: ClusterProcess) -> None:
    create(cluster, 1, "passing", "--capture", "passing/by")
    publish(cluster, "passing/by", "x")

    def is_gone() -> bool:
        done = quantum("streams", "delete", "passing", "--admin", str(cluster.admin(3)))
        return done.returncode == 0 or "no such stream" in done.stderr

    until(is_gone, "it is deleted")
    until(
        lambda: all(ask(cluster, node, "GET", "/streams/passing").code == 404 for node in NODES),
        "no node has it",
    )
    create(cluster, 2, "passing", "--capture", "passing/by")
    until(lambda: ask(cluster, 1, "GET", "/streams/passing").code == 200, "it is there again")
    assert records(cluster, 1, "passing") == []
