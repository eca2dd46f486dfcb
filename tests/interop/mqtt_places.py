"""Where stock clients meet the broker: one process, or three nodes reached through two of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clustor.runtime.pki import utc_now
from clustor.runtime.transport import Address
from quantum.cli.admin_client import AdminUnreachable, fetch
from quantum.edge.tls_development import ClientFiles, issue_client
from tests.interop.broker_process import HOST, BrokerProcess
from tests.interop.cluster_process import ClusterProcess

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

    def certificate(self, name: str) -> ClientFiles:
        return issue_client(self.data, name, utc_now())

    def session(self, client: str) -> dict[str, Any] | None:
        """What the broker knows of a client's session; None if it knows none."""
        code, page = fetch(self.admins[0], f"/broker/sessions/{client}")
        return page if code == 200 else None

    def knows_session(self, client: str) -> bool:
        """Say whether any node knows a client's session; its leader always does."""
        try:
            return any(fetch(each, f"/broker/sessions/{client}")[0] == 200 for each in self.admins)
        except AdminUnreachable:
            return True  # nobody said no


def _doors(first: int) -> Doors:
    return Doors(first + 2, first + 3, first + 4)


@contextmanager
def one_process(data: Path) -> Iterator[Place]:
    with BrokerProcess(data) as broker:
        doors = Doors(broker.mqtt, broker.mqtts, broker.ws)
        yield Place(ONE_PROCESS, data, doors, doors, (broker.admin,))
    shutil.rmtree(data, ignore_errors=True)


@contextmanager
def three_nodes(data: Path) -> Iterator[Place]:
    with ClusterProcess(data, tenant_prgs=3) as cluster:
        cluster.until(lambda: all_served(cluster), "every partition is served")
        near, far = (_doors(cluster.base_port + 10 * node) for node in (1, 2))
        yield Place(THREE_NODES, data, near, far, tuple(cluster.admins()))
    shutil.rmtree(data, ignore_errors=True)


def all_served(cluster: ClusterProcess, but: int = 0) -> bool:
    """Say whether each partition of the tenant is served by one of the nodes."""
    served: set[int] = set()
    for node in range(1, cluster.nodes + 1):
        if node == but:
            continue
        try:
            _, page = fetch(cluster.admin(node), "/broker/status")
        except AdminUnreachable:
            continue
        served |= {each["group"] for each in page.get("partitions", ()) if each["serves"]}
    return len(served) == 3


PLACES: dict[str, Callable[[Path], Any]] = {ONE_PROCESS: one_process, THREE_NODES: three_nodes}

__all__ = ["HOST", "ONE_PROCESS", "PLACES", "THREE_NODES", "Doors", "Place", "all_served"]
