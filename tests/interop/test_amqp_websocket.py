"""AMQP over WebSocket: a stock AMQP client behind a stock WebSocket client, at MQTT's own port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.interop.broker_process import BrokerProcess
from tests.interop.stock_proton import connected, send_all, take_all

pytestmark = pytest.mark.filterwarnings("default")  # the clients' own warnings are not ours
WAIT = 30.0
_FAILURES = (OSError, WebSocketException)


@contextmanager
def tunnel(port: int) -> Iterator[int]:
    """Listen for one TCP connection, and carry it over a WebSocket to a port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT)
        thread = threading.Thread(target=_carry, args=(server, port), daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(WAIT)
        assert not thread.is_alive()


def _carry(server: socket.socket, port: int) -> None:
    near, _ = server.accept()
    url = f"ws://127.0.0.1:{port}/"
    with near, connect(url, subprotocols=[Subprotocol("amqp")]) as far:
        assert far.subprotocol == "amqp"
        back = threading.Thread(target=_carry_back, args=(near, far), daemon=True)
        back.start()
        with suppress(*_FAILURES):
            while data := near.recv(1000):  # frames of AMQP begin and end anywhere
                far.send(data)
        far.close()
        back.join(WAIT)


def _carry_back(near: socket.socket, far: ClientConnection) -> None:
    with suppress(*_FAILURES):
        for data in far:
            assert isinstance(data, bytes)
            near.sendall(data)


def test_a_client_sends_and_receives_over_websocket(tmp_path: Path) -> None:
    bodies = [b"small", b"x" * 200_000]
    with BrokerProcess(tmp_path / "var", partitions=1) as broker:
        with tunnel(broker.ws) as port, connected(port) as connection:
            send_all(connection, "/queues/wide", *bodies)
        with connected(broker.amqp) as connection:
            assert [bytes(each.body) for each in take_all(connection, "/queues/wide", 2)] == bodies
            send_all(connection, "/queues/wide", b"back")
        with tunnel(broker.ws) as port, connected(port) as connection:
            assert [bytes(each.body) for each in take_all(connection, "/queues/wide", 1)] == [
                b"back"
            ]
