"""paho-mqtt, with its own network thread."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.interop.mqtt_places import HOST
from tests.interop.stock_client import (
    DEADLINE_SECONDS,
    NO_EXTRAS,
    Can,
    Extras,
    Got,
    Library,
    Opening,
    Refused,
    StockClient,
    Will,
    Wish,
)

V5 = 5


class Paho(Library):
    name = "paho"
    can = ~Can.TAKE_ALIAS  # an alias from the server is left to the application

    async def open(self, opening: Opening) -> StockClient:
        client = PahoClient(opening)
        await client.connect(opening)
        return client


class PahoClient(StockClient):
    def __init__(self, opening: Opening) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._version = opening.version
        self._connected: asyncio.Future[int] = self._loop.create_future()
        self._waiting: dict[tuple[str, int], asyncio.Future[int]] = {}
        self.raw = _configured(opening)
        self.raw.on_connect = self._on_connect
        self.raw.on_message = self._on_message
        self.raw.on_publish = self._on_publish
        self.raw.on_subscribe = self._on_subscribe
        self.raw.on_unsubscribe = self._on_unsubscribe
        self.raw.on_disconnect = self._on_disconnect

    async def connect(self, opening: Opening) -> None:
        arguments: dict[str, Any] = {}
        if opening.version == V5:
            arguments = {"clean_start": opening.clean, "properties": connect_properties(opening)}
        await asyncio.to_thread(
            self.raw.connect, HOST, opening.port, opening.keep_alive, **arguments
        )
        self.raw.loop_start()
        async with asyncio.timeout(DEADLINE_SECONDS):
            reason = await self._connected
        if reason:
            self.raw.loop_stop()
            raise Refused(reason)

    # What paho's thread calls.

    def _on_connect(
        self, _client: Any, _data: Any, flags: Any, reason: ReasonCode, properties: Any
    ) -> None:
        def connected() -> None:
            self.session_present = flags.session_present
            self.assigned_id = getattr(properties, "AssignedClientIdentifier", None)
            if not self._connected.done():
                self._connected.set_result(reason.value if reason.is_failure else 0)

        self._soon(connected)

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self._soon(lambda: self._inbox.put_nowait(got_from(message)))

    def _on_publish(
        self, _client: Any, _data: Any, mid: int, reason: ReasonCode, _properties: Any
    ) -> None:
        self._soon(lambda: self._answer("publish", mid, reason.value))

    def _on_subscribe(
        self, _client: Any, _data: Any, mid: int, reasons: list[ReasonCode], _properties: Any
    ) -> None:
        self._soon(lambda: self._answer("subscribe", mid, reasons[0].value))

    def _on_unsubscribe(
        self, _client: Any, _data: Any, mid: int, _reasons: Any, _properties: Any
    ) -> None:
        self._soon(lambda: self._answer("unsubscribe", mid, 0))

    def _on_disconnect(
        self, _client: Any, _data: Any, flags: Any, reason: ReasonCode, _properties: Any
    ) -> None:
        def ended() -> None:
            self.end_reason = reason.value if flags.is_disconnect_packet_from_server else None
            self.ended.set()
            if not self._connected.done():
                self._connected.set_result(reason.value)

        self._soon(ended)

    def _soon(self, call: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _answer(self, kind: str, mid: int, reason: int) -> None:
        waiting = self._waiting.pop((kind, mid), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(reason)

    async def _wait(self, kind: str, mid: int | None) -> int:
        """Wait for an answer; it cannot come before this turn of the loop is over."""
        assert mid is not None
        waiting: asyncio.Future[int] = self._loop.create_future()
        self._waiting[kind, mid] = waiting
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await waiting

    # What the suites call.

    async def subscribe(self, wish: Wish) -> int | None:
        if self._version != V5:
            _, mid = self.raw.subscribe(wish.filter, wish.qos)
        else:
            _, mid = self.raw.subscribe(
                wish.filter, options=subscribe_options(wish), properties=identified(wish)
            )
        return await self._wait("subscribe", mid)

    async def unsubscribe(self, topic_filter: str) -> None:
        _, mid = self.raw.unsubscribe(topic_filter)
        await self._wait("unsubscribe", mid)

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
        info = self.raw.publish(topic, payload, qos, retain, properties)
        assert info.rc == paho.MQTT_ERR_SUCCESS, info
        return await self._wait("publish", info.mid)

    def acknowledge(self, got: Got) -> None:
        self.raw.ack(got.handle, got.qos)

    def drop(self) -> None:
        found: Any = self.raw.socket()
        if found is not None:
            getattr(found, "_socket", found).shutdown(socket.SHUT_RDWR)

    async def close(self, *, expiry: int | None = None) -> None:
        properties = None
        if expiry is not None:
            properties = new_properties(PacketTypes.DISCONNECT)
            properties.SessionExpiryInterval = expiry
        self.raw.disconnect(properties=properties)
        await asyncio.to_thread(self.raw.loop_stop)


# Translations, which aiomqtt shares: it hands paho's own words on.


def _configured(opening: Opening) -> paho.Client:
    arguments: dict[str, Any] = {}
    if opening.version != V5:
        arguments["clean_session"] = opening.clean
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        opening.client_id,
        protocol=MQTTProtocolVersion(opening.version),
        transport="websockets" if opening.websocket else "tcp",
        reconnect_on_failure=False,
        manual_ack=opening.manual_ack,
        **arguments,
    )
    client.connect_timeout = DEADLINE_SECONDS
    if opening.identity is not None:
        files = opening.identity
        client.tls_set(str(files.authority), str(files.certificate), str(files.key))
    if opening.will is not None:
        will = opening.will
        client.will_set(
            will.topic,
            will.payload,
            will.qos,
            will.retain,
            will_properties(will) if opening.version == V5 else None,
        )
    return client


def new_properties(kind: int) -> Properties:
    return Properties(kind)  # type: ignore[no-untyped-call]


def connect_properties(opening: Opening) -> Properties:
    properties = new_properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = opening.expiry
    if opening.receive_maximum is not None:
        properties.ReceiveMaximum = opening.receive_maximum
    if opening.alias_maximum is not None:
        properties.TopicAliasMaximum = opening.alias_maximum
    if opening.packet_maximum is not None:
        properties.MaximumPacketSize = opening.packet_maximum
    return properties


def will_properties(will: Will) -> Properties:
    properties = new_properties(PacketTypes.WILLMESSAGE)
    properties.WillDelayInterval = will.delay
    return properties


def subscribe_options(wish: Wish) -> SubscribeOptions:
    return SubscribeOptions(wish.qos, wish.no_local, wish.as_published, wish.retain_handling)


def identified(wish: Wish) -> Properties | None:
    if wish.identifier is None:
        return None
    properties = new_properties(PacketTypes.SUBSCRIBE)
    properties.SubscriptionIdentifier = wish.identifier
    return properties


def publish_properties(extras: Extras) -> Properties:
    properties = new_properties(PacketTypes.PUBLISH)
    named = {
        "ContentType": extras.content_type,
        "ResponseTopic": extras.response_topic,
        "CorrelationData": extras.correlation,
        "MessageExpiryInterval": extras.expiry,
        "PayloadFormatIndicator": extras.is_text if extras.is_text is None else int(extras.is_text),
        "TopicAlias": extras.alias,
    }
    for name, value in named.items():
        if value is not None:
            setattr(properties, name, value)
    for pair in extras.user:
        properties.UserProperty = pair
    return properties


def got_from(message: Any) -> Got:
    """Translate a message of paho's, or aiomqtt's wrapping of one."""
    found: Any = message.properties
    as_text = getattr(found, "PayloadFormatIndicator", None)
    extras = Extras(
        tuple(getattr(found, "UserProperty", ())),
        getattr(found, "ContentType", None),
        getattr(found, "ResponseTopic", None),
        getattr(found, "CorrelationData", None),
        getattr(found, "MessageExpiryInterval", None),
        None if as_text is None else bool(as_text),
    )
    identifiers = tuple(getattr(found, "SubscriptionIdentifier", ()))
    return Got(
        str(message.topic),
        bytes(message.payload),
        message.qos,
        bool(message.retain),
        extras,
        identifiers,
        message.mid,
    )
