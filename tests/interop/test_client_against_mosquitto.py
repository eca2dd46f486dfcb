"""Our own client against Debian's mosquitto: every version and QoS, both ways, and the command."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from clustor.runtime.pki.identity import utc_now
from quantum.client import (
    BrokerRefused,
    ClientOptions,
    ConnectionLost,
    Endpoint,
    MqttClient,
    Unreachable,
)
from quantum.edge.tls_development import ClientFiles, issue_client, pki_directory, prepare_server
from quantum.protocols.mqtt.codec import (
    Properties,
    ProtocolVersion,
    Publish,
    Subscription,
    TopicFilter,
    TopicName,
    Will,
)
from tests.clustor.runtime.waiting import free_ports, silent_port

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")

QUANTUM = "from quantum.cli import main; main()"
VERSIONS = [ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5]


class Mosquitto:
    """A broker of its own, on ports of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, self.tls_port = free_ports(2)
        prepare_server(directory, utc_now())
        pki = pki_directory(directory)
        self.configuration = directory / "mosquitto.conf"
        self.configuration.write_text(
            f"user {getpass.getuser()}\n"  # started as root it would let go of our files
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
            f"listener {self.tls_port} 127.0.0.1\ncafile {pki}/ca.pem\n"
            f"certfile {pki}/server.pem\nkeyfile {pki}/server.key\nrequire_certificate true\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert MOSQUITTO is not None
        self.process = subprocess.Popen(
            [MOSQUITTO, "-c", str(self.configuration)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 180
        for port in (self.port, self.tls_port):
            while not answers(port):
                assert time.monotonic() < deadline and self.process.poll() is None

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.port)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path_factory.mktemp("mosquitto"))
    broker.start()
    yield broker
    broker.stop()


@asynccontextmanager
async def connected(
    broker: Mosquitto, options: ClientOptions, *, reconnect: bool = False
) -> AsyncIterator[MqttClient]:
    jitter = random.Random(1).random if reconnect else None
    async with MqttClient(broker.endpoint, options, jitter=jitter) as client:
        yield client


def to(topic: str, qos: int = 0) -> Subscription:
    return Subscription(TopicFilter(topic.encode()), qos)


async def take(client: MqttClient, count: int) -> list[Publish]:
    taken: list[Publish] = []
    async with asyncio.timeout(180):
        async for message in client.messages():
            taken.append(message)
            if len(taken) == count:
                break
    return taken


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", VERSIONS)
async def test_messages_arrive_once_and_in_order(
    mosquitto: Mosquitto, version: ProtocolVersion, qos: int
) -> None:
    topic = f"order/{version}/{qos}"
    sent = [b"%d" % number + b"x" * (number % 7 * 100) for number in range(300)]
    async with (
        connected(mosquitto, ClientOptions(f"sub-{version}{qos}", version)) as subscriber,
        connected(mosquitto, ClientOptions(f"pub-{version}{qos}", version)) as publisher,
    ):
        await subscriber.subscribe(to(topic, qos))
        waiting = [publisher.send(topic, payload, qos=qos) for payload in sent]
        received = await take(subscriber, len(sent))
        assert [message.payload for message in received] == sent
        assert {message.qos for message in received} == {qos}
        for future in waiting:
            if future is not None:
                await future
        assert publisher.session.unfinished == 0


async def test_properties_travel_both_ways(mosquitto: Mosquitto) -> None:
    properties = Properties(
        content_type="text/plain",
        response_topic=TopicName(b"answers"),
        correlation_data=b"\x00\xff",
        user_properties=(("a", "1"), ("a", "2")),
    )
    async with connected(mosquitto, ClientOptions("props")) as client:
        await client.subscribe(to("props", 1))
        await client.publish("props", b"x", qos=1, properties=properties)
        (message,) = await take(client, 1)
        assert message.properties == properties


async def test_a_big_message_and_a_retained_one(mosquitto: Mosquitto) -> None:
    big = bytes(range(256)) * 8_000
    async with connected(mosquitto, ClientOptions("big")) as client:
        await client.publish("big", big, qos=2, retain=True)
        await client.subscribe(to("big", 2))
        (message,) = await take(client, 1)
        assert message.payload == big and message.retain
        await client.publish("big", b"", qos=1, retain=True)


async def test_a_will_is_published_for_a_client_that_vanishes(mosquitto: Mosquitto) -> None:
    will = Will(TopicName(b"wills"), b"gone", 1)
    async with connected(mosquitto, ClientOptions("heir")) as heir:
        await heir.subscribe(to("wills", 1))
        async with connected(mosquitto, ClientOptions("mortal", will=will)) as mortal:
            assert mortal._transport is not None
            mortal._transport.abort()
            (message,) = await take(heir, 1)
        assert message.payload == b"gone"


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_cut_connection_is_opened_again_and_nothing_is_lost(
    mosquitto: Mosquitto, qos: int
) -> None:
    """Cut the publisher in the middle, again and again; QoS 2 comes once all the same."""
    topic, count = f"cut/{qos}", 400
    options = ClientOptions(f"cut-{qos}", clean_start=True, session_expiry=600)
    async with (
        connected(mosquitto, ClientOptions(f"cut-sub-{qos}")) as subscriber,
        connected(mosquitto, options, reconnect=True) as publisher,
    ):
        await subscriber.subscribe(to(topic, qos))
        waiting = []
        for number in range(count):
            waiting.append(publisher.send(topic, b"%d" % number, qos=qos))
            if number % 100 == 50 and publisher._transport is not None:
                publisher._transport.abort()
            if number % 10 == 0:
                await asyncio.sleep(0)
        for future in waiting:
            assert future is not None
            await asyncio.wait_for(future, 180)
        assert publisher.reconnects >= 1
        await publisher.publish(topic, b"end", qos=qos)
        seen: list[bytes] = []
        async with asyncio.timeout(180):
            async for message in subscriber.messages():
                if message.payload == b"end":
                    break
                seen.append(message.payload)
    expected = [b"%d" % number for number in range(count)]
    assert set(seen) == set(expected)
    if qos == 2:
        assert seen == expected


async def test_a_subscriber_comes_back_to_its_subscriptions(tmp_path: Path) -> None:
    """The broker forgets everything; the client asks again by itself."""
    broker = Mosquitto(tmp_path)
    broker.start()
    try:
        async with connected(broker, ClientOptions("back"), reconnect=True) as subscriber:
            await subscriber.subscribe(to("back", 1))
            broker.stop()
            broker.start()
            async with connected(broker, ClientOptions("pusher")) as publisher:
                async with asyncio.timeout(180):
                    while not subscriber._messages:
                        await publisher.publish("back", b"again", qos=1)
                        await asyncio.sleep(0.02)
            assert (await take(subscriber, 1))[0].payload == b"again"
            assert subscriber.reconnects >= 1
    finally:
        broker.stop()


async def test_a_silent_connection_is_kept_alive(mosquitto: Mosquitto) -> None:
    """With a keep-alive of 1 s mosquitto would cut us after 1.5 s of silence.

    A client that gets no turn for half a second is cut with every right, and tries again.
    """
    for _ in range(5):
        with suppress(ConnectionLost):
            await _stay_silent(mosquitto)
            return
    raise AssertionError("we were cut every time")


async def _stay_silent(mosquitto: Mosquitto) -> None:
    async with connected(mosquitto, ClientOptions("alive", keep_alive=1)) as client:
        await client.subscribe(to("alive", 1))
        async with connected(mosquitto, ClientOptions("other")) as other:
            await asyncio.get_running_loop().create_task(asyncio.sleep(2.5))
            await other.publish("alive", b"still there", qos=1)
        assert (await take(client, 1))[0].payload == b"still there"


async def test_nobody_there_is_said_in_one_sentence() -> None:
    port = silent_port()
    with pytest.raises(Unreachable) as caught:
        async with MqttClient(Endpoint("127.0.0.1", port), ClientOptions()):
            pass
    expected = f"nothing listens on 127.0.0.1:{port}: start a broker with `make run`"
    assert str(caught.value) == expected


async def test_a_refusal_is_told(mosquitto: Mosquitto) -> None:
    """3.1.1 with no client id and a session to keep: 0x85, identifier rejected."""
    options = ClientOptions("", ProtocolVersion.V311, clean_start=False)
    with pytest.raises(BrokerRefused, match="client identifier not valid"):
        async with connected(mosquitto, options):
            pass


# The command.


@pytest.fixture(scope="module")
def client(mosquitto: Mosquitto) -> ClientFiles:
    return issue_client(mosquitto.directory, "lamp", utc_now())


def quantum(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", QUANTUM, *arguments],
        input=stdin,
        capture_output=True,
        timeout=300,
    )


def test_pub_retains_and_sub_prints(mosquitto: Mosquitto) -> None:
    at = ["--port", str(mosquitto.port)]
    done = quantum("pub", "cli/a", "hello", "--retain", "--qos", "2", "--json", *at)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["topic"], shown["qos"], shown["bytes"], shown["reason_code"]) == (
        "cli/a",
        2,
        5,
        0,
    )
    found = quantum("sub", "cli/#", "--count", "1", "--json", "--timeout", "180", *at)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == {
        "topic": "cli/a",
        "payload": "hello",
        "qos": 1,
        "retain": True,
    }
    plain = quantum("sub", "cli/#", "--count", "1", "-v", "--proto", "3.1", *at)
    assert plain.stdout == b"cli/a hello\n"


