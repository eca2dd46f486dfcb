"""Debian's mosquitto_pub, mosquitto_sub and mosquitto_rr, through one node and through two."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.interop.mqtt_places import HOST, Place

DEADLINE_SECONDS = 180.0
MISSING = [name for name in ("pub", "sub", "rr") if shutil.which(f"mosquitto_{name}") is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: mosquitto_{MISSING}")

_topics = itertools.count()
VERSIONS = pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Nobody else publishes here."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    return f"mosquitto/{name}-{next(_topics)}"


def publish(place: Place, *arguments: str, stdin: str = "", check: bool = True) -> int:
    command = ["mosquitto_pub", "-h", HOST, *arguments]
    if "-p" not in arguments:
        command += ["-p", str(place.near.mqtt)]
    done = subprocess.run(
        command, input=stdin, text=True, capture_output=True, timeout=DEADLINE_SECONDS
    )
    assert not check or done.returncode == 0, done.stderr
    return done.returncode


@contextmanager
def listening(
    place: Place, *arguments: str, client: str, topics: int = 1, port: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """Run mosquitto_sub, and wait until the broker knows what it wants."""
    command = ["mosquitto_sub", "-h", HOST, "-p", str(port or place.far.mqtt), "-i", client]
    process = subprocess.Popen([*command, *arguments], text=True, stdout=subprocess.PIPE)
    try:
        until(
            lambda: not topics or place.has_subscribed(client, topics), f"{client} has subscribed"
        )
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


def lines(process: subprocess.Popen[str]) -> list[str]:
    """What it printed until it ended by itself, because it had enough."""
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    return output.splitlines()


def client_of(topic: str) -> str:
    return topic.replace("/", "-")


@VERSIONS
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_a_message_arrives(place: Place, topic: str, version: str, qos: str) -> None:
    wanted = ["-t", f"{topic}/#", "-q", qos, "-C", "1", "-V", version, "-F", "%t %q %r %p"]
    with listening(place, *wanted, client=client_of(topic)[-23:]) as process:
        publish(place, "-t", f"{topic}/a", "-q", qos, "-m", "hello", "-V", version)
        assert lines(process) == [f"{topic}/a {qos} 0 hello"]


@pytest.mark.parametrize("qos", ["1", "2"])
def test_lines_arrive_in_their_order(place: Place, topic: str, qos: str) -> None:
    sent = [f"line {number}" for number in range(300)]
    with listening(place, "-t", topic, "-q", qos, "-C", "300", client=client_of(topic)) as process:
        publish(place, "-t", topic, "-q", qos, "-l", stdin="\n".join(sent) + "\n")
        assert lines(process) == sent


@VERSIONS
def test_a_session_waits_with_its_queue(place: Place, topic: str, version: str) -> None:
    client = client_of(topic)[-23:]
    kept = ["-c", "-t", topic, "-q", "2", "-V", version]
    kept += ["-x", "600"] if version == "mqttv5" else []
    with listening(place, *kept, client=client):
        pass
    sent = [str(number) for number in range(50)]
    publish(place, "-t", topic, "-q", "2", "-l", "-V", version, stdin="\n".join(sent) + "\n")
    with listening(place, *kept, "-C", "50", client=client, port=place.near.mqtt) as process:
        assert lines(process) == sent


def test_a_retained_message_and_its_removal(place: Place, topic: str) -> None:
    publish(place, "-t", topic, "-q", "1", "-r", "-m", "kept")
    got = ["-t", topic, "-C", "1", "-F", "%r %p"]
    with listening(place, *got, client=client_of(topic), topics=0) as process:
        assert lines(process) == ["1 kept"]
    publish(place, "-t", topic, "-q", "1", "-r", "-n")
    with listening(place, *got, client=client_of(topic) + "-2") as process:
        publish(place, "-t", topic, "-m", "only this", "-q", "1")
        assert lines(process) == ["0 only this"]


def test_a_will_of_a_process_that_is_killed(place: Place, topic: str) -> None:
    will = ["--will-topic", topic, "--will-payload", "gone", "--will-qos", "2"]
    with listening(place, "-t", topic, "-q", "2", "-C", "1", client=client_of(topic)) as heir:
        mortal = client_of(topic) + "-mortal"
        with listening(place, "-t", "unused", *will, client=mortal, port=place.near.mqtt):
            pass  # it is killed here
        assert lines(heir) == ["gone"]


def test_properties_and_expiry(place: Place, topic: str) -> None:
    wanted = ["-t", topic, "-q", "1", "-C", "1", "-V", "mqttv5", "-F", "%j"]
    wanted += ["-D", "subscribe", "subscription-identifier", "42"]
    with listening(place, *wanted, client=client_of(topic)) as process:
        said = ["content-type text/plain", "response-topic here", "message-expiry-interval 1000"]
        said += ["correlation-data 17", "payload-format-indicator 1"]
        properties = [word for each in said for word in ("-D", "publish", *each.split())]
        for key, value in (("a", "1"), ("b", "2")):
            properties += ["-D", "publish", "user-property", key, value]
        publish(place, "-t", topic, "-q", "1", "-m", "x", "-V", "mqttv5", *properties)
        (line,) = lines(process)
    found: dict[str, Any] = json.loads(line)["properties"]
    assert 900 < found.pop("message-expiry-interval") <= 1000
    assert found == {
        "payload-format-indicator": 1,
        "content-type": "text/plain",
        "response-topic": "here",
        "correlation-data": "17",
        "subscription-identifier": 42,
        "user-properties": {"a": "1", "b": "2"},
    } or found["user-properties"] in ([{"a": "1"}, {"b": "2"}], {"a": "1", "b": "2"})


def test_topic_aliases(place: Place, topic: str) -> None:
    """mosquitto_pub names an alias with every message, and the topic too."""
    with listening(
        place, "-t", topic, "-q", "1", "-C", "2", "-V", "mqttv5", client=client_of(topic)
    ) as process:
        alias = ["-V", "mqttv5", "-D", "publish", "topic-alias", "2"]
        publish(place, "-t", topic, "-q", "1", "-l", *alias, stdin="one\ntwo\n")
        assert lines(process) == ["one", "two"]


@pytest.mark.parametrize(("option", "expected"), [("", "0"), ("--retain-as-published", "1")])
def test_retain_as_published(place: Place, topic: str, option: str, expected: str) -> None:
    wanted = ["-t", topic, "-q", "1", "-C", "1", "-V", "mqttv5", "-F", "%r"]
    wanted += [option] if option else []
    with listening(place, *wanted, client=client_of(topic)) as process:
        publish(place, "-t", topic, "-q", "1", "-m", "x", "-r")
        assert lines(process) == [expected]
    publish(place, "-t", topic, "-q", "1", "-r", "-n")


def test_a_shared_subscription(place: Place, topic: str) -> None:
    shared = ["-t", f"$share/g/{topic}", "-q", "1", "-V", "mqttv5", "-C", "10"]
    with (
        listening(place, *shared, client=client_of(topic) + "-1") as one,
        listening(place, *shared, client=client_of(topic) + "-2", port=place.near.mqtt) as two,
    ):
        sent = [str(number) for number in range(20)]
        publish(place, "-t", topic, "-q", "1", "-l", stdin="\n".join(sent) + "\n")
        assert sorted(lines(one) + lines(two)) == sorted(sent)


def test_request_and_response(place: Place, topic: str) -> None:
    with listening(
        place, "-t", f"{topic}/ask", "-C", "1", "-V", "mqttv5", "-F", "%R %D %p",
        client=client_of(topic),
    ) as helper:  # fmt: skip
        command = ["mosquitto_rr", "-h", HOST, "-p", str(place.near.mqtt), "-V", "mqttv5"]
        command += ["-q", "1", "-t", f"{topic}/ask", "-e", f"{topic}/answer", "-m", "6 x 7?"]
        command += ["-D", "publish", "correlation-data", "17", "-W", str(int(DEADLINE_SECONDS))]
        asking = subprocess.Popen(command, text=True, stdout=subprocess.PIPE)
        (asked,) = lines(helper)
        where, correlation, question = asked.split(" ", 2)
        assert (where, question) == (f"{topic}/answer", "6 x 7?")
        publish(
            place, "-t", where, "-m", "42", "-q", "1", "-V", "mqttv5",
            "-D", "publish", "correlation-data", correlation,
        )  # fmt: skip
        assert lines(asking) == ["42"]


def test_tls_with_a_certificate_and_not_without(place: Place, topic: str) -> None:
    mine = place.certificate("mosquitto")
    trust = ["-p", str(place.near.mqtts), "--cafile", str(mine.authority)]
    identity = ["--cert", str(mine.certificate), "--key", str(mine.key)]
    with listening(place, "-t", topic, "-q", "1", "-C", "1", client=client_of(topic)) as process:
        assert publish(place, *trust, "-t", topic, "-m", "no", "-q", "1", check=False) != 0
        publish(place, *trust, *identity, "-t", topic, "-m", "yes", "-q", "1")
        assert lines(process) == ["yes"]
