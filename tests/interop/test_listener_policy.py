"""A broker whose policy lets TLS 1.2, passwords and WebSocket over TLS in, by stock clients."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from typer.testing import CliRunner, Result

from clustor.runtime.pki.identity import AUTHORITY_FILE
from quantum.cli.app import build
from quantum.cli.exits import Exit
from quantum.edge.tls_development import pki_directory
from tests.clustor.runtime.waiting import free_ports
from tests.interop.broker_process import HOST, BrokerProcess

SECONDS: Final = 180.0
POLICY: Final = ["--tls-min", "1.2", "--client-auth", "optional", "--password", "required"]


class PolicyBroker(BrokerProcess):
    def __init__(self, data: Path) -> None:
        super().__init__(data, partitions=1)
        (self.wss,) = free_ports(1)
        self._command += ["--wss", f"{HOST}:{self.wss}", *POLICY]

    @property
    def authority(self) -> str:
        return str(pki_directory(self.data) / AUTHORITY_FILE)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolicyBroker]:
    with PolicyBroker(tmp_path_factory.mktemp("policy") / "data") as started:
        assert users(started, "add", "ann", "--password-stdin", given="secret\n").exit_code == 0
        yield started


def users(broker: BrokerProcess, *arguments: str, given: str = "") -> Result:
    """Run `quantum users …`, once more where nobody answered, or another change came between."""
    command = ["users", *arguments, "--admin", str(broker.admin)]
    deadline = time.monotonic() + SECONDS
    while True:
        done = CliRunner().invoke(build(["users"]), command, input=given)
        if done.exit_code not in (Exit.UNREACHABLE, Exit.CONFLICT):
            return done
        assert time.monotonic() < deadline, done.output


def come(
    broker: PolicyBroker,
    *,
    transport: Any = "tcp",
    user: str | None = "ann",
    password: str = "secret",
    newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> tuple[str, paho.Client]:
    """Connect by a stock client; return what CONNACK said."""
    said: list[str] = []
    heard = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2, transport=transport, protocol=paho.MQTTv5)
    client.connect_timeout = SECONDS
    context = ssl.create_default_context(cafile=broker.authority)
    context.maximum_version = newest
    client.tls_set_context(context)
    if user is not None:
        client.username_pw_set(user, password)

    def on_connect(_c: object, _u: object, _f: object, reason: object, _p: object) -> None:
        said.append(str(reason))
        heard.set()

    client.on_connect = on_connect
    client.connect("localhost", broker.wss if transport == "websockets" else broker.mqtts)
    client.loop_start()
    try:
        assert heard.wait(SECONDS)
    finally:
        if said[:1] != ["Success"]:
            client.disconnect()
            client.loop_stop()
    return said[0], client


def end(client: paho.Client) -> None:
    client.disconnect()
    client.loop_stop()


@pytest.mark.parametrize("transport", ["tcp", "websockets"])
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_user_comes_over_tls_and_publishes(
    broker: PolicyBroker, transport: str, newest: ssl.TLSVersion
) -> None:
    until_let_in(broker)
    said, client = come(broker, transport=transport, newest=newest)
    assert said == "Success"
    info = client.publish("t", b"x", qos=1)
    info.wait_for_publish(SECONDS)
    assert info.is_published()
    end(client)


def until_let_in(broker: PolicyBroker) -> None:
    """Wait until the node's copy has the user."""
    deadline = time.monotonic() + SECONDS
    while True:
        said, client = come(broker)
        if said == "Success":
            end(client)
            return
        assert time.monotonic() < deadline, said


def test_who_has_no_or_another_password_is_refused(broker: PolicyBroker) -> None:
    until_let_in(broker)
    for user, password in (("ann", "no"), ("bob", "secret")):
        assert come(broker, user=user, password=password)[0] == "Bad user name or password"
    assert come(broker, user=None)[0] == "Not authorized"


def test_mosquitto_comes_by_a_password_too(broker: PolicyBroker) -> None:
    program = shutil.which("mosquitto_pub")
    if program is None:
        pytest.skip("mosquitto's clients are not installed")
    until_let_in(broker)
    command = [program, "-h", "localhost", "-p", str(broker.mqtts), "--cafile", broker.authority]
    command += ["-u", "ann", "-P", "secret", "-q", "1", "-t", "t", "-m", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr


def test_a_removed_user_must_go(broker: PolicyBroker) -> None:
    assert users(broker, "add", "eve", "--password-stdin", given="x\n").exit_code == 0
    deadline = time.monotonic() + SECONDS
    while (listed := users(broker, "list").output.split()) != ["ann", "eve"]:
        assert time.monotonic() < deadline, listed  # what is held is a copy
    said, client = come(broker, user="eve", password="x")
    while said != "Success":
        assert time.monotonic() < deadline
        said, client = come(broker, user="eve", password="x")
    gone = threading.Event()
    client.on_disconnect = lambda *_: gone.set()
    # The answer to a first try may have been lost: then it is done, and the second says so.
    assert users(broker, "remove", "eve").exit_code in (0, Exit.NOT_FOUND)
    assert gone.wait(SECONDS)
    end(client)
    deadline = time.monotonic() + SECONDS
    while users(broker, "list").output.split() != ["ann"]:
        assert time.monotonic() < deadline, "still listed"
    assert users(broker, "remove", "eve").exit_code == 3
