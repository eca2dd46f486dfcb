"""Broken packets at a real broker, plain and under TLS: in its metrics, in its audit log."""

from __future__ import annotations

import json
import socket
import ssl
import time
from contextlib import suppress
from pathlib import Path

from typer.testing import CliRunner

from clustor.runtime.development import node_directory
from clustor.runtime.pki.identity import NodeId, utc_now
from quantum.cli import audit
from quantum.edge.tls_development import issue_client
from tests.interop.broker_process import HOST, BrokerProcess
from tests.interop.test_half_open import Port, metric
from tests.quantum.serving.client import connect

DEADLINE_SECONDS = 180.0
CONNECT = b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x00\x00\x03bad"
CONNACK = b"\x20\x02\x00\x00"
BROKEN = (b"\x30\x03\xff\xfft", b"\x30\xff\xff\xff\x7f", b"\x30\x05\0\3\xed\xa0\x80", b"\x00\x00")


def say(line: socket.socket, *, broken: bytes) -> None:
    """Connect, say something broken, and see the broker hang up."""
    with line:
        line.settimeout(DEADLINE_SECONDS)
        line.sendall(CONNECT)
        assert line.recv(4) == CONNACK
        line.sendall(broken)
        with suppress(ConnectionResetError):  # it may hang up before it has read all of it
            assert line.recv(1) == b""


def told(audits: Path) -> list[dict[str, str]]:
    """Return what the audit log tells of broken packets; it is written a moment later."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        command = ["show", str(audits), "--what", "MalformedPacket", "--json"]
        shown = CliRunner().invoke(audit.app, command)
        found = [json.loads(line) for line in shown.stdout.splitlines() if line.startswith("{")]
        if len(found) >= 5:
            return found
        assert time.monotonic() < deadline, shown.stdout
        time.sleep(0.05)


def test_broken_packets_are_counted_and_audited_and_nobody_notices(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "var") as broker:
        other = connect(Port(broker.mqtt))
        other.subscribe(b"canary", 1)
        for broken in BROKEN:
            say(socket.create_connection((HOST, broker.mqtt)), broken=broken)
        client = issue_client(broker.data, "lamp", utc_now())
        context = ssl.create_default_context(cafile=client.authority)
        context.load_cert_chain(client.certificate, client.key)
        plain = socket.create_connection((HOST, broker.mqtts))
        say(context.wrap_socket(plain, server_hostname="localhost"), broken=BROKEN[0])
        found = told(node_directory(broker.data, NodeId(1)))
        assert metric(broker, "quantum_faults_total") > 0
        assert {each["who"] for each in found} == {"- bad", f"{client.identity} bad"}
        assert {each["tenant"] for each in found} == {"dev"}
        other.publish(b"canary", b"sings", 1)
        assert other.take().payload == b"sings"
        other.cut()
