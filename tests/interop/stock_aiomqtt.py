"""aiomqtt, on the loop of the test."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import aiomqtt
from paho.mqtt.client import MQTT_CLEAN_START_FIRST_ONLY

from tests.interop.mqtt_places import HOST
from tests.interop.stock_client import (
    DEADLINE_SECONDS,
    NO_EXTRAS,
    Can,
    Extras,
    Library,
    Opening,
    Refused,
    StockClient,
    Wish,
)
from tests.interop.stock_paho import (
    V5,
    connect_properties,
    got_from,
    identified,
    publish_properties,
    subscribe_options,
    will_properties,
)


class Aiomqtt(Library):
    name = "aiomqtt"
    can = Can.GRANTED | Can.SEND_ALIAS | Can.WEBSOCKET | Can.VERSION_31

    async def open(self, opening: Opening) -> StockClient:
        client = AiomqttClient(opening)
        await client.connect()
        return client


class AiomqttClient(StockClient):
    def __init__(self, opening: Opening) -> None:
        super().__init__()
        self._version = opening.version
        self._client = _configured(opening)
        self._reading: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        try:
            await self._client.__aenter__()
        except aiomqtt.MqttError as error:
            raise Refused(str(error)) from error
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for message in self._client.messages:
                self._inbox.put_nowait(got_from(message))
        except aiomqtt.MqttError:
            self.ended.set()

    async def subscribe(self, wish: Wish) -> int | None:
        if self._version != V5:
            granted = await self._client.subscribe(wish.filter, wish.qos)
        else:
            granted = await self._client.subscribe(
                wish.filter, options=subscribe_options(wish), properties=identified(wish)
            )
        first: Any = granted[0]
        return int(getattr(first, "value", first))

    async def unsubscribe(self, topic_filter: str) -> None:
        await self._client.unsubscribe(topic_filter)

    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        *,
        retain: bool = False,
        extras: Extras = NO_EXTRAS,
    ) -> int | None:
        properties = publish_properties(extras) if self._version == V5 else None
        await self._client.publish(topic, payload, qos, retain, properties)
        return None

    def drop(self) -> None:
        found: Any = self._client._client.socket()
        if found is not None:
            getattr(found, "_socket", found).shutdown(socket.SHUT_RDWR)

    async def close(self, *, expiry: int | None = None) -> None:
        assert expiry is None, "aiomqtt says goodbye in its own words"
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
            with suppress(aiomqtt.MqttError):
                await self._client.__aexit__(None, None, None)


def _configured(opening: Opening) -> aiomqtt.Client:
    arguments: dict[str, Any] = {}
    if opening.version == V5:
        arguments["clean_start"] = opening.clean and MQTT_CLEAN_START_FIRST_ONLY
        arguments["properties"] = connect_properties(opening)
    else:
        arguments["clean_session"] = opening.clean
    if opening.will is not None:
        will = opening.will
        properties = will_properties(will) if opening.version == V5 else None
        arguments["will"] = aiomqtt.Will(
            will.topic, will.payload, will.qos, will.retain, properties
        )
    if opening.identity is not None:
        files = opening.identity
        arguments["tls_params"] = aiomqtt.TLSParameters(
            str(files.authority), str(files.certificate), str(files.key)
        )
    return aiomqtt.Client(
        HOST,
        opening.port,
        identifier=opening.client_id,
        protocol=aiomqtt.ProtocolVersion(opening.version),
        transport="websockets" if opening.websocket else "tcp",
        keepalive=opening.keep_alive,
        timeout=DEADLINE_SECONDS,
        **arguments,
    )
