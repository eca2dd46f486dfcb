"""Whatever comes to a real node ends at most the connection it came on, and nobody else notices.

All tests of this file share one broker, in which slips are planted besides (`planted_errors`): a
witness publishes with QoS 1 before and after each, in the same process of the same number.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
from typer.testing import CliRunner

from clustor.kv import Key, Put, encode_command
from clustor.runtime.admin.caller import Credentials
from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file
from clustor.runtime.development import node_directory, prepare_cluster
from clustor.runtime.kv.stream import KvOperation, encode_request
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    PKI_DIRECTORY,
    NodeId,
    cluster_id,
    utc_now,
)
from quantum.cli import audit
from quantum.cli.admin_client import AdminUnreachable, exchange
from tests.clustor.runtime.waiting import free_base_port
from tests.interop.broker_process import HOST, BrokerProcess
from tests.interop.test_half_open import Port, metric
from tests.quantum.serving.client import Client, connect

DEADLINE_SECONDS = 180.0
ONE = NodeId(1)
JSON_POST = "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class PlantedBroker(BrokerProcess):
    """A broker with slips in it."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self._command[1:3] = ["-m", "tests.interop.planted_errors"]

    @property
    def peer_port(self) -> int:
        """The port between nodes: the one of its listeners that nobody chose."""
        known = {self.admin.port, self.mqtt, self.mqtts, self.ws, self.kafka, self.amqp}
        (found,) = listening(self.pid) - known
        return found


def listening(pid: int) -> set[int]:
    """Name the ports that a process listens on."""
    owned, found = set(), set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            owned.add(os.readlink(link))
    for line in Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in owned:
            found.add(int(fields[1].rpartition(":")[2], 16))
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlantedBroker]:
    with PlantedBroker(tmp_path_factory.mktemp("planted") / "var") as found:
        yield found


@pytest.fixture
def witness(broker: PlantedBroker) -> Iterator[Client]:
    """A client that was there before, and is served by the same process afterwards."""
    pid, client = broker.pid, connect(Port(broker.mqtt))
    assert not client.publish(b"witness", b"before", 1).is_failure
    yield client
    assert not client.publish(b"witness", b"after", 1).is_failure
    client.cut()
    assert broker.pid == pid and not dead(pid), broker.last_words()


def dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def say(port: int, data: bytes) -> bytes:
    """Say something on a fresh connection, and return all that is answered until it ends."""
    answer = b""
    dialled = socket.create_connection((HOST, port), DEADLINE_SECONDS)
    with dialled as line, suppress(ConnectionError):
        line.sendall(data)
        while piece := line.recv(1 << 16):
            answer += piece
    return answer


def contained(broker: BrokerProcess, place: str) -> float:
    with suppress(AssertionError):
        return metric(broker, f'clustor_node_errors_contained_total{{place="{place}"}}')
    return 0.0


