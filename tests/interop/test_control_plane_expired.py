"""The control plane is gone for so long that copies of it expire: what MQTT clients see (C8)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from quantum.cli.why import why as why_command
from quantum.protocols.mqtt.codec import (
    ClientId,
    Connack,
    Connect,
    Disconnect,
    PacketId,
    Properties,
    ProtocolVersion,
    Publish,
    ReasonCode,
    SubscribePacket,
    Subscription,
    TopicFilter,
    TopicName,
)
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.control_process import all_healthy, everybody, groups_of_leaders, pause, prepared
from tests.interop.machine import slowness
from tests.interop.mqtt_places import all_served
from tests.quantum.serving.client import V5, V311, Client, SocketLine, connect, dial, will

NODES = (1, 2, 3)
GROUPS = 5  # three of the tenant, one of plain keys, the control plane's
FRESH_MS, GRACE_MS = 3_000, 6_000
"""On a machine of our own; on a busy one a node that only gets no turn must not expire."""
UNAVAILABLE, BUSY = ReasonCode.SERVER_UNAVAILABLE, ReasonCode.SERVER_BUSY
WORDS = "ControlPlaneUnavailable{CacheExpired}"


@dataclass
class Door:
    """One node, as clients reach it."""

    port: int
    lines: list[SocketLine]

    def dial(self) -> SocketLine:
        self.lines.append(SocketLine(self.port))
        return self.lines[-1]


@pytest.fixture
def lines() -> Iterator[list[SocketLine]]:
    opened: list[SocketLine] = []
    yield opened
    for line in opened:
        line.cut()


def doors(cluster: ClusterProcess, lines: list[SocketLine]) -> list[Door]:
    return [Door(cluster.base_port + 10 * node + 2, lines) for node in NODES]


def has_expired(cluster: ClusterProcess) -> bool:
    """Say whether every copy is Expired, and every leader of a group knows it."""
    led = groups_of_leaders(cluster)
    data = [each for each in led if each["role"] == "Leader" and each["cache_state"] == "Expired"]
    copies = [each["cache_state"] == "Expired" for each in everybody(cluster)]
    return copies == [True] * len(NODES) and len(data) >= GROUPS - 1


def why(cluster: ClusterProcess, client: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(why_command)
    told = CliRunner().invoke(app, [client, "--admin", str(cluster.admin(1)), "--client"])
    return told.exit_code, told.output


def is_named(cluster: ClusterProcess, client: str) -> bool:
    code, output = why(cluster, client)
    return code == 1 and WORDS in output


def refused(packet: Any, reason: ReasonCode) -> None:
    assert packet.reason_code is reason, packet
    said = packet.properties.reason_string
    assert said is not None and WORDS in said, packet


def ends_with(client: Client, reason: ReasonCode) -> None:
    """Expect nothing but the end, and its reason."""
    packet = client.expect(Disconnect)
    refused(packet, reason)
    client.expect_end()


def knock(
    door: Door, client_id: str, version: ProtocolVersion = V5, *, clean: bool = True
) -> Client:
    """Ask to be let in, and do not wait for the answer."""
    client = dial(door, version)
    kept = Properties(session_expiry_interval=600) if version is V5 and not clean else Properties()
    client.send(Connect(version, ClientId(client_id), clean, 0, None, None, None, kept))
    return client


def is_back(door: Door) -> bool:
    """Say whether a node lets somebody in."""
    with suppress(AssertionError, OSError):
        client = connect(door)
        let_in = client.connack.reason_code is ReasonCode.SUCCESS
        client.cut()
        return let_in
    return False


def come(cluster: ClusterProcess, door: Door, name: str, **asked: Any) -> Client:
    """Connect as soon as the partition of this very client is served."""
    found: list[Client] = []

    def is_let_in() -> bool:
        with suppress(AssertionError, OSError):
            found.append(connect(door, client_id=name, **asked))
            return found[-1].connack.reason_code is ReasonCode.SUCCESS
        return False

    cluster.until(is_let_in, f"{name} is let in")
    return found[-1]


def test_clients_are_refused_by_the_matrix_and_everything_comes_back(
    tmp_path: Path, lines: list[SocketLine]
) -> None:
    data, slow = tmp_path / "cluster", min(slowness(), 5.0)
    numbers = {"cache_fresh_ms": round(FRESH_MS * slow), "cache_grace_ms": round(GRACE_MS * slow)}
    prepared(data, **numbers, patience=PATIENT, fault_injection=True)
    with ClusterProcess(data, tenant_prgs=3) as cluster:
        cluster.until(lambda: all_served(cluster), "every partition is served")
        cluster.until(lambda: all_healthy(cluster, GROUPS), "every group is proven")
        near, far, third = doors(cluster, lines)

        keeper = connect(near, client_id="keeper", clean=False, session_expiry_interval=600)
        keeper.subscribe(b"kept/#", qos=1)
        watcher = connect(third, client_id="watcher")
        watcher.subscribe(b"wills/#", qos=1)
        idle = connect(far, client_id="idle")
        asking = connect(near, client_id="asking")
        gone = will(b"wills/writer", qos=1)
        writer = connect(far, client_id="writer", will=gone)
        older = connect(third, V311, client_id="older")
        writer.publish(b"kept/1", b"before", qos=1)
        assert keeper.take().payload == b"before"
        keeper.leave()

        for node in NODES:
            pause(cluster, node, paused=True)
        cluster.until(lambda: has_expired(cluster), "every copy is Expired")
        for name in ("idle", "writer", "keeper", "nobody"):
            cluster.until(partial(is_named, cluster, name), f"`quantum why` names it for {name}")

        # Who is connected and asks for what is closed, gets no answer and must go (C11).
        topic, filters = TopicName(b"kept/2"), (Subscription(TopicFilter(b"more/#"), 1),)
        during = partial(Publish, topic, b"during", 1)
        writer.send(during(packet_id=PacketId(77)))
        older.send(during(packet_id=PacketId(78)))
        asking.send(SubscribePacket(PacketId(79), filters))

        # New sessions, kept ones, and those of older clients are not begun, on any node.
        knocking = [knock(door, f"stranger-{door.port}") for door in (near, far, third)]
        knocking.append(knock(far, "keeper", clean=False))
        before_5 = knock(near, "stranger", V311)
        for client in knocking:
            refused(client.expect(Connack), UNAVAILABLE)
            client.expect_end()
        before_5.expect_refusal(UNAVAILABLE)

        ends_with(writer, BUSY)
        ends_with(asking, BUSY)
        older.expect_end()  # before MQTT 5 there are no words for it
        idle.expect_quiet()  # who asks for nothing stays
        watcher.expect_quiet()  # and no will is said

        for node in NODES:
            pause(cluster, node, paused=False)
        cluster.until(lambda: all_healthy(cluster, GROUPS), "every group is proven again")
        for door in (near, far, third):
            cluster.until(partial(is_back, door), "it lets clients in")
        back = come(cluster, far, "keeper", clean=False, session_expiry_interval=600)
        assert back.connack.session_present
        again = come(cluster, near, "writer")
        again.publish(b"kept/3", b"after", qos=1)
        assert back.take().payload == b"after"  # what was refused was never carried out
        again.publish(b"wills/none", b"last", qos=1)
        assert watcher.take().payload == b"last"
        idle.subscribe(b"idle/#", qos=1)
        again.publish(b"idle/1", b"still", qos=1)
        assert idle.take().payload == b"still"
        cluster.until(lambda: why(cluster, "idle")[0] == 0, "nothing is wrong any more")
