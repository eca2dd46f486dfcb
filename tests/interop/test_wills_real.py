"""Wills on real nodes: who takes over, who comes back after a node was killed, who stays away."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from clustor.runtime.pki.identity import utc_now
from quantum.cli.admin_client import fetch
from quantum.edge.tls_development import issue_client
from tests.interop.cluster_process import PATIENT, ClusterProcess, is_so
from tests.interop.luck import is_node
from tests.interop.mqtt_places import all_listen
from tests.quantum.serving.client import Client, Dialer, Line, SocketLine, connect, will

LASTS = 600
NODES = (1, 2, 3)
GONE = (AssertionError, OSError)


@dataclass
class Door:
    """A node's plaintext listener."""

    port: int

    def dial(self) -> Line:
        return SocketLine(self.port)


@dataclass
class TlsDoor:
    """A node's TLS listener, for a client that shows a certificate."""

    port: int
    context: ssl.SSLContext

    def dial(self) -> Line:
        line = SocketLine(self.port)
        line._socket = self.context.wrap_socket(line._socket, server_hostname="localhost")
        return line


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("wills") / "var"
    with ClusterProcess(data, tenant_prgs=1, patience=PATIENT) as running:
        running.until(lambda: all_listen(running), "all nodes listen")
        yield running


def server(cluster: ClusterProcess, but: int = 0) -> int | None:
    """Name the node that serves the only partition."""
    for node in NODES:
        if node == but:
            continue
        with contextlib.suppress(Exception):
            _, page = fetch(cluster.admin(node), "/v1/broker/status")
            if any(each["serves"] for each in page["partitions"]):
                return node
    return None


def wait_for_server(cluster: ClusterProcess, but: int = 0) -> int:
    """Name the node that serves the only partition, as soon as one does."""
    found: list[int] = []

    def served() -> bool:
        node = server(cluster, but)
        found.extend([] if node is None else [node])
        return bool(found)

    cluster.until(served, "the partition is served")
    return found[0]


def kill(cluster: ClusterProcess, node: int) -> None:
    """End a node, and return when it is dead: it tells nobody of clients that go after it."""
    pid = cluster.pid(node)
    cluster.kill(node)
    cluster.until(lambda: not is_node(pid), f"node {node} is dead")


def door(cluster: ClusterProcess, node: int) -> Door:
    return Door(cluster.base_port + 10 * node + 2)


def tls_door(cluster: ClusterProcess, node: int, name: str) -> TlsDoor:
    files = issue_client(cluster.data, name, utc_now())
    context = ssl.create_default_context(cafile=files.authority)
    context.load_cert_chain(files.certificate, files.key)
    return TlsDoor(cluster.base_port + 10 * node + 3, context)


def come(
    cluster: ClusterProcess, at: Dialer, name: str, *, clean: bool = False, keep_alive: int = 0
) -> Client:
    """Connect with a will, as soon as somebody serves."""
    found: list[Client] = []

    def connected() -> bool:
        with contextlib.suppress(*GONE):
            client = connect(
                at,
                client_id=name,
                clean=clean,
                keep_alive=keep_alive,
                will=will(b"wills/" + name.encode(), b"gone", 1),
                session_expiry_interval=0 if clean else LASTS,
            )
            if not client.connack.reason_code.is_failure:
                found.append(client)
                return True
            client.cut()
        return False

    cluster.until(lambda: is_so(connected), f"{name} is connected")
    return found[-1]


def leave(client: Client) -> None:
    """Say goodbye: no will is said."""
    client.leave()
    client.cut()


def watch(cluster: ClusterProcess, at: Dialer, name: str) -> None:
    """Let somebody keep every will from now on, and go."""
    watcher = come(cluster, at, name)
    watcher.subscribe(b"wills/#", 1)
    leave(watcher)


def heard_until_the_end(cluster: ClusterProcess, at: Dialer, name: str) -> list[bytes]:
    """Say something behind everything that was said; return which wills came before it."""
    watcher = come(cluster, at, name)
    watcher.publish(b"wills/end", b"", 1)
    heard: list[bytes] = []
    while (message := watcher.take()).topic != b"wills/end":
        heard.append(bytes(message.topic))
    leave(watcher)
    return heard


def test_a_takeover_is_quiet_for_a_proven_identity_alone(cluster: ClusterProcess) -> None:
    leader = wait_for_server(cluster)
    plain, shown = door(cluster, leader), tls_door(cluster, leader, "proven")
    watch(cluster, plain, "w1")
    clients = [come(cluster, shown, "proven"), come(cluster, shown, "proven")]
    clients += [come(cluster, plain, "nobody"), come(cluster, plain, "nobody")]
    heard = heard_until_the_end(cluster, plain, "w1")
    assert heard == [b"wills/nobody"]
    for client in clients[::2]:
        client.cut()  # the broker sent these away
    for client in clients[1::2]:
        leave(client)


def test_a_killed_leader_is_no_end_of_its_clients(cluster: ClusterProcess) -> None:
    """Clients that come back in their own time are alive; who stays away is dead, once."""
    leader = wait_for_server(cluster)
    near = door(cluster, leader)
    watch(cluster, near, "w2")
    # Each in its own time: who returns has as long as a slow machine may need for it.
    times = {"clean-returns": LASTS, "lasting-returns": LASTS, "clean-stays": 2, "lasting-stays": 2}
    names = list(times)
    clients = [
        come(cluster, near, name, clean=name.startswith("clean"), keep_alive=keep_alive)
        for name, keep_alive in times.items()
    ]
    kill(cluster, leader)
    for client in clients:
        client.cut()
    far = door(cluster, wait_for_server(cluster, but=leader))
    back = [come(cluster, far, name, clean=name.startswith("clean")) for name in names[:2]]
    watcher = come(cluster, far, "w2")
    said = sorted(bytes(watcher.take().topic) for _ in range(2))
    assert said == [b"wills/clean-stays", b"wills/lasting-stays"]
    for client in (watcher, *back):  # alive, and their next will is their own
        leave(client)
    assert heard_until_the_end(cluster, far, "w2") == []


def test_a_killed_node_on_the_way_is_no_end_of_its_clients(cluster: ClusterProcess) -> None:
    leader = wait_for_server(cluster)
    way = next(node for node in NODES if node != leader)
    plain = door(cluster, leader)
    cluster.until(lambda: all_listen(cluster) and is_node(cluster.pid(way)), "all nodes are back")
    watch(cluster, plain, "w3")
    client = come(cluster, door(cluster, way), "relayed")
    kill(cluster, way)
    client.cut()

    def is_away() -> bool:
        code, page = fetch(cluster.admin(leader), "/v1/tenants/dev/sessions/relayed")
        return code == 200 and not page["connected"]

    cluster.until(lambda: is_so(is_away), "the leader knows that the way is gone")
    leave(come(cluster, plain, "relayed"))
    assert heard_until_the_end(cluster, plain, "w3") == []