def contained_total(broker: BrokerProcess) -> float:
    """Say how many errors of our own there were, wherever."""
    with urlopen(f"http://{HOST}:{broker.admin.port}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    name = "clustor_node_errors_contained_total{"
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def request(line: str, host: str = "127.0.0.1") -> bytes:
    return f"{line} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def post(target: str, body: bytes, *headers: str, host: str = "127.0.0.1") -> bytes:
    head = [f"POST {target} HTTP/1.1", f"Host: {host}", *headers]
    return ("\r\n".join(head) + "\r\n" + JSON_POST % len(body)).encode() + body


# What the audits found.


@pytest.mark.usefixtures("witness")
@pytest.mark.parametrize(
    ("data", "code"),
    {
        "a tab and a bracket": (b"GET /\t/[ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        "a bracket": (request("GET /["), 404),
        "half of a port": (request("GET /status", "127.0.0.1:[")[:-4] + b"\r\n\r\n", 421),
        "a byte that is no letter": (post("/groups/1/leader", b"\xff"), 400),
        "a letter cut in two": (post("/groups/1/members", b'{"kind": "\xc3"}'), 400),
        "a thousand brackets": (post("/groups/1/leader", b"[" * 100_000), 400),
        "nulls": (b"\0" * 64 + b"\r\n\r\n", 400),
        "a number of another script": (request("GET /incidents?after=%C2%B2"), 400),
        "a number of thousands of digits": (request("GET /incidents?after=" + "9" * 5000), 400),
        "a count of another script": (
            post("/v1/tenants/dev/ring", b'{"prg_count": "\xc2\xb2"}'),
            400,
        ),
        "a group of a billion digits": (request("GET /groups/" + "9" * 5000 + "/why"), 404),
    }.values(),
    ids=str,
)
def test_a_request_is_answered_whatever_it_is(
    broker: PlantedBroker, data: bytes, code: int
) -> None:
    before = contained(broker, "admin")
    assert say(broker.admin.port, data).startswith(b"HTTP/1.1 %d " % code)
    assert contained(broker, "admin") == before, "it was foreseen"


@pytest.mark.usefixtures("witness")
@pytest.mark.parametrize(
    ("data", "code"),
    {
        "a call by a name that points here": (post("/control/call", b"{}", host="evil.test"), 421),
        "a page of another origin": (
            post("/control/call", b"{}", "Origin: http://evil.test"),
            403,
        ),
        "metrics by another name": (request("GET /metrics", "evil.test:7000"), 421),
        "status by another address": (request("GET /status", "192.0.2.1"), 421),
        "the API by another name": (request("GET /v1/cluster/state", "evil.test"), 421),
    }.values(),
    ids=str,
)
def test_no_web_page_speaks_to_the_admin_port(
    broker: PlantedBroker, data: bytes, code: int
) -> None:
    assert say(broker.admin.port, data).startswith(b"HTTP/1.1 %d " % code)


@pytest.mark.usefixtures("witness")
def test_half_open_admin_connections_are_bounded_and_others_are_served(
    broker: PlantedBroker,
) -> None:
    crowd(broker, "admin", broker.admin.port, 512, b"GET /st")


@pytest.mark.usefixtures("witness")
def test_the_peer_port_is_bounded_by_source(broker: PlantedBroker) -> None:
    crowd(broker, "peer", broker.peer_port, 128)


def crowd(broker: PlantedBroker, name: str, port: int, bound: int, beginning: bytes = b"") -> None:
    """Hold connections that say nothing whole: no more than the bound, and then others go.

    A node hangs up on one that is late. A machine that opens fewer than the bound before that
    begins again.
    """
    away = f'clustor_node_port_turned_away_total{{port="{name}"}}'
    before, deadline = metric(broker, away), time.monotonic() + DEADLINE_SECONDS
    while metric(broker, away) == before:
        assert time.monotonic() < deadline, "nobody had to go"
        with ExitStack() as held:
            for _ in range(bound + 180):
                line = socket.create_connection((HOST, port), DEADLINE_SECONDS)
                held.enter_context(line)
                with suppress(ConnectionError):  # it had to go
                    line.sendall(beginning)
            assert metric(broker, f'clustor_node_port_half_open{{port="{name}"}}') <= bound


# What nobody has found yet: slips that were planted.


def upgrade() -> bytes:
    return (
        b"GET /kv HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: clustor-kv\r\n\r\n"
    )


def websocket(path: str) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    ).encode()


MQTT_CONNECT = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x00\x00\x04slip"
MQTT_PUBLISH = b"\x30\x0c\x00\x01tplanted!!"


@pytest.mark.usefixtures("witness")
@pytest.mark.parametrize(
    ("place", "port", "data"),
    {
        "admin": ("admin", "admin", request("GET /planted")),
        "kv": ("admin", "admin", upgrade() + encode_request(1, 1, KvOperation.WATCH, b"planted")),
        "mqtt": ("mqtt", "mqtt", MQTT_CONNECT + MQTT_PUBLISH),
        "websocket": ("listener", "ws", websocket("/planted")),
    }.values(),
    ids=str,
)
def test_a_slip_ends_the_connection_that_fell_over_it(
    broker: PlantedBroker, place: str, port: str, data: bytes
) -> None:
    before = contained(broker, place)
    number = broker.admin.port if port == "admin" else int(getattr(broker, port))
    say(number, data)  # returns when the broker ends it
    assert contained(broker, place) == before + 1


@pytest.mark.usefixtures("witness")
def test_a_slip_in_a_handshake_of_nodes_ends_that_connection(broker: PlantedBroker) -> None:
    pki = node_directory(broker.data, ONE) / PKI_DIRECTORY
    context = ssl.create_default_context(cafile=pki / AUTHORITY_FILE)
    context.check_hostname = False
    context.load_cert_chain(pki / CERTIFICATE_FILE, pki / KEY_FILE)
    before = contained(broker, "peer")
    plain = socket.create_connection((HOST, broker.peer_port), DEADLINE_SECONDS)
    with context.wrap_socket(plain) as line, suppress(ConnectionError, ssl.SSLError):
        while line.recv(1 << 16):
            pass
    assert contained(broker, "peer") == before + 1


def test_what_was_contained_is_told_once_with_a_digest_and_audited(broker: PlantedBroker) -> None:
    """It runs behind those that fell over the slips, or makes one of its own."""
    say(broker.admin.port, request("GET /planted"))
    said = broker._log.read_text(errors="replace")
    lines = [line for line in said.splitlines() if "contained (admin," in line]
    assert lines and len({line.split(": ")[-1] for line in lines}) == len(lines), "each cause once"
    assert "secret" not in said and "Traceback" not in said
    command = ["show", str(node_directory(broker.data, ONE)), "--what", "ErrorContained", "--json"]
    deadline = time.monotonic() + DEADLINE_SECONDS
    found: list[dict[str, Any]] = []
    while not found:
        shown = CliRunner().invoke(audit.app, command)
        found = [json.loads(line) for line in shown.stdout.splitlines() if line.startswith("{")]
        assert time.monotonic() < deadline, shown.stdout
    assert all(each["outcome"].startswith("ZeroDivisionError ") for each in found)


def test_zz_a_slip_in_a_machine_fences_its_group_and_the_others_go_on(
    broker: PlantedBroker, witness: Client
) -> None:
    """The last of all: the group stays fenced until it is resumed, or its node starts again."""
    put = encode_request(7, 1, KvOperation.COMMAND, encode_command(Put(Key(b"planted"), b"x")))
    with socket.create_connection((HOST, broker.admin.port), DEADLINE_SECONDS) as line:
        line.sendall(upgrade() + put)
        answer = b""
        while len(answer.partition(b"\r\n\r\n")[2]) < 9:
            piece = line.recv(1 << 16)
            assert piece, f"it hung up: {answer!r}"
            answer += piece
    status = answer.partition(b"\r\n\r\n")[2][8]
    assert status in (1, 2), "it was not acknowledged"
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (group := broker.page("/status")["groups"][0])["state"] not in ("Failed", "Quarantine"):
        assert time.monotonic() < deadline, group
    assert "fenced by an error of our own (ZeroDivisionError" in group["problem"]
    assert not witness.publish(b"witness", b"others go on", 1).is_failure
    why = broker.page("/groups/1/why")
    assert "fenced by an error of our own" in json.dumps(why)
    assert contained(broker, "group") >= 1


# What refuses to start.


def prepared(root: Path, **changes: Any) -> tuple[list[str], Address]:
    """Make a cluster of one node; return how it starts, and where its admin port is."""
    host = str(changes.pop("host", HOST))
    cluster = prepare_cluster(
        root, cluster_id("dev"), nodes=1, base_port=free_base_port(1), groups=1, now=utc_now()
    )
    entry = msgspec.structs.replace(cluster.nodes[0], host=host)
    cluster = msgspec.structs.replace(cluster, nodes=(entry,), **changes)
    (root / CLUSTER_FILE).write_bytes(encode_cluster_file(cluster))
    command = [sys.executable, "-m", "clustor.runtime.main", "--cluster", str(root / CLUSTER_FILE)]
    return [*command, "--node", "1", "--data", str(node_directory(root, ONE))], entry.admin


@pytest.mark.parametrize("flags", [[], ["--repair"]], ids=["serving", "repairing"])
def test_plaintext_refuses_to_start_off_loopback(tmp_path: Path, flags: list[str]) -> None:
    command, _ = prepared(tmp_path / "c", host="0.0.0.0")
    ended = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "served on loopback only" in ended.stderr and "Traceback" not in ended.stderr


def test_a_broker_refuses_a_plaintext_admin_port_off_loopback(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from quantum.cli import main; main()", "up"]
    command += ["--data", str(tmp_path / "var"), "--admin", "0.0.0.0:0", "--mqtt", "127.0.0.1:0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode not in (0, 70)
    assert "loopback" in ended.stderr and "Traceback" not in ended.stderr


def test_repair_mode_keeps_to_the_admin_ports_tls(tmp_path: Path) -> None:
    root = tmp_path / "c"
    command, address = prepared(root, admin_tls=True)
    pki = node_directory(root, ONE) / PKI_DIRECTORY
    caller = Credentials(pki / CERTIFICATE_FILE, pki / KEY_FILE, pki / AUTHORITY_FILE)
    stranger = Credentials(None, None, pki / AUTHORITY_FILE)
    repairing = subprocess.Popen([*command, "--repair"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        found: tuple[int, Any] = (0, None)
        while not found[0]:
            assert time.monotonic() < deadline and repairing.poll() is None
            with suppress(AdminUnreachable):
                found = asked(address, caller)
        assert found[0] == 200 and found[1]["mode"] == "Repair"
        assert asked(address, stranger)[0] == 401
        assert not say(address.port, request("GET /status")).startswith(b"HTTP/1.1 200")
    finally:
        repairing.terminate()
        assert repairing.wait(DEADLINE_SECONDS) == 0


def asked(address: Address, who: Credentials) -> tuple[int, Any]:
    """Ask for the status as somebody; return the code and the page."""
    code, page, _ = exchange(
        address, "GET", "/status", None, headers={}, seconds=DEADLINE_SECONDS, credentials=who
    )
    return code, page
