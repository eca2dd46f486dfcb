"""What an idle connection costs the server: resident bytes beyond the process's base.

The server is a process of its own with a handler that holds nothing, so the figures are the
edge's alone; for `broker-tcp` and `broker-tls` it is `quantum up` itself, with MQTT clients. The
clients live in other processes, spread over the addresses of 127.0.0.0/8.

    python -m bench.idle_connections [--count 5000] [--kinds tcp-silent tcp ws tls broker-tls]

`tcp-silent` clients never say a word (half-open, no handler yet); the others were answered once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import multiprocessing.connection
import resource
import socket
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table
from websockets.frames import Frame, Opcode

from clustor.runtime.pki.identity import utc_now
from quantum.edge.admission import AdmissionLimits
from quantum.edge.listener import Listener
from quantum.edge.listener_tls import TlsListener
from quantum.edge.lobby import EdgeLimits, Lobby
from quantum.edge.ports import ConnectionPeer, WirePort
from quantum.edge.tls_development import issue_client, prepare_server
from quantum.edge.websocket import over_websocket
from tests.interop.broker_process import BrokerProcess

PER_CLIENT_PROCESS = 10_000
SILENT_BATCH = 500
WARM_UP = 100
IP_BIND_ADDRESS_NO_PORT = 24  # Linux: choose the port when the destination is known
HOST = "127.0.0.1"
HELLO = b"\x10hello"
ANSWER = b"\x20ok"
CONNECT = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00"
"""MQTT 3.1.1, a clean session, no keep-alive, an id that the broker draws."""
CONNACK = b"\x20\x02\x00\x00"
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


class Idle:
    """A handler that answers once and holds nothing."""

    __slots__ = ("wire",)

    def opened(self, wire: WirePort, _peer: ConnectionPeer) -> None:
        self.wire = wire

    def received(self, _data: bytes) -> None:
        self.wire.write(ANSWER)

    def writable_again(self) -> None:
        pass

    def lost(self) -> None:
        pass


def resident_bytes(pid: int | str = "self") -> int:
    """Return a process's private resident memory."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean", "Private_Dirty")):
            total += int(line.split()[1]) << 10
    return total


async def serve(kind: str, pki: Path, pipe: multiprocessing.connection.Connection) -> None:
    lobby = Lobby(
        EdgeLimits(
            AdmissionLimits(1_000_000, per_second=1e9, burst=1_000_000),
            first_answer_seconds=600.0,
        )
    )
    listener = listener_of(kind, lobby, pki)
    await listener.start(HOST, 0)
    gc.collect()
    base = resident_bytes()
    pipe.send(listener.port)
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    loop.add_reader(pipe.fileno(), asked.set)
    await asked.wait()
    pipe.recv()
    await asyncio.sleep(0.5)  # the kernel may still hold some for us
    gc.collect()
    pipe.send((listener.connections, resident_bytes() - base))
    await asyncio.sleep(3600)


def listener_of(kind: str, lobby: Lobby, pki: Path) -> Listener:
    if kind == "tls":
        certificates = prepare_server(pki, utc_now())
        return TlsListener(
            "mqtts", lobby, Idle, certificates=certificates, tenant_of=lambda _name: "dev"
        )
    if kind == "ws":
        return Listener("ws", lobby, over_websocket({"mqtt": Idle}), tenant="dev")
    return Listener("mqtt", lobby, Idle, tenant="dev")


def server_process(kind: str, pki: str, pipe: Any) -> None:
    raise_limits()
    uvloop.run(serve(kind, Path(pki), pipe))


def raise_limits() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def client_process(kind: str, port: int, count: int, source: str, pki: str, pipe: Any) -> None:
    raise_limits()
    context = client_context(Path(pki)) if kind.endswith("tls") else None
    held = []
    for number in range(count):
        held.append(connect(kind, port, source, context))
        if kind == "tcp-silent" and number % SILENT_BATCH == 0:
            # Answered in their order: the server has taken all that came before this one.
            connect("tcp", port, source, None).close()
    pipe.send(len(held))
    pipe.recv()


def client_context(pki: Path) -> ssl.SSLContext:
    client = issue_client(pki, "idle", utc_now())
    context = ssl.create_default_context(cafile=client.authority)
    context.load_cert_chain(client.certificate, client.key)
    return context


def connect(kind: str, port: int, source: str, context: ssl.SSLContext | None) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    client.bind((source, 0))
    client.connect((HOST, port))
    if context is not None:
        client = context.wrap_socket(client, server_hostname="localhost")
    if kind.startswith("broker"):
        client.sendall(CONNECT)
        assert client.recv(16) == CONNACK
    elif kind == "ws":
        client.sendall(UPGRADE)
        assert client.recv(4096).startswith(b"HTTP/1.1 101 ")
        client.sendall(Frame(Opcode.BINARY, HELLO).serialize(mask=True))
        assert client.recv(16).endswith(ANSWER)
    elif kind != "tcp-silent":
        client.sendall(HELLO)
        assert client.recv(16) == ANSWER
    return client


@contextmanager
def connected(kind: str, port: int, count: int, pki: Path) -> Iterator[None]:
    """Have so many clients, in processes of their own."""
    context = multiprocessing.get_context("spawn")
    clients = []
    for number, start in enumerate(range(0, count, PER_CLIENT_PROCESS)):
        mine, its = context.Pipe()
        some = min(PER_CLIENT_PROCESS, count - start)
        arguments = (kind, port, some, f"127.0.1.{number + 1}", str(pki), its)
        process = context.Process(target=client_process, args=arguments, daemon=True)
        process.start()
        assert mine.recv() == some
        clients.append((process, mine))
    yield
    for process, mine in clients:
        mine.send("end")
        process.join()


def measure_broker(kind: str, count: int, scratch: Path) -> dict[str, object]:
    scratch.mkdir()
    data = scratch / "var"
    with BrokerProcess(data) as broker:
        port = broker.mqtts if kind == "broker-tls" else broker.mqtt
        with connected(kind, port, WARM_UP, data):  # what the first ones make is the base's
            pass
        base = resident_bytes(broker.pid)
        with connected(kind, port, count, data):
            grown = resident_bytes(broker.pid) - base
    return {"kind": kind, "connections": count, "bytes_each": round(grown / count)}


def measure(kind: str, count: int, pki: Path) -> dict[str, object]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=server_process, args=(kind, str(pki), theirs), daemon=True)
    server.start()
    port = ours.recv()
    with connected(kind, port, count, pki):
        ours.send("measure")
        connections, grown = ours.recv()
    server.kill()
    server.join()
    return {"kind": kind, "connections": connections, "bytes_each": round(grown / connections)}


def main() -> None:
    parser = argparse.ArgumentParser(description="What an idle connection costs the server.")
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--kinds", nargs="+", default=["tcp-silent", "tcp", "ws", "tls"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = [
            (measure_broker if kind.startswith("broker") else measure)(
                kind, options.count, Path(scratch) / str(nth)
            )
            for nth, kind in enumerate(options.kinds)
        ]
    if options.json:
        print(json.dumps(rows))
        return
    table = Table("connection", "count", "bytes each", title="Idle connections at the edge")
    for row in rows:
        table.add_row(str(row["kind"]), f"{row['connections']:,}", f"{row['bytes_each']:,}")
    Console().print(table)


if __name__ == "__main__":
    main()
