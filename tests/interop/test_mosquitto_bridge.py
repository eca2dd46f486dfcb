"""A stock mosquitto as a bridge, both ways, with its defaults: in 3.1.1 and in 5.0."""

from __future__ import annotations

import getpass
import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clustor.runtime.waiting import free_ports
from tests.interop.mqtt_places import HOST, Place
from tests.interop.test_mqtt_mosquitto import MISSING, lines, publish, until

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(MOSQUITTO is None or bool(MISSING), reason="mosquitto is missing")

VERSIONS = pytest.mark.parametrize(
    "version", ["", "bridge_protocol_version mqttv50\n"], ids=["default", "5.0"]
)
_names = itertools.count()


@dataclass
class Bridge:
    """A mosquitto of the test's own that is connected to the broker."""

    name: str
    port: int
    configuration: Path
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """It keeps its own clients' sessions only when it is asked to end."""
        self.process.terminate()
        self.process.wait()

    def start(self) -> None:
        self.process = run(self.configuration)


def run(configuration: Path) -> subprocess.Popen[bytes]:
    assert MOSQUITTO is not None
    return subprocess.Popen(
        [MOSQUITTO, "-c", str(configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@contextmanager
def bridged(place: Place, directory: Path, version: str) -> Iterator[Bridge]:
    name, port = f"bridge-{next(_names)}", free_ports(1)[0]
    configuration = directory / "mosquitto.conf"
    configuration.write_text(
        f"user {getpass.getuser()}\nlistener {port} {HOST}\nallow_anonymous true\n"
        f"persistence true\npersistence_location {directory}/\n"
        f"connection {name}\naddress {HOST}:{place.near.mqtt}\nremote_clientid {name}\n{version}"
        f"topic {name}/up/# out 1\ntopic {name}/down/# in 1\ntopic {name}/both/# both 2\n"
    )
    bridge = Bridge(name, port, configuration, run(configuration))
    try:
        until(lambda: place.has_subscribed(name, 2), "the bridge has subscribed")
        yield bridge
    finally:
        bridge.stop()


@dataclass
class Hearing:
    """A mosquitto_sub, and what it said until it was subscribed: a session's queue comes first."""

    process: subprocess.Popen[str]
    early: list[str]

    def payloads(self) -> list[str]:
        """What it heard until it had enough."""
        said = self.early + lines(self.process)
        return [line.rstrip("\n")[2:] for line in said if line.startswith("> ")]


@contextmanager
def hearing(port: int, topic: str, count: int, *more: str) -> Iterator[Hearing]:
    """Run mosquitto_sub until it has heard so many; it says when it is subscribed."""
    command = ["stdbuf", "-oL", "mosquitto_sub", "-h", HOST, "-p", str(port), "-t", topic]
    process = subprocess.Popen(
        [*command, "-q", "2", "-d", "-C", str(count), "-F", "> %p", *more],
        text=True,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    early: list[str] = []
    try:
        for line in process.stdout:
            early.append(line)
            if line.startswith("Subscribed"):
                break
        # What comes before SUBACK may be all that it wanted.
        assert any(line.startswith(("Subscribed", "> ")) for line in early), early
        yield Hearing(process, early)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def send(place: Place, port: int, topic: str, *payloads: str, qos: str = "1") -> None:
    """Publish by one name: what different clients publish has no order among them."""
    text, name = "\n".join(payloads) + "\n", topic.replace("/", "-") + "-sender"
    publish(place, "-p", str(port), "-i", name, "-t", topic, "-q", qos, "-l", stdin=text)


@VERSIONS
def test_what_one_side_publishes_the_other_hears(
    place: Place, tmp_path: Path, version: str
) -> None:
    sent = [str(number) for number in range(50)]
    with bridged(place, tmp_path, version) as bridge:
        for way, source, target in (
            ("up", bridge.port, place.far.mqtt),
            ("down", place.far.mqtt, bridge.port),
        ):
            with hearing(target, f"{bridge.name}/{way}/#", len(sent)) as there:
                send(place, source, f"{bridge.name}/{way}/x", *sent)
                assert there.payloads() == sent


@VERSIONS
def test_a_topic_that_goes_both_ways_makes_no_loop(
    place: Place, tmp_path: Path, version: str
) -> None:
    """Whatever came back would be heard between the two: the bridge keeps the order."""
    with bridged(place, tmp_path, version) as bridge:
        topic = f"{bridge.name}/both/x"
        for source, target in (
            (bridge.port, place.far.mqtt),
            (place.far.mqtt, bridge.port),
        ):
            with hearing(source, topic, 2) as here, hearing(target, topic, 2) as there:
                send(place, source, topic, "first", qos="2")
                send(place, source, topic, "second", qos="2")
                assert there.payloads() == ["first", "second"]
                assert here.payloads() == ["first", "second"]


def test_what_it_missed_waits_for_a_bridge(place: Place, tmp_path: Path) -> None:
    """In 3.1.1: in 5.0 mosquitto 2.0 asks for no time that its session should outlive it."""
    with bridged(place, tmp_path, version="") as bridge:
        topic = f"{bridge.name}/down/x"
        with hearing(bridge.port, topic, 1, "-c", "-i", "local"):
            pass  # a session on the bridge's own side, which outlives it
        bridge.stop()
        until(lambda: place.is_away(bridge.name), "the bridge is gone")
        send(place, place.far.mqtt, topic, "one", "two")
        bridge.start()
        until(lambda: is_listening(bridge.port), "the bridge is back")
        with hearing(bridge.port, topic, 2, "-c", "-i", "local") as local:
            assert local.payloads() == ["one", "two"]


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
