"""What `cluster up` says once every partition is led: that it is ready, and lines to try."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import typer

from clustor.runtime.cluster_file import ADMIN_ROLE, ClusterFile, NodeEntry
from clustor.runtime.peers.address import Address
from quantum.cli.admin_client import AdminUnreachable, fetch
from quantum.cli.naming import own_command
from quantum.node.listening import MQTT_ROLE
from quantum.tenants.broker_file import read_broker_file

LOOK_SECONDS: Final = 0.5


def mqtt_of(entry: NodeEntry) -> Address:
    """Return where a node of a development cluster takes MQTT clients."""
    return Address(entry.host, entry.admin_port - ADMIN_ROLE + MQTT_ROLE)


def is_ready(status: dict[str, Any]) -> bool:
    """Say whether a broker's status shows partitions, and a leader for each."""
    rows = status.get("partitions") or ()
    return bool(rows) and all(row["leader"] is not None for row in rows)


class Greeting:
    """Asks the nodes beside the supervisor, whose own work must not wait for a slow answer."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.serves_mqtt = bool(read_broker_file(root).tenants)
        self._said = not self.serves_mqtt
        self._ready = threading.Event()
        self._asking: threading.Thread | None = None

    def say_when_ready(self, cluster: ClusterFile) -> None:
        """Greet once, as soon as every node says so; called again and again."""
        if self._said or cluster.admin_tls:  # whoever asks for certificates is not asked by us
            return
        if self._ready.is_set():
            self._said = True
            self._say(cluster)
        elif self._asking is None:
            places = [entry.admin for entry in cluster.nodes]
            self._asking = threading.Thread(target=self._ask, args=(places,), daemon=True)
            self._asking.start()

    def _ask(self, places: list[Address]) -> None:
        while not all(map(_answers_ready, places)):
            time.sleep(LOOK_SECONDS)
        self._ready.set()

    def _say(self, cluster: ClusterFile) -> None:
        own, first, last = own_command(), cluster.nodes[0], cluster.nodes[-1]
        lines = [
            f"Quantum is ready: {len(cluster.nodes)} nodes",
            *(f"  {f'node {entry.node_id}':<10} MQTT {mqtt_of(entry)}" for entry in cluster.nodes),
            f"  {'data':<10} {self._root}",
            "Try it:",
            f"  mosquitto_sub -p {mqtt_of(last).port} -t 'hello/#' -v",
            f"  mosquitto_pub -p {mqtt_of(first).port} -q 1 -t hello/world -m 'on a quorum'",
            f"  {own} pub hello/world 'once, exactly' --qos 2 --port {mqtt_of(first).port}",
            f"  {own} cluster status --data {self._root}",
        ]
        typer.echo("\n".join(lines))
        sys.stdout.flush()


def _answers_ready(place: Address) -> bool:
    try:
        code, status = fetch(place, "/v1/broker/status")
    except AdminUnreachable:
        return False
    return code == 200 and is_ready(status)
