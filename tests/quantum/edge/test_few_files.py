"""A process without files for more connections turns clients away, and serves those it has."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from quantum.edge.listener_files import FILES_RESERVED, connections_possible
from tests.quantum.edge.few_files import SPARE
from tests.quantum.edge.recording import HOST


def echoes(client: socket.socket) -> bool:
    try:
        client.sendall(b"a")
        return client.recv(1) == b"A"
    except OSError:
        return False


def test_a_lack_of_files_ends_with_the_clients_that_took_them() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.quantum.edge.few_files"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        clients = [socket.create_connection((HOST, port), 20) for _ in range(4 * SPARE)]
        served = sum(echoes(client) for client in clients)
        assert 0 < served <= SPARE + 4
        for client in clients:
            client.close()
        again = False
        for _ in range(1000):
            with socket.create_connection((HOST, port), 20) as client:
                again = echoes(client)
            if again:
                break
        assert again, "the listener is gone"
        assert server.stdin is not None
        server.stdin.close()


@pytest.mark.parametrize(
    ("wanted", "files", "possible"),
    [(100, 10_000, 100), (100_000, 20_000, 20_000 - FILES_RESERVED), (10, 100, 1)],
)
def test_clients_never_take_the_last_files(wanted: int, files: int, possible: int) -> None:
    assert connections_possible(wanted, files) == possible
