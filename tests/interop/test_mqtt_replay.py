"""A log applied again gives the state that the cluster had: the same digest, on every node."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantum.cli.admin_client import AdminUnreachable, fetch
from quantum.protocols.mqtt.codec import Connack, Connect, ProtocolVersion
from quantum.protocols.mqtt.codec.types import ClientId
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.quantum.serving.client import Client, SocketLine, connect

V5 = ProtocolVersion.V5


@dataclass
class Node:
    """Where one node serves MQTT."""

    port: int

    def dial(self) -> SocketLine:
        return SocketLine(self.port)

    def serves(self) -> bool:
        try:
            line = self.dial()
        except OSError:
            return False
        client = Client(line)
        try:
            client.send(Connect(V5, ClientId("")))
            answer = client.receive()
        except OSError:
            return False
        finally:
            client.cut()
        return isinstance(answer, Connack) and not answer.reason_code.is_failure


def digests(cluster: ClusterProcess, node: int) -> dict[int, tuple[int, str]]:
    try:
        code, answer = fetch(cluster.admin(node), "/v1/broker/digests")
    except AdminUnreachable:
        return {}
    if code != 200:
        return {}
    return {row["partition"]: (int(row["index"]), row["digest"]) for row in answer["partitions"]}


def test_replay_gives_the_digests_of_the_live_cluster(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, tenant_prgs=3, patience=PATIENT) as cluster:
        nodes = [Node(cluster.base_port + 10 * node + 2) for node in (1, 2, 3)]
        cluster.until(lambda: all(node.serves() for node in nodes), "MQTT is served")
        lasting = connect(nodes[0], client_id="lasting", session_expiry_interval=3600)
        lasting.subscribe(b"r/#", 2)
        lasting.leave()
        lasting.cut()
        publisher = connect(nodes[1], client_id="publisher")
        for number in range(60):
            publisher.publish(b"r/%d" % (number % 7), b"%d" % number, 1 + number % 2, retain=True)
        publisher.leave()
        publisher.cut()

        live: dict[int, tuple[int, str]] = {}

        def settled() -> bool:
            seen = [digests(cluster, node) for node in (1, 2, 3)]
            live.update(seen[0])
            return len(seen[0]) == 3 and seen[0] == seen[1] == seen[2]

        cluster.until(settled, "all nodes have applied the same")
    found = replay(tmp_path)
    assert len(found) == 9
    for row in found:
        index, digest = live[row["partition"]]
        at_live = replay(tmp_path, index) if row["index"] != index else found
        matching = [
            each
            for each in at_live
            if (each["node"], each["partition"]) == (row["node"], row["partition"])
        ]
        assert [each["digest"] for each in matching] == [digest]


def replay(directory: Path, to_index: int | None = None) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", "from quantum.cli import main; main()"]
    command += ["log", "replay", str(directory), "--json"]
    command += [] if to_index is None else ["--to", str(to_index)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
