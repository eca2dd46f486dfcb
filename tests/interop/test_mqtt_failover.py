"""Three nodes, and the one that serves a client is killed: how soon does its publishing go on?"""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from quantum.cli.admin_client import AdminUnreachable, fetch
from tests.interop.cluster_process import ClusterProcess
from tests.interop.machine import slowness
from tests.interop.mqtt_places import HOST, all_served

ROUNDS = 3
TRIES = 3
"""A machine that is busy now and then may spoil three rounds; a slow takeover spoils all."""
GAP_SECONDS_MAX = 2.0
DEADLINE_SECONDS = 180.0


class FailoverClient:
    """A stock paho client that publishes one message behind the other, whatever node answers.

    paho itself sends again what was not acknowledged; the application only dials.
    """

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._next = 0
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            "publisher",
            clean_session=False,
            protocol=paho.MQTTv311,
            reconnect_on_failure=False,
        )
        self.client.on_publish = self._on_publish
        self.client.on_connect = self._on_connect
        self.acknowledged: list[float] = []
        self.sessions: list[bool] = []
        self._sent = 0
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._finished.set()
        self._thread.join(DEADLINE_SECONDS)

    def _run(self) -> None:
        """Stay connected to some node; a dead one refuses at once, and the next is asked."""
        while not self._finished.is_set():
            self._next = (self._next + 1) % len(self._ports)
            try:
                self.client.connect(HOST, self._ports[self._next], keepalive=10)
            except OSError:
                self._finished.wait(0.02)
                continue
            while not self._finished.is_set():
                if self.client.loop(0.02) != paho.MQTT_ERR_SUCCESS:
                    break
        self.client.disconnect()

    def _on_connect(self, _client: Any, _data: Any, flags: Any, reason: Any, _more: Any) -> None:
        if not reason.is_failure:
            self.sessions.append(flags.session_present)
            if len(self.acknowledged) == self._sent:
                self._publish()

    def _publish(self) -> None:
        self._sent += 1
        self.client.publish("failover", b"%d" % self._sent, qos=1)

    def _on_publish(self, *_words: Any) -> None:
        self.acknowledged.append(time.monotonic())
        self._publish()

    def longest_gap(self, since: int) -> float:
        """The longest time without an acknowledgement, from a place in the list on."""
        times = self.acknowledged[since:]
        return max(after - before for before, after in itertools.pairwise(times))


def serving_node(cluster: ClusterProcess, client: str) -> int | None:
    """Name the node that leads the partition of a client's session."""
    for node in range(1, cluster.nodes + 1):
        try:
            code, session = fetch(cluster.admin(node), f"/v1/tenants/dev/sessions/{client}")
            _, status = fetch(cluster.admin(node), "/v1/broker/status")
        except AdminUnreachable:
            continue
        if code == 200 and any(
            each["serves"] and each["partition"] == session["partition"]
            for each in status.get("partitions", ())
        ):
            return node
    return None


@pytest.mark.timeout(900)
def test_a_publisher_goes_on_within_two_seconds_when_its_leader_is_killed(
    tmp_path: Path,
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    with ClusterProcess(tmp_path, tenant_prgs=3) as cluster:
        cluster.until(lambda: all_served(cluster), "every partition is served")
        ports = [cluster.base_port + 10 * node + 2 for node in (1, 2, 3)]
        random.Random(seed).shuffle(ports)
        publisher = FailoverClient(ports)
        publisher.start()
        medians: list[float] = []
        while len(medians) < TRIES and min(medians, default=GAP_SECONDS_MAX) >= GAP_SECONDS_MAX:
            gaps = [_kill_the_leader(cluster, publisher) for _ in range(ROUNDS)]
            print("gaps:", ", ".join(f"{gap:.2f} s" for gap in gaps))
            medians.append(statistics.median(gaps))
        publisher.stop()
        assert publisher.sessions, "it stays connected while another node serves it"
        assert all(publisher.sessions[1:]), "the session was found on every node"
        assert min(medians) < GAP_SECONDS_MAX, medians


def _kill_the_leader(cluster: ClusterProcess, publisher: FailoverClient) -> float:
    """Kill the node that serves the publisher, wait until all is well, and return the gap.

    It is the gap on a machine of our own: what others do on this one is taken out of it.
    """

    def more(count: int) -> None:
        goal = len(publisher.acknowledged) + count
        cluster.until(lambda: len(publisher.acknowledged) >= goal, "the publisher goes on")

    more(20)
    serving: list[int] = []

    def served() -> bool:
        found = serving_node(cluster, "publisher")
        serving.extend([] if found is None else [found])
        return bool(serving)

    cluster.until(served, "the publisher's session is served")
    node = serving[0]
    starts, since = cluster.started(node), len(publisher.acknowledged) - 1
    cluster.kill(node)
    busy = slowness()
    more(20)
    gap = publisher.longest_gap(since)
    cluster.until(lambda: cluster.starts[node] > starts, "the node is started again")
    cluster.until(
        lambda: all(cluster.caught_up(node, number) for number in range(1, 5)),
        f"node {node} has caught up",
    )
    cluster.until(lambda: all_served(cluster), "every partition is served")
    return gap / busy
