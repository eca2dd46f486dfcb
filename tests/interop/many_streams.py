"""Many streams on one node: made by requests, counted by the node's own figures."""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from tests.interop.broker_process import BrokerProcess
from tests.interop.test_half_open import Port, rss_bytes
from tests.quantum.serving.client import connect

AT_ONCE = 8
LONE = 200
"""How many publishes a lone client makes."""
SYNCS = "clustor_wal_fsync_latency_ms_count"
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class ManyStreams:
    """What a number of streams costs a node."""

    count: int
    made_seconds: float
    bytes_each: float
    """Of memory, for each stream that holds a message."""
    syncs_per_publish: float
    """Of one publisher that waits for each acknowledgement."""
    start_seconds: float
    """From a kill until every partition is served again."""

    def __str__(self) -> str:
        return (
            f"{self.count:,} streams: made and filled in {self.made_seconds:.1f} s, "
            f"{self.bytes_each:,.0f} B of memory each, "
            f"{self.syncs_per_publish:.2f} syncs a publish, "
            f"served {self.start_seconds:.1f} s behind a kill"
        )


def make_streams(broker: BrokerProcess, first: int, count: int) -> None:
    """Make streams by the admin port, a few requests at a time."""

    def make(begin: int) -> None:
        at = broker.admin
        with closing(http.client.HTTPConnection(at.host, at.port, timeout=120)) as link:
            for number in range(begin, first + count, AT_ONCE):
                body = json.dumps({"name": f"s{number}", "filters": [f"s/{number}"]})
                link.request("POST", "/v1/tenants/dev/streams", body, _JSON)
                answer = link.getresponse()
                said = answer.read()
                assert answer.status < 300, said

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(make, range(first, first + AT_ONCE)))


def syncs(broker: BrokerProcess) -> float:
    """Return how often the node has written its logs through."""
    with urllib.request.urlopen(f"http://{broker.admin}/metrics", timeout=60) as page:
        for line in page.read().decode().splitlines():
            if line.startswith(f"{SYNCS} "):
                return float(line.split()[1])
    raise AssertionError(f"no such metric: {SYNCS}")


def fill(broker: BrokerProcess, first: int, count: int) -> None:
    """Publish one message into each of so many streams, by a few clients."""

    def publish(begin: int) -> None:
        writer = connect(Port(broker.mqtt))
        for number in range(begin, first + count, AT_ONCE):
            assert not writer.publish(b"s/%d" % number, b"x", 1).is_failure
        writer.cut()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(publish, range(first, first + AT_ONCE)))


def growth(broker: BrokerProcess, first: int, count: int) -> float:
    """Make and fill streams, and return what each of them took of memory."""
    before = rss_bytes(broker.pid)
    make_streams(broker, first, count)
    fill(broker, first, count)
    return (rss_bytes(broker.pid) - before) / count


def syncs_per_publish(broker: BrokerProcess, count: int) -> float:
    """Let one client publish into streams all over, one message at a time."""
    writer = connect(Port(broker.mqtt))
    before = syncs(broker)
    for number in range(LONE):
        topic = b"s/%d" % (number * count // LONE)
        assert not writer.publish(topic, b"x", 1).is_failure
    found = (syncs(broker) - before) / LONE
    writer.cut()
    return found


def measure(broker: BrokerProcess, count: int) -> ManyStreams:
    """Fill a broker that has no streams yet, kill it, and wait until it serves again.

    Memory is counted in two halves, and the smaller counts: what a node takes once, for streams
    or for anything else that happens meanwhile, is not what each of them costs.
    """
    each = growth(broker, 0, 1)
    began = time.monotonic()
    if count > 1:
        half = count // 2
        each = min(growth(broker, 1, half), growth(broker, 1 + half, count - 1 - half))
    made = time.monotonic() - began
    lone = syncs_per_publish(broker, count)
    broker.kill()
    began = time.monotonic()
    broker.start()
    return ManyStreams(count, made, each, lone, time.monotonic() - began)
