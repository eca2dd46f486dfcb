"""A stock MQTT 5 client for tests that speak another protocol at the same time: it blocks."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

WAIT_SECONDS = 30.0


class MqttTap:
    """Publishes and is given publishes; each wait has an end."""

    def __init__(self, port: int, client_id: str = "") -> None:
        version = CallbackAPIVersion.VERSION2
        self._client = paho.Client(version, client_id=client_id, protocol=paho.MQTTv5)
        self._messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._answers: queue.Queue[str] = queue.Queue()
        self._client.on_connect = lambda *_: self._answers.put("connected")
        self._client.on_subscribe = lambda *_: self._answers.put("subscribed")
        self._client.on_message = lambda _client, _data, message: self._messages.put(message)
        self._client.connect("127.0.0.1", port, clean_start=True)
        self._client.loop_start()
        assert self._answers.get(timeout=WAIT_SECONDS) == "connected"

    def subscribe(self, topic_filter: str, qos: int = 2) -> None:
        options = SubscribeOptions(qos, retainAsPublished=True)
        self._client.subscribe(topic_filter, options=options)
        assert self._answers.get(timeout=WAIT_SECONDS) == "subscribed"

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, **said: Any
    ) -> None:
        """Publish, and wait until that is acknowledged; `said` are properties of MQTT 5."""
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho's own
        for name, value in said.items():
            setattr(properties, name, value)
        sent = self._client.publish(topic, payload, qos, retain, properties)
        sent.wait_for_publish(WAIT_SECONDS)
        assert sent.is_published()

    def take(self, count: int = 1) -> list[Any]:
        return [self._messages.get(timeout=WAIT_SECONDS) for _ in range(count)]

    def is_empty(self) -> bool:
        return self._messages.empty()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def tapped(port: int, client_id: str = "") -> Iterator[MqttTap]:
    tap = MqttTap(port, client_id)
    try:
        yield tap
    finally:
        tap.close()
