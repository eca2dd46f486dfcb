"""Where stock clients meet the broker: one process, or three nodes reached through two of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.identity import utc_now
from quantum.cli.admin_client import AdminUnreachable, fetch
from quantum.edge.tls_development import ClientFiles, issue_client
from tests.clustor.runtime import waiting
from tests.interop.broker_process import HOST, BrokerProcess
from tests.interop.cluster_process import PATIENT, ClusterProcess

ONE_PROCESS, THREE_NODES = "one process", "three nodes"


@dataclass(frozen=True)
class Doors:
    """The ports of one node."""

    mqtt: int
    mqtts: int
    ws: int


@dataclass(frozen=True)
class Place:
    """A broker that runs. `near` and `far` are different nodes where there are several."""

    name: str
    data: Path
    near: Doors
    far: Doors
    admins: tuple[Address, ...]
    pids: tuple[int, ...]

    def certificate(self, name: str) -> ClientFiles:
        return issue_client(self.data, name, utc_now())

    def session(self, client: str) -> dict[str, Any] | None:
        """What the first node knows of a client's session; None if it knows none."""
        return self._page(f"/v1/tenants/dev/sessions/{client}")

    def has_subscribed(self, client: str, subscriptions: int) -> bool:
        """Say whether every partition knows of a client's subscriptions.

        Its session has them a moment before: what the others are told waits in its channels, in
        every replica, until they have it in their logs.
        """
        session = self.session(client)
        if session is None or session["subscriptions"] < subscriptions:
            return False
        status = self._page("/v1/broker/status")
        return status is not None and not any(
            status["partitions"][session["partition"]]["channels"].values()
        )

    def is_away(self, client: str) -> bool:
        """Say whether every node knows that a client is not connected."""
        pages = [
            self._page(f"/v1/tenants/dev/sessions/{client}", node)
            for node in range(len(self.admins))
        ]
        return all(page is not None and not page["connected"] for page in pages)

    def _page(self, path: str, node: int = 0) -> dict[str, Any] | None:
        try:
            code, page = fetch(self.admins[node], path)
        except AdminUnreachable:
            return None
        return page if code == 200 else None

    def knows_session(self, client: str) -> bool:
        """Say whether any node knows a client's session; its leader always does."""
        try:
            return any(
                fetch(each, f"/v1/tenants/dev/sessions/{client}")[0] == 200 for each in self.admins
            )
        except AdminUnreachable:
            return True  # nobody said no


def _doors(first: int) -> Doors:
    return Doors(first + 2, first + 3, first + 4)


@contextmanager
def one_process(data: Path) -> Iterator[Place]:
    with BrokerProcess(data) as broker:
        doors = Doors(broker.mqtt, broker.mqtts, broker.ws)
        yield Place(ONE_PROCESS, data, doors, doors, (broker.admin,), (broker.pid,))
    shutil.rmtree(data, ignore_errors=True)


@contextmanager
def three_nodes(data: Path) -> Iterator[Place]:
    with ClusterProcess(data, tenant_prgs=3, patience=PATIENT) as cluster:
        cluster.until(lambda: all_served(cluster), "every partition is served")
        near, far = (_doors(cluster.base_port + 10 * node) for node in (1, 2))
        pids = tuple(map(cluster.pid, range(1, cluster.nodes + 1)))
        yield Place(THREE_NODES, data, near, far, tuple(cluster.admins()), pids)
    shutil.rmtree(data, ignore_errors=True)


def all_listen(cluster: ClusterProcess, but: int = 0) -> bool:
    """Say whether every node listens on all its ports: others may lead before the last is there,
    and TLS, whose certificates are made first, comes after plaintext."""
    nodes = set(range(1, cluster.nodes + 1)) - {but}
    doors = [_doors(cluster.base_port + 10 * node) for node in nodes]
    return waiting.all_listen(port for each in doors for port in (each.mqtt, each.mqtts, each.ws))


def all_served(cluster: ClusterProcess, but: int = 0) -> bool:
    """Say whether each partition of the tenant is served by a node, and all nodes listen."""
    if not all_listen(cluster, but):
        return False
    served: set[int] = set()
    for node in range(1, cluster.nodes + 1):
        if node == but:
            continue
        try:
            _, page = fetch(cluster.admin(node), "/v1/broker/status")
        except AdminUnreachable:
            continue
        served |= {each["group"] for each in page.get("partitions", ()) if each["serves"]}
    return len(served) == 3


PLACES: dict[str, Callable[[Path], Any]] = {ONE_PROCESS: one_process, THREE_NODES: three_nodes}

__all__ = ["HOST", "ONE_PROCESS", "PLACES", "THREE_NODES", "Doors", "Place", "all_served"]