def test_every_line_is_a_message(mosquitto: Mosquitto) -> None:
    at = ["--port", str(mosquitto.port)]
    kept = ["--client-id", "lines", "--session-expiry", "600"]
    quantum("pub", "lines-there", "now", "--retain", "--qos", "1", *at)
    there = quantum("sub", "lines", "lines-there", "--count", "1", "--timeout", "180", *kept, *at)
    assert there.stdout == b"now\n", there.stderr  # it has subscribed to both
    lines = b"".join(b"line %d\n" % number for number in range(200))
    done = quantum("pub", "lines", "--stdin-lines", "--qos", "1", *at, stdin=lines)
    assert done.returncode == 0, done.stderr
    found = quantum("sub", "lines", "--resume", "--count", "200", "--timeout", "180", *kept, *at)
    assert found.stdout == lines


def test_tls_with_a_certificate_of_ours(mosquitto: Mosquitto, client: ClientFiles) -> None:
    at = ["--port", str(mosquitto.tls_port), "--ca", str(client.authority)]
    mine = ["--cert", str(client.certificate), "--key", str(client.key)]
    done = quantum("pub", "tls", "secret", "--retain", *at, *mine)
    assert done.returncode == 0, done.stderr
    without = quantum("pub", "tls", "secret", *at)
    assert without.returncode == 1
    assert b"does it trust our certificate?" in without.stderr or b"tls" in without.stderr.lower()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    {
        "a wildcard": (["pub", "a/+", "x"], 2, "no topic"),
        "a bad filter": (["sub", "a#"], 2, "no topic filter"),
        "properties in 3.1.1": (
            ["pub", "a", "x", "--proto", "3.1.1", "-P", "content-type=x"],
            2,
            "MQTT 5 only",
        ),
        "an unknown property": (["pub", "a", "x", "-P", "color=x"], 2, "content_type"),
        "resume of nobody": (["sub", "a", "--resume"], 2, "--client-id"),
        "a key alone": (["pub", "a", "x", "--key", "k"], 2, "--cert"),
        "a missing authority": (["pub", "a", "x", "--ca", "/nowhere"], 9, "No such file"),
        "nobody there": (["pub", "a", "x", "--port", "1"], 12, "nothing listens on 127.0.0.1:1"),
    }.values(),
)
def test_what_goes_wrong_is_one_sentence(arguments: list[str], code: int, says: str) -> None:
    done = quantum(*arguments)
    assert done.returncode == code, done.stderr
    said = " ".join(done.stderr.decode().split())
    assert says in said
    assert "Traceback" not in said


def test_mosquittos_own_clients_speak_to_ours(mosquitto: Mosquitto) -> None:
    publisher = shutil.which("mosquitto_pub")
    if publisher is None:
        pytest.skip("mosquitto_pub is not installed")
    at = ["-p", str(mosquitto.port)]
    subprocess.run([publisher, *at, "-t", "theirs", "-m", "hi", "-r", "-q", "2"], check=True)
    found = quantum("sub", "theirs", "--count", "1", "--timeout", "180", *at)
    assert found.stdout == b"hi\n"
