"""A real broker of one node, in processes of its own, ready for MQTT clients."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.cluster_process import DEADLINE_SECONDS, ClusterProcess

MQTT_ROLE = 2
HOST = "127.0.0.1"
_CONNECT = bytes.fromhex("10110004") + b"MQTT" + bytes.fromhex("0402003c0005") + b"ready"
_CONNACK = bytes.fromhex("20020000")


@contextmanager
def running_broker(data: Path) -> Iterator[int]:
    """Start a broker and give the port of its plaintext listener, once every partition serves."""
    with ClusterProcess(data, nodes=1, tenant_prgs=3) as cluster:
        port = cluster.base_port + 10 + MQTT_ROLE
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not all(_is_served(port, number) for number in range(16)):
            assert time.monotonic() < deadline, f"never served\n{cluster.last_words()}"
            time.sleep(0.02)
        yield port


def _is_served(port: int, number: int) -> bool:
    """Say whether a client is let in; sixteen ids meet every partition."""
    try:
        with socket.create_connection((HOST, port), 60) as client:
            client.settimeout(60)
            client.sendall(_CONNECT[:-1] + b"%x" % number)
            return client.recv(4) == _CONNACK
    except OSError:
        return False
