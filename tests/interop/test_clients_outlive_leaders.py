"""The leader of a partition is killed: clients that came by other nodes stay connected and go on.

Their node waits with them for the next leader and says again what had no answer. Who would lose
something by that, a clean session with subscriptions, is told that its server moved.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from urllib.request import urlopen

import pytest

from quantum.cli.admin_client import AdminUnreachable, fetch
from quantum.protocols.mqtt.codec import (
    Disconnect,
    Pingreq,
    Pingresp,
    ProtocolVersion,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
)
from tests.interop import luck
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.test_half_open import Port
from tests.quantum.serving.client import V5, V311, Client, SocketLine, connect, will

MORE = 20
"""How many publishes are acknowledged before and after each kill."""
DEADLINE_SECONDS = 180.0

pytestmark = pytest.mark.skipif(
    bool(luck.ROAMS or luck.SLOW), reason="leaders are moved, or nodes stopped, on purpose"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Patient: the only leader that goes is the one that is killed, however busy the machine."""
    data = tmp_path_factory.mktemp("outlive")
    with ClusterProcess(data, tenant_prgs=1, patience=PATIENT) as made:
        made.until(lambda: leader_of(made) is not None, "the partition is served")
        yield made


def leader_of(cluster: ClusterProcess) -> int | None:
    """Name the node that serves the tenant's only partition."""
    for node in range(1, cluster.nodes + 1):
        try:
            _, page = fetch(cluster.admin(node), "/v1/broker/status")
        except AdminUnreachable:
            continue
        if all(each["serves"] for each in page.get("partitions", ())) and page.get("partitions"):
            return node
    return None


def metric(cluster: ClusterProcess, node: int, name: str) -> float:
    admin = cluster.admin(node)
    with urlopen(f"http://{admin.host}:{admin.port}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


class Publisher(threading.Thread):
    """Publishes one message behind the other on one connection, and never dials again."""

    def __init__(self, client: Client, topic: bytes, qos: int) -> None:
        super().__init__(daemon=True)
        self.client, self._topic, self._qos = client, topic, qos
        self.acked = 0
        self.stopping = threading.Event()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.client.next_id %= 60_000
                self.client.publish(self._topic, b"%d" % self.acked, self._qos)
                self.acked += 1
        except BaseException as error:  # noqa: BLE001  # the test says it
            self.failed = error


class Reader(threading.Thread):
    """Acknowledges every message on one connection, and counts what it got."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.got: Counter[tuple[bytes, bytes]] = Counter()
        self._open: set[int] = set()
        self.end: object = None

    def run(self) -> None:
        while isinstance(packet := self.client.receive(), Publish | Pubrel | Pingresp):
            if isinstance(packet, Pubrel):
                self._open.discard(packet.packet_id)
                self.client.send(Pubcomp(packet.packet_id))
            elif isinstance(packet, Publish):
                self._on_publish(packet)
        self.end = packet

    def _on_publish(self, packet: Publish) -> None:
        """Count it, unless it is one of QoS 2 that is known by its packet id (method A or B)."""
        if packet.packet_id not in self._open:
            self.got[bytes(packet.topic), packet.payload] += 1
        if packet.qos == 2:
            self._open.add(packet.packet_id)
            self.client.send(Pubrec(packet.packet_id))
        else:
            self.client.send(Puback(packet.packet_id))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def come(door: Port, version: ProtocolVersion, **asked: object) -> Client:
    """Connect as soon as this node listens, and knows who leads."""
    found: list[Client] = []

    def is_let_in() -> bool:
        with contextlib.suppress(AssertionError, OSError):
            client = connect(door, version, **asked)  # type: ignore[arg-type]
            if not client.connack.reason_code.is_failure:
                found.append(client)
                return True
            client.cut()
        return False

    until(is_let_in, f"{asked['client_id']} is let in")
    return found[0]


def stand_in(cluster: ClusterProcess, leader: int) -> int:
    """Return the port of a node that does not lead."""
    return cluster.base_port + 10 * (leader % cluster.nodes + 1) + 2


def test_clients_of_other_nodes_stay_connected_when_their_leader_is_killed(
    cluster: ClusterProcess,
) -> None:
    until(lambda: leader_of(cluster) is not None, "the partition is served")
    leader = leader_of(cluster)
    assert leader is not None
    door, near = Port(stand_in(cluster, leader)), leader % cluster.nodes + 1
    resumed = metric(cluster, near, "quantum_resumed_total")
    asked = {"clean": False, "session_expiry_interval": 300, "will": will(b"out/will", qos=1)}
    lasting = come(door, V5, client_id="lasting", **asked)
    lasting.subscribe(b"out/#", 2)
    reader = Reader(lasting)
    clean = Reader(come(door, V5, client_id="clean"))
    clean.client.subscribe(b"out/#", 1)
    once = come(door, V311, client_id="once", clean=False)
    plain = come(door, V311, client_id="plain", clean=True)
    publishers = [Publisher(plain, b"out/plain", 1), Publisher(once, b"out/once", 2)]
    threads: list[threading.Thread] = [reader, clean, *publishers]
    for each in threads:
        each.start()
    wait_for_more(publishers)
    cluster.kill(leader)
    wait_for_more(publishers)
    for publisher in publishers:
        publisher.stopping.set()
        publisher.join(DEADLINE_SECONDS)
        assert publisher.failed is None, publisher.failed
        publisher.client.expect_quiet()
    wanted = {
        (topic, b"%d" % number)
        for topic, publisher in zip((b"out/plain", b"out/once"), publishers, strict=True)
        for number in range(publisher.acked)
    }
    until(lambda: wanted <= set(reader.got), "whatever was acknowledged arrives")
    twice = [name for name, count in reader.got.items() if name[0] == b"out/once" and count > 1]
    assert not twice, "QoS 2 is exactly once"
    assert not any(topic == b"out/will" for topic, _ in reader.got), "it never went away"
    lasting.send(Pingreq())
    assert reader.end is None and reader.is_alive(), reader.end
    clean.join(DEADLINE_SECONDS)
    assert isinstance(clean.end, Disconnect) and clean.end.reason_code is ReasonCode.SERVER_MOVED
    until(lambda: metric(cluster, near, "quantum_resumed_total") - resumed >= 3, "all are counted")
    hang_up(lasting)
    reader.join(DEADLINE_SECONDS)
    for client in (lasting, clean.client, once, plain):
        client.cut()


def wait_for_more(publishers: list[Publisher]) -> None:
    goals = [publisher.acked + MORE for publisher in publishers]

    def more() -> bool:
        failed = [each.failed for each in publishers if each.failed is not None]
        assert not failed, failed
        return all(each.acked >= goal for each, goal in zip(publishers, goals, strict=True))

    until(more, "publishing goes on")


def hang_up(client: Client) -> None:
    """Let the thread that reads a connection see its end; the socket is closed behind it."""
    assert isinstance(client.line, SocketLine)
    with contextlib.suppress(OSError):
        client.line._socket.shutdown(socket.SHUT_RDWR)
