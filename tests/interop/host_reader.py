"""A persistent session of a stock client over TLS, from the clients' namespace."""

from __future__ import annotations

import ssl
import threading
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.interop.namespaces import CLIENT, within

if TYPE_CHECKING:
    from tests.interop.host_processes import HostProcesses

MQTTS = 8883
WAIT_SECONDS = 60.0


def read_session(hosts: HostProcesses, host: int, topic: str, count: int) -> list[str]:
    """Come back as `reader`, subscribe, take `count` messages, and go, leaving the session."""
    return within(hosts.network.namespace(CLIENT), lambda: _read(hosts, host, topic, count))


def _read(hosts: HostProcesses, host: int, topic: str, count: int) -> list[str]:
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        "reader",
        clean_session=False,
        protocol=MQTTProtocolVersion.MQTTv311,
    )
    options = dict(zip(hosts.client[::2], hosts.client[1::2], strict=True))
    context = ssl.create_default_context(cafile=options["--ca"])
    context.load_cert_chain(options["--cert"], options["--key"])
    client.tls_set_context(context)
    got: list[str] = []
    subscribed, enough = threading.Event(), threading.Event()

    def on_message(_client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        got.append(message.payload.decode())
        if len(got) >= count:
            enough.set()

    client.on_message = on_message

    def on_connect(*_arguments: Any) -> None:
        client.subscribe(topic, qos=1)

    client.on_connect = on_connect
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect(hosts.network.address(host), MQTTS, keepalive=20)
    client.loop_start()
    try:
        assert subscribed.wait(WAIT_SECONDS), f"no SUBACK\n{hosts.last_words()}"
        if count:
            assert enough.wait(WAIT_SECONDS), f"{len(got)} of {count}\n{hosts.last_words()}"
    finally:
        client.disconnect()
        client.loop_stop()
    return got
